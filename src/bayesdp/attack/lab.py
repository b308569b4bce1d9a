"""The list of attacks; one or all of them: findings, JSON and a picture for each, with versions beside the figures."""

from __future__ import annotations

import importlib
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

from bayesdp import validation
from bayesdp.attack import ATTACKS
from bayesdp.attack.finding import Detection, Finding, Ranking
from bayesdp.attack.picture import draw_detections, draw_findings, draw_rankings
from bayesdp.experiment_files import for_json, pyplot, versions, write_files
from bayesdp.optional import needs
from bayesdp.progress import NamedProgress, Progress, silent
from bayesdp.validation import refuse
from bayesdp.whole_file import made_folder

DELTA = 1e-5
"""The delta of claims of given runs, unless another is asked for."""
_OF_RUNS = "tightness"
"""The attack that is about given runs, at a given delta; the others have subjects of their own."""


@dataclass(frozen=True, kw_only=True)
class AttackOptions:
    """What someone who runs an attack may choose."""

    seed: int = 0
    small: bool = False
    "Few repetitions: it shows that everything runs; power is not judged."
    ledgers: tuple[Path, ...] = ()
    "The ledgers whose claims are attacked, for attacks on given runs; without any a small run is made."
    delta: float = DELTA
    "The delta of those claims."
    track: Progress = iter

    def command(self, attack: str) -> str:
        """Return the command that makes an attack with these options."""
        words = ["bayesdp attack", attack, "--seed", str(self.seed), *(["--small"] if self.small else [])]
        if attack == _OF_RUNS:
            words += [f"--ledger {shlex.quote(str(path))}" for path in self.ledgers]
            words += [f"--delta {self.delta!r}"] * (self.delta != DELTA)
        return " ".join(words)


class Attack(Protocol):
    """A module that is one attack."""

    TITLE: str
    SECONDS: float
    "About how long it takes on two cores."

    def attack(self, options: AttackOptions) -> Iterable[Finding | Detection | Ranking]:
        """Yield what was found, one claim or planted bug at a time. Equal options give equal findings."""
        ...


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """All that one attack found."""

    attack: str
    options: AttackOptions
    findings: tuple[Finding, ...]
    detections: tuple[Detection, ...]
    rankings: tuple[Ranking, ...]
    seconds: float

    @property
    def as_expected(self) -> bool:
        """Whether claims stand or break as theory says and, unless small, bugs are caught and rankings agree."""
        judged: tuple[Finding | Detection | Ranking, ...] = self.findings
        if not self.options.small:
            judged += (*self.detections, *self.rankings)
        return all(found.as_expected for found in judged)

    def lines(self) -> list[str]:
        """Return each finding, detection and ranking as a line of text."""
        judged = not self.options.small
        shown = [found.line(judged=judged) for found in (*self.detections, *self.rankings)]
        return [*(finding.line() for finding in self.findings), *shown]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON, with versions."""
        return for_json(
            {
                "attack": self.attack,
                "command": self.options.command(self.attack),
                "as_expected": self.as_expected,
                "findings": [finding.to_dict() for finding in self.findings],
                "detections": [detection.to_dict() for detection in self.detections],
                "rankings": [ranking.to_dict() for ranking in self.rankings],
                "seconds": round(self.seconds, 1),
                "versions": versions(),
            }
        )


@dataclass(frozen=True)
class Lab:
    """Attacks that were asked for and checked; nothing is computed before someone iterates."""

    modules: Mapping[str, Attack]
    options: AttackOptions
    folder: Path | None
    track: NamedProgress

    def estimate(self) -> str:
        """Return in words about how long all of it takes on two cores."""
        seconds = sum(module.SECONDS for module in self.modules.values())
        return f"about {max(1, round(seconds / 60))} minutes" if seconds >= 90 else f"about {seconds:.0f} seconds"

    def __iter__(self) -> Iterator[AttackResult]:
        """Carry out one attack after the other; yield its result once its files, if asked for, are written."""
        for name, module in self.modules.items():
            started = time.perf_counter()
            options = replace(self.options, track=partial(self._shown, name))
            found = tuple(module.attack(options))
            result = AttackResult(
                attack=name,
                options=self.options,
                findings=tuple(one for one in found if isinstance(one, Finding)),
                detections=tuple(one for one in found if isinstance(one, Detection)),
                rankings=tuple(one for one in found if isinstance(one, Ranking)),
                seconds=time.perf_counter() - started,
            )
            if self.folder is not None:
                path = self.folder / f"{name}{'-small' * self.options.small}.json"
                write_files(path, result.to_dict(), partial(draw, result, module.TITLE))
            yield result

    def _shown(self, name: str, items: Sequence[Any]) -> Iterable[Any]:
        return self.track(items, name)


def prepare(
    attack: str,
    output: str | Path | None = None,
    *,
    seed: int = 0,
    small: bool = False,
    ledgers: Sequence[str | Path] = (),
    delta: float = DELTA,
    track: NamedProgress = silent,
) -> Lab:
    """Check what an attack, or ``all`` of them, needs, and return it ready to start.

    ``output``: a folder for ATTACK.json and ATTACK.png; None writes nothing. Raises InvalidInputError for an unknown
    attack, a negative seed, an output that cannot be a folder, and for ``ledgers`` or a ``delta`` that the attack would
    not use; MissingLibraryError for a missing library. A ledger that cannot be opened or attacked is refused here, and
    not when its turn comes.
    """
    if attack != "all" and attack not in ATTACKS:
        raise refuse("attack", attack, f"one of {', '.join(ATTACKS)}, all")
    if attack not in ("all", _OF_RUNS) and (ledgers or delta != DELTA):
        name, given = ("ledger", str(ledgers[0])) if ledgers else ("delta", delta)
        raise refuse(name, given, f"none for {attack}, which has runs of its own: only {_OF_RUNS} takes one")
    options = AttackOptions(
        seed=validation.count("seed", seed, minimum=0),
        small=small,
        ledgers=tuple(Path(ledger) for ledger in ledgers),
        delta=validation.probability("delta", delta),
    )
    modules: dict[str, Attack] = {}
    for name in ATTACKS if attack == "all" else (attack,):
        with needs("demo", f"the attack {name}"):
            modules[name] = cast(Attack, importlib.import_module(f"bayesdp.attack.{name.replace('-', '_')}"))
    if options.ledgers:
        cast(Any, modules[_OF_RUNS]).check_ledgers(options.ledgers)
    folder = None
    if output is not None:
        pyplot()
        folder = made_folder("output", Path(output))
    return Lab(modules, options, folder, track)


def draw(result: AttackResult, title: str, figure: Any) -> None:
    """Draw what an attack found into an empty figure: claims, or else planted bugs, or else rankings."""
    axis = figure.subplots()
    if result.findings:
        draw_findings(axis, result.findings)
    elif result.detections:
        draw_detections(axis, result.detections)
    else:
        draw_rankings(axis, result.rankings)
    axis.set_title(title, fontsize=9)
