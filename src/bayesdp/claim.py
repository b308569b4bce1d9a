"""The place where ``Claim`` and ``statement`` used to be; scripts that import them from here go on working."""

from bayesdp.claims.claim import Claim
from bayesdp.claims.statement import statement, to_html, to_markdown

__all__ = ["Claim", "statement", "to_html", "to_markdown"]
