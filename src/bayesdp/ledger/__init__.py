"""The ledger: what a run did to each record of data, stored safely and cheaply. Storage and counts only.

stored_ledger.py   records steps, reads them back: what ``bayesdp.Ledger`` builds on
settings.py        what a run is: checked, kept as text, first link of the hash chain
caveats.py         what a step may rest on besides its figures
norms.py           norms as they come in, checked once
exposure_grid.py   the exposures that are told apart, rounded up
bins.py            an exposure at a sampling rate: what is counted
histograms.py      counts of every audit record, and the journal of the last steps
folding.py         from the journal into the histograms
snapshots.py       costs at about 32 points of the run
costs.py           counts times log-moments: K_x(lambda)
running_costs.py   the same at one order, while steps are recorded
step_counts.py     counts for readers who need not know about bins
batches.py         private counts of a batch
history.py         settings and totals of a run
chain.py           one step, and the hash chain
file.py            the SQLite file: opened, locked, written, closed
reading.py         the SQLite file: read and checked
database.py        its tables, and its errors in plain words
head.py            the small file beside it: a lock, and how far the ledger had come
loading.py         everything from the file into memory
packing.py         small forms of arrays
composition.py     runs after one another, as one ledger
position.py        where a run stood at a checkpoint
locking.py, errors.py
"""

from bayesdp.ledger.composition import composed_file
from bayesdp.ledger.database import MEMORY
from bayesdp.ledger.errors import LedgerError, StorageError
from bayesdp.ledger.file import LedgerFile
from bayesdp.ledger.norms import CheckedNorms, checked_norms
from bayesdp.ledger.running_costs import RunningCosts
from bayesdp.ledger.settings import checked_path, new_settings
from bayesdp.ledger.snapshots import LAMBDAS as SNAPSHOT_LAMBDAS
from bayesdp.ledger.step_counts import StepCounts
from bayesdp.ledger.stored_ledger import StoredLedger

__all__ = [
    "MEMORY",
    "SNAPSHOT_LAMBDAS",
    "CheckedNorms",
    "LedgerError",
    "LedgerFile",
    "RunningCosts",
    "StepCounts",
    "StorageError",
    "StoredLedger",
    "checked_norms",
    "checked_path",
    "composed_file",
    "new_settings",
]
