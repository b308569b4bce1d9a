"""The ledger: what a run did to each record of data, kept safely and cheaply.

ledger.py       the object users hold: record steps, read costs
grid.py         the exposures that are told apart, rounded up
bins.py         an exposure at a sampling rate: what is counted
histograms.py   counts per audit record, journal and folding
costs.py        counts times log-moments: K_x(lambda)
snapshots.py    costs at points of the run
batches.py      private counts of a batch
history.py      settings and totals of a run
clip_bound.py   the worst case of many settings
chain.py        one step, and the hash chain
file.py, head.py, packing.py, errors.py    on disk
composition.py  runs after one another
position.py     where a run stood at a checkpoint
summary.py      what `bayesdp show` prints
"""

from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.ledger import Ledger

__all__ = ["Ledger", "LedgerError"]
