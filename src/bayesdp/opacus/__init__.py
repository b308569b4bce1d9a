"""bayesdp inside Opacus: ``watch`` records what a training run does; the accountant "bayesdp" tells Opacus about it.

    model, optimizer, data_loader = privacy_engine.make_private(...)
    watched = bayesdp.opacus.watch(model, optimizer, data_loader, ledger="run.ledger")
    ...
    print(watched.statement())

Importing this module registers the accountant, so that ``PrivacyEngine(accountant="bayesdp")`` finds it.

The files, in the order in which a step passes through them:

attaching.py          ``watch``: checks what it is given, and begins
run_names.py          names of new ledgers, numbered if a script is run again
earlier_steps.py      steps that the engine has counted before the ledger began; earlier_sources.py: what those of the
                      ledger came from; outside_steps.py: steps after the watch was closed
sampling.py           how records come into batches: the sampler's law, compared with what is drawn
draws.py              which draw a gradient comes from; handed_out.py: batches that a loop holds for a while
watched_run.py        ``Watch``: what Opacus calls at each step; what is claimed about the run
open_sum.py           the sum that the next step will release: its parts, and whether more follow
clipping.py           norms, bound and noise, for each way in which Opacus clips; ghost_clipping.py: ghost clipping
audit.py              norms that held-out records would have had; dry_run.py: whether they mean what they should
one_by_one.py         norms of audit records one at a time, from any loss
audit_rows.py         layers in which records cannot be told apart
audit_data.py         the records in any form that a loader yields; audit_loss.py: their loss, as training computes it
trained_rows.py       audit records that are evidently trained on; same_people.py: whether they are the same rows
audit_measurement.py  what audit records are charged with at a step, and what that rests on
loss_scale.py         how much the loop scales the loss before its backward pass
hidden_draws.py       randomness that training uses and does not release; passes.py: passes that the audit lacks
noise_repeats.py      noise that an earlier step has had already; draw_repeats.py: draws; generator_states.py: both
recording.py          from a sum of gradients to steps of the ledger; budget_check.py: whether the budget allows them

With several processes:

ranks.py              what ranks tell each other; how all of them learn that one failed
rank_draws.py         how records come to ranks, and whether ranks draw independently; rank_audit.py: shares of audits
rank_exit.py          the end of a rank, when PyTorch has let go of the last messages
rank_steps.py         one step over all ranks, which rank 0 records
sharded_clipping.py   models that FSDP2 has sharded; sharded_audit.py: their audit

Beside it: splitting.py, which sets audit records aside; accountant.py, the accountant "bayesdp"; secure.py, noise and
batches from a cryptographic generator; coupling.py, layers that couple the records of a batch; precision.py, gradients
in half precision; unsupported.py, what Opacus fails on; untrained.py, runs that train nothing; unnoised.py, updates
without noise; buffers.py, what passes leave in the model;
framework_run.py and draw_parts.py, what Lightning and the Trainer of Hugging Face share.
"""

from __future__ import annotations

from bayesdp.optional import needs

with needs("opacus", "bayesdp.opacus"):
    from opacus.accountants import register_accountant

from bayesdp.opacus.accountant import Accountant
from bayesdp.opacus.attaching import watch
from bayesdp.opacus.audit import AuditNorms
from bayesdp.opacus.one_by_one import OneByOne
from bayesdp.opacus.ranks import RanksError
from bayesdp.opacus.sampling import SamplingWarning
from bayesdp.opacus.secure import SecureNoise, SecureSampler
from bayesdp.opacus.splitting import split_audit
from bayesdp.opacus.untrained import UntrainedWarning
from bayesdp.opacus.watched_run import BudgetReachedWarning, Watch

__all__ = [
    "Accountant",
    "AuditNorms",
    "BudgetReachedWarning",
    "OneByOne",
    "RanksError",
    "SamplingWarning",
    "SecureNoise",
    "SecureSampler",
    "UntrainedWarning",
    "Watch",
    "split_audit",
    "watch",
]

register_accountant(Accountant.mechanism(), Accountant, force=True)
