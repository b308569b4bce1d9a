"""Before a release: the questions that decide whether a model may leave, what is known about each, and what to do."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bayesdp.cautions import LARGE_EPSILON
from bayesdp.claims import RunClaims
from bayesdp.claims.group_rows import rows_claim
from bayesdp.claims.spending import BudgetBound
from bayesdp.formatting import listed, round_up
from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.guarantees.selection import SelectedBound

ACCEPTABLE = "Is this epsilon acceptable?"
"""The question below which the page shows a scale."""
Status = Literal["settled", "open", "not met"]
STRONG_EPSILON = 1.0
"""Up to this a guarantee is strong, by the same tiers as ``LARGE_EPSILON``."""
SCALE = (
    (0.0, "nothing can be learned"),
    (STRONG_EPSILON, "strong"),
    (LARGE_EPSILON, "reasonable, and common for machine learning"),
    (math.inf, "weak, unless other evidence is added"),
)
"""Largest epsilon of each tier, and its name; the borders are those of ``LARGE_EPSILON``'s rule of thumb."""
_PUBLISHED = (
    "Others have published, for units that cannot be compared directly: Apple 2 to 16 for a user's data of one day, "
    "private image classifiers 1 to 2 for an image (Tramèr & Boneh 2021, De et al. 2022). Your organisation decides."
)
_WELL_BELOW = 10  # how many times less than 1 in the number of people delta should be
_ROWS = (2, 3)  # of one person, whose figures are printed


