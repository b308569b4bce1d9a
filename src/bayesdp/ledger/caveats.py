"""Caveats: what a step rests on besides its figures.

Whoever records a step names its caveats. They are kept with the step, and every claim about the run states them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bayesdp.validation import listed, refuse


@dataclass(frozen=True)
class Caveat:
    """An assumption in words, and the claims that it weakens from a bound to an estimate."""

    text: str
    weakens: Literal["nothing", "shares", "audit", "everything"]
    "``shares``: claims about shares and members; ``audit``: all from audit records; ``everything``: also for everyone."
    contradicts: tuple[str, ...] = ()
    "Assumptions of claims that it takes the place of; a claim that made one is an estimate, whatever its kind was."
    named_by: Literal["all", "audit"] = "all"
    "Which claims name one that weakens nothing: all, or those from audit records."


CAVEATS = {
    "zero-out": Caveat(
        "to remove a record means that its contribution becomes zero, while batches stay as they are (zero-out)",
        "nothing",
    ),
    "records-public": Caveat("the number of training records is public", "nothing"),
    "earlier-steps": Caveat(
        "steps before the ledger began were as Opacus' accountant has counted them: their number, noise and sampling "
        "rate",
        "nothing",
    ),
    "earlier-norms": Caveat(
        "at steps without a measurement, norms of audit records were those of the last measured step", "audit"
    ),
    "random-draws": Caveat(
        "the norm of an audit record at a step, which is that of one random draw (of dropout or augmentation, for "
        "instance), stands for all draws",
        "shares",
    ),
    "several-passes": Caveat(
        "the gradient of a record came from one pass through the model, as in the audit, although training made "
        "several for each batch (real and generated samples, for instance)",
        "audit",
    ),
    "changed-gradients": Caveat(
        "the gradient of a record was clipped as the backward pass had left it, as in the audit, although the training "
        "loop changed gradients before the step (a mask, or a mean over augmented copies, for instance)",
        "audit",
    ),
    "given-loss": Caveat("the loss given for audit records is the one trained with", "nothing", named_by="audit"),
    "left-out": Caveat("which drawn records were left out of a step did not depend on other records", "everything"),
    "changed-buffers": Caveat(
        "buffers of the model that passes in training change, and that are saved with it, do not depend on training "
        "records",
        "nothing",
    ),
    "skipped-batches": Caveat(
        "whether the training loop left out a whole batch (an empty one, or one whose loss was not finite, for "
        "instance), or ended within one, did not depend on the records in its batches",
        "nothing",
    ),
    "independent-answers": Caveat(
        "whether a client answered in time did not depend on the data of other clients", "nothing"
    ),
    "drawn-size-public": Caveat("how many records adaptive clipping drew at each step is public", "everything"),
    "low-precision": Caveat(
        "how gradients were rounded in half precision (autocast) did not depend on the other records of a batch",
        "everything",
    ),
    "sampling-mismatch": Caveat(
        "records were drawn at the stated rate, although the sizes of the batches contradict it", "everything"
    ),
    "drawn-together": Caveat(
        "ranks drew their records independently of each other, although they drew the same positions", "everything"
    ),
    "chosen": Caveat(
        "the runs among which this one was chosen differed in chance only, their number was drawn before the first and "
        "all of them ended, and nothing of the others is released: neither their scores nor how many there were",
        "nothing",
    ),
    "seeded": Caveat(
        "nobody knows the seed of noise and batches. It was set by hand: an experiment, NOT FOR RELEASE",
        "nothing",
    ),
}
"""All caveats, by the name that ``Ledger.step(caveats=...)`` takes and the file keeps."""


def caveat_text(names: Iterable[str]) -> str:
    """Return the text in which a step keeps its caveats: names in alphabetical order, each once, between commas.

    Raises InvalidInputError for a name that is not in ``CAVEATS``, and for anything but names.
    """
    given = [names] if isinstance(names, str) else listed("caveats", names, "names of caveats")
    for name in given:
        if not isinstance(name, str) or name not in CAVEATS:
            raise refuse("caveats", name, f"names among {', '.join(CAVEATS)}")
    return ",".join(sorted(set(given)))


def caveat_names(text: str) -> list[str]:
    """Return the names in a text that ``caveat_text`` gave."""
    return text.split(",") if text else []
