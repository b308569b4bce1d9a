"""A new step: from the arguments of ``Ledger.step`` to what the file and the journal keep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from bayesdp import validation
from bayesdp.ledger import chain
from bayesdp.ledger.batches import PrivateBatch, pack_norms
from bayesdp.ledger.bins import Place
from bayesdp.ledger.caveats import caveat_names, caveat_text
from bayesdp.ledger.chain import Step, StoredStep
from bayesdp.ledger.database import CONTENT_TABLES
from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.file import LedgerFile
from bayesdp.ledger.histograms import Entry, Slice
from bayesdp.ledger.history import History
from bayesdp.ledger.norms import CheckedNorms
from bayesdp.ledger.settings import checked_text


def checked_step(
    *,
    noise_std: float,
    sample_rate: float,
    clip: float | None,
    planned_batch: float | None,
    source: str,
    caveats: Iterable[str],
    time: float,
) -> Step:
    """Check the settings of a step and return it with its time, without its number and its norms.

    Raises InvalidInputError for settings that cannot be accounted.
    """
    noise = validation.noise_std(noise_std)
    rate = validation.sample_rate(sample_rate)
    bound = None if clip is None else validation.positive("clip", clip)
    if bound is not None:
        validation.noise_multiplier(noise / bound)
    return Step(
        number=0,
        noise_std=noise,
        sample_rate=rate,
        clip=bound,
        planned_batch=None if planned_batch is None else validation.positive("planned_batch", planned_batch),
        time=time,
        source=checked_text("source", source),
        caveats=caveat_text(caveats),
        audited=0,
        audit_clipped=0,
        audit_digest=chain.NOTHING,
        batch_digest=chain.NOTHING,
        norms_digest=chain.NOTHING,
    )


def with_norms(
    step: Step,
    previous: bytes,
    place: Place,
    *,
    audit: CheckedNorms | None,
    batch: CheckedNorms | None,
    keep_norms: bool,
) -> tuple[StoredStep, Entry]:
    """Return a step with its norms, as the file keeps it and as the journal in memory does.

    ``previous`` is the hash of the step before it, ``place`` where its exposures are counted. Without norms of audit
    records, all of them are charged at the clip bound.
    """
    keys = None if audit is None else place.audit_keys(audit.values)
    journal = None if keys is None else keys.astype("<u2", copy=False).tobytes()
    drawn = None if batch is None else PrivateBatch.of(batch, step.clip, place).pack(place.rate_number)
    norms = pack_norms(audit, batch) if keep_norms else None
    step = replace(
        step,
        audited=0 if audit is None else len(audit),
        audit_clipped=0 if audit is None else audit.above(step.clip),
        audit_digest=chain.digest(journal),
        batch_digest=chain.digest(drawn),
        norms_digest=chain.digest(norms),
    )
    stored = StoredStep(step, step.hash(previous), journal, drawn, norms)
    return stored, Entry(place.rate_number, place.clip_key if keys is None else keys)


def with_caveat(step: Step | None, name: str, path: str) -> Step:
    """Return the last step of the ledger at ``path`` with one more caveat.

    Raises InvalidInputError for a name that no caveat has, LedgerError if there is no step.
    """
    if step is None:
        raise LedgerError(path, f"has no step that could be noted as {name!r}")
    return replace(step, caveats=caveat_text([*caveat_names(step.caveats), name]))


def write_again(file: LedgerFile, history: History, slices: Sequence[Slice], step: Step) -> None:
    """Write the last step again as ``step``; its norms are as they were, in the file or folded.

    ``slices`` are those of the audit records.
    """
    previous = history.hash_at(step.number - 1)
    journal, batch, norms = (file.content(table, step.number) for table in CONTENT_TABLES)
    folded = {number: part for number, part in enumerate(slices) if part.through == step.number}
    stored = StoredStep(step, step.hash(previous), journal, batch, norms)
    file.replace_last(stored, previous, folded)
    history.amend(stored.step, stored.hash)