@dataclass(frozen=True)
class ReleasedFile:
    """The file of a model that is to be released: its name, and the SHA-256 digest of its content in hex."""

    name: str
    sha256: str

    @staticmethod
    def of(path: str | Path) -> ReleasedFile:
        """Read a file. Raises OSError if it cannot be read."""
        with Path(path).open("rb") as file:
            return ReleasedFile(Path(path).name, hashlib.file_digest(file, "sha256").hexdigest())

    @staticmethod
    def of_content(name: str, content: bytes) -> ReleasedFile:
        """Return what ``of`` will return once ``content`` is written to a file of that name."""
        return ReleasedFile(name, hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class Check:
    """A question to answer before the model is released, what is known about it, and a command that helps."""

    question: str
    status: Status
    answer: str
    command: str | None = None


def release_checks(
    claims: RunClaims,
    bound: ClipBound | BudgetBound | SelectedBound | None,
    *,
    verify: str | None,
    ledger_name: str,
    tuning: Mapping[str, Any],
    model: ReleasedFile | None,
) -> list[Check]:
    """Return the questions in the order in which they may end the matter.

    ``bound`` is the profile behind the figure for everyone. ``verify`` is the command that checks the ledger, None if
    it has no file. ``tuning`` is what the run says about the choice of its settings: how many ``configurations`` were
    compared, and what was tried ``before``.
    """
    return [
        *([_SEEDED] if claims.facts.seeded else []),
        _acceptable(claims),
        _one_row(claims, bound, ledger_name),
        _small_delta(claims.everyone.delta, claims.facts.training_records),
        _other_models(claims, tuning),
        _unchanged(verify),
        *([] if model is None else [_same_file(model)]),
    ]


_SEEDED = Check(
    "Must this model be trained again?",
    "not met",
    "Yes. Its noise came from a seed that was set by hand: an experiment, which cannot be repaired afterwards. Train "
    "again without a given seed, and release that model with its own report.",
)


def _acceptable(claims: RunClaims) -> Check:
    everyone = claims.everyone
    if not guaranteed(claims):
        return Check(ACCEPTABLE, "not met", "There is no guarantee for everyone.")
    tier = next(name for most, name in SCALE if everyone.epsilon <= most)
    words = f"By a rule of thumb of TensorFlow Privacy's guide, {round_up(everyone.epsilon)} counts as {tier}."
    return Check(ACCEPTABLE, "open", f"{words} {_PUBLISHED}")


def guaranteed(claims: RunClaims) -> bool:
    """Return whether there is a proved figure for everyone."""
    return math.isfinite(claims.everyone.epsilon) and claims.everyone.kind == "proved"


def _one_row(claims: RunClaims, bound: ClipBound | BudgetBound | SelectedBound | None, ledger_name: str) -> Check:
    if claims.facts.unit == "person":
        return Check("Is each record one person?", "settled", "It was declared that nobody has more than one record.")
    known = _several_rows(claims, bound) if guaranteed(claims) else ""
    return Check(
        "Does anyone have more than one row?",
        "open",
        f"The figures are for one row. {known}For other numbers of rows:",
        f"bayesdp claims {ledger_name} --delta {claims.everyone.delta!r} --rows 5",
    )


def _several_rows(claims: RunClaims, bound: ClipBound | BudgetBound | SelectedBound | None) -> str:
    figures = [(rows, rows_claim(bound, claims.everyone, rows).epsilon) for rows in _ROWS]
    said = [f"{round_up(epsilon)} with {rows}" for rows, epsilon in figures if math.isfinite(epsilon)]
    return f"Who has more has a weaker guarantee: epsilon at most {listed(said)}. " if said else ""


def _small_delta(delta: float, records: int | None) -> Check:
    question = "Is delta small enough?"
    rule = "It is each person's probability that more is revealed than epsilon says, and should be well below 1 in"
    if records is None:
        return Check(
            question, "open", f"{rule} the number of people. It is {delta:g}; how many there are is not known."
        )
    times = 1 / (delta * records)
    compared = f"{times:.3g} times less than" if times > 1 else "not less than"
    total = f"added up over all of them it is at most {min(delta * records, 1.0):.2g}"
    words = f"{rule} {records:,}, the number of records. {delta:g} is {compared} that; {total}."
    if times >= _WELL_BELOW:
        return Check(question, "settled", words)
    smaller = f"Choose a delta of at most {_rounded_down(1 / (_WELL_BELOW * records)):g}; epsilon is then larger."
    return Check(question, "not met" if times <= 1 else "open", f"{words} {smaller}")


def _rounded_down(value: float) -> float:
    """Return the largest power of ten that is not above a value below 1."""
    return 10.0 ** math.floor(math.log10(value) + 1e-12)


def _other_models(claims: RunClaims, tuning: Mapping[str, Any]) -> Check:
    configurations, before = tuning.get("configurations"), tuning.get("before")
    question = "Were other models trained on the same data to choose this one?"
    if claims.selection is not None and not claims.selection.covered:
        words = f"Yes, and no guarantee includes it, because {claims.selection.reason}. Train again."
        return Check(question, "open", words)
    if claims.selection is not None:
        words = f"Yes, and the guarantee for everyone includes it: {claims.selection.statement()}"
        return Check(question, "settled", words)
    not_covered = "They reveal something too, and are not part of these figures: together they are weaker."
    if not isinstance(configurations, int) or configurations < 1:
        return Check(question, "open", f"This run does not say. If so: {not_covered} Choose settings on other data.")
    more = f" ({before})" if isinstance(before, str) else ""
    return Check(question, "not met", f"Yes: {configurations} configurations were compared{more}. {not_covered}")


def _unchanged(verify: str | None) -> Check:
    question = "Is the ledger, the log that was written during training, complete and unchanged?"
    if verify is None:
        return Check(question, "not met", "It was kept in memory only: nobody can check it.")
    return Check(
        question,
        "open",
        'The answer to this command must say "complete and unchanged". Compare the seal in it with one that somebody '
        "else noted when training ended; by itself it shows only that page and ledger belong together:",
        verify,
    )


def _same_file(model: ReleasedFile) -> Check:
    return Check(
        "Is the file to be released the one that this page is about?",
        "open",
        f"Its fingerprint (SHA-256) must be {model.sha256}, as this command shows:",
        f"sha256sum {shlex.quote(model.name)}",
    )


def unsettled(checks: Sequence[Check]) -> str:
    """Return in words how many of the questions are not settled."""
    left = sum(check.status != "settled" for check in checks)
    return "All of these are settled." if not left else f"{left} of {len(checks)} are not settled yet."
