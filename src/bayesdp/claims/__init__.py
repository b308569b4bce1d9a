"""Claims from a ledger: what may be said without the paper's assumptions, and the paper's beside it.

of_ledger.py   all of them together
asked.py       what is asked for, checked
figures.py     costs and profiles of every audit record, what all claims are made of
exposures.py   fewer kinds of steps, rounded up, for the profiles
ex_post.py     what a realised run has cost, however its steps depended on each other
shares.py      a share of the population, by order statistics
average.py     the average over the population, by a walk down fixed epsilons
rows.py        everyone with several rows
paper.py       the paper's estimate
"""

from bayesdp.claims.asked import Asked
from bayesdp.claims.of_ledger import LedgerClaims, ledger_claims
from bayesdp.claims.shares import ShareClaims

__all__ = ["Asked", "LedgerClaims", "ShareClaims", "ledger_claims"]
