"""What the outcome of a fuzzed call may be: a value that keeps its contract, or one line that says what is wrong."""

from __future__ import annotations

import math
import re
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from bayesdp import InvalidInputError, LastLambdaWarning, MissingLibraryError, StorageError

MOST_SECONDS = 5.0
"""Of processor time that a case may take: on a loaded machine, time on the wall says nothing."""
LINE = re.compile(r"^[\w.\[\]'\", ()-]+=.*: .*\.\)?$")
"""The form of an error: ``name=value: expected ...``."""
LONGEST_LINE = 700


class BrokenContractError(AssertionError):
    """A contract that was not kept."""


class TooLong(BaseException):
    """A case that took more processor time than it may."""


def require(condition: Any, what: str, *values: object) -> None:
    """Raise BrokenContractError, with the values, unless the condition holds."""
    if not bool(condition):
        raise BrokenContractError(f"{what}: {', '.join(repr(value)[:200] for value in values)}")


def is_figure(value: Any, what: str = "figure") -> float:
    """Return a number that is at least 0 and not NaN; infinity is allowed. Raises BrokenContractError otherwise."""
    require(isinstance(value, float | int | np.floating), f"{what} is no number", value)
    require(not math.isnan(value) and value >= 0, f"{what} is negative or NaN", value)
    return float(value)


def are_figures(values: Any, what: str = "figures") -> None:
    """Raise BrokenContractError unless all numbers of an array are at least 0 and none is NaN."""
    require(not np.isnan(values).any() and (np.asarray(values) >= 0).all(), f"{what} are negative or NaN", values)


def refused(error: Exception) -> str:
    """Return "refused" for an error of one line in the usual form; raise BrokenContractError for any other."""
    said = str(error)
    require("\n" not in said and len(said) <= LONGEST_LINE, "an error of more than one line", said)
    require(isinstance(error, MissingLibraryError) or LINE.match(said), "an error without name=value", said)
    return "refused"


def judged(case: Callable[[], str | None], questions: int = 1) -> tuple[str, str | None]:
    """Run a case; return its outcome ("value", "refused", ...) and, if it is a finding, what happened.

    ``questions``: how many worst cases it computes, each of which may take ``MOST_SECONDS``.
    """
    started = time.process_time()
    before = signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, 6 * questions * MOST_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", LastLambdaWarning)  # documented
            outcome = case() or "value"
    except (InvalidInputError, StorageError, MissingLibraryError) as error:
        try:
            outcome = refused(error)
        except BrokenContractError as broken:
            return "finding", str(broken)
    except (Exception, TooLong) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return "finding", f"{type(error).__name__}: {str(error)[:300]} ({place.name}, line {place.lineno})"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    taken = time.process_time() - started
    if taken > questions * MOST_SECONDS:
        return "finding", f"took {taken:.1f} s of processor time"
    return outcome, None


def _stop(*_: object) -> None:
    raise TooLong
