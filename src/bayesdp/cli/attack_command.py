"""The command that attacks this software's own claims."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesdp.attack import ATTACKS
from bayesdp.cli.options import Delta, Json
from bayesdp.cli.output import progress


def attack(
    name: Annotated[str, typer.Argument(help=", ".join([*ATTACKS, "all"]), metavar="ATTACK")],
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.", metavar="NUMBER")] = 0,
    small: Annotated[
        bool, typer.Option("--small", help="Few repetitions, to try it out; power is not judged.")
    ] = False,
    ledger: Annotated[
        list[Path] | None,
        typer.Option(help="A run that tightness is about; may be repeated. By default a fresh demo.", metavar="FILE"),
    ] = None,
    delta: Delta = 1e-5,
    json_: Json = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write JSON and pictures to this folder.", metavar="FOLDER"),
    ] = None,
) -> None:
    """Attack the claims of this software, as it is installed here: claim, lower bound, verdict.

    Exit code 0 if every claim stands that must stand, and everything breaks that must break; 1 otherwise.

    Example: bayesdp attack exact -o attack
    """
    from bayesdp.attack.lab import prepare

    lab = prepare(name, output, seed=seed, small=small, ledgers=ledger or (), delta=delta, track=progress)
    if not small:
        print(f"This takes {lab.estimate()} on two cores.", file=sys.stderr)
    results: dict[str, Any] = {}
    right = True
    for result in lab:
        right &= result.as_expected
        results[result.attack] = result.to_dict()
        if not json_:
            print(*result.lines(), sep="\n", flush=True)
    if json_:
        print(json.dumps(results, indent=2, allow_nan=False))
    if not right:
        raise typer.Exit(1)
