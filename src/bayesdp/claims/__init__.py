"""Claims: what may be said about a run, about whom, how surely, and on what assumptions.

claim.py            one claim: a frozen figure with its audience, kind and assumptions
request.py          which claims are wanted, checked
run_claims.py       all claims of a ledger, as one object
everyone.py         the worst case
shares.py           a share of the population, by order statistics
ex_post.py          what a finished run has cost, however its steps depended on each other
average.py          the population on average; epsilon_walk.py: the walk down a fixed grid of epsilons behind it
bayesian.py         the paper's estimate
group_rows.py       the worst case for a person with several rows
risk.py             what an attacker gets, beside epsilon
gate.py             a promise declared before the run
stopping.py         whether the next step may still be taken
account.py          all claims from a table of norms
record_figures.py   costs and profiles of every audit record; step_kinds.py: fewer kinds of steps for them
rounding.py         how much rounding in the ledger may have added to epsilon
statement.py        claims in words; tables.py: claims as tables
"""

from bayesdp.claims.claim import Claim
from bayesdp.claims.request import ClaimRequest
from bayesdp.claims.run_claims import RunClaims, compute_claims
from bayesdp.claims.shares import ShareClaims

__all__ = ["Claim", "ClaimRequest", "RunClaims", "ShareClaims", "compute_claims"]
