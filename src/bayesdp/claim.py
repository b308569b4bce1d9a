"""The former home of ``Claim`` and ``statement``, kept so that scripts that import them from here still work."""

from bayesdp.claims.claim import Claim
from bayesdp.claims.statement import statement, to_html, to_markdown

__all__ = ["Claim", "statement", "to_html", "to_markdown"]
