"""The ledger: the steps of a run and how exposed each audit record was, stored safely. Storage and counts only.

The rest of bayesdp imports from here, not from the modules below.

    stored_ledger.py   records steps and gives back counts and costs; ``bayesdp.Ledger`` adds claims
    run_composition.py runs that followed one another, as one ledger
    position.py        the position of a ledger, for checkpoints

What comes in
    settings.py        the settings of a run: checked, kept as text
    norms.py           norms, checked once
    caveats.py         what a step rests on besides its figures
    step_sources.py    from which states of generators the noise and the draws of a step came
    new_step.py        from the arguments of a step to what is kept of it

What is counted
    exposure_grid.py   the exposures that are told apart; others are rounded up to them
    bins.py            an exposure at a sampling rate, and where the exposures of a step go
    norm_ratios.py     how far above the clip bound norms of audit records were
    histograms.py      counts of every audit record, and the journal of the last steps
    folding.py         from the journal into the histograms
    batches.py         private counts of a batch
    history.py         settings by stretches, totals and hashes of a run

What is read from it
    costs.py           counts times log-moments: K_x(lambda)
    running_costs.py   costs at one order, kept up to date while steps are recorded
    snapshots.py       costs at about 32 points of a run
    step_counts.py     counts by rate and exposure, for readers who need not know about bins
    norm_counts.py     the same at another clip bound, for advice

What is on disk
    file.py            the SQLite file: opened, locked, written, closed; whole at every instant, even after kill -9
    head.py            the small file beside it: a lock, and how far the ledger had come
    database.py        tables, connections, errors of SQLite in plain words
    chain.py           one step, and the hash chain over all steps
    reading.py         rows of the file, checked
    loading.py         everything from the file into memory
    seals.py           seals to note elsewhere, and ``verify``, which compares them
    packing.py         arrays as bytes

    errors.py, locking.py
"""

from bayesdp.ledger.bins import BinArray
from bayesdp.ledger.caveats import CAVEATS, Caveat
from bayesdp.ledger.database import MEMORY
from bayesdp.ledger.errors import LedgerError, StorageError
from bayesdp.ledger.file import LedgerFile, check_not_written
from bayesdp.ledger.history import Stretch
from bayesdp.ledger.locking import locked
from bayesdp.ledger.new_step import with_caveat, write_again
from bayesdp.ledger.norm_counts import NormCounts, norm_counts
from bayesdp.ledger.norms import CheckedNorms, checked_audit_norms, checked_norms
from bayesdp.ledger.position import check_continues, position_of
from bayesdp.ledger.run_composition import composed_file
from bayesdp.ledger.running_costs import RunningCosts
from bayesdp.ledger.seals import lasting_seal, verify
from bayesdp.ledger.settings import checked_path, new_settings
from bayesdp.ledger.step_counts import StepCounts
from bayesdp.ledger.step_sources import FLOWER, JAX_PRIVACY, OPACUS, StepSource
from bayesdp.ledger.stored_ledger import StoredLedger

__all__ = [
    "CAVEATS",
    "FLOWER",
    "JAX_PRIVACY",
    "MEMORY",
    "OPACUS",
    "BinArray",
    "Caveat",
    "CheckedNorms",
    "LedgerError",
    "LedgerFile",
    "NormCounts",
    "RunningCosts",
    "StepCounts",
    "StepSource",
    "StorageError",
    "StoredLedger",
    "Stretch",
    "check_continues",
    "check_not_written",
    "checked_audit_norms",
    "checked_norms",
    "checked_path",
    "composed_file",
    "lasting_seal",
    "locked",
    "new_settings",
    "norm_counts",
    "position_of",
    "verify",
    "with_caveat",
    "write_again",
]
