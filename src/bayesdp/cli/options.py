"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NoiseMultiplier = Annotated[float, typer.Option(help="Noise on the sum of clipped gradients, over the clip.")]
SampleRate = Annotated[float, typer.Option(help="Probability with which a record is in a batch (Poisson), in (0, 1].")]
Steps = Annotated[int, typer.Option(help="Number of noisy steps.")]
Delta = Annotated[float, typer.Option(help="Probability that the guarantee may fail.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; figures that cannot be claimed are null.")]
Gamma = Annotated[float, typer.Option(help="Failure probability of each share and of the average.")]
Shares = Annotated[str, typer.Option(help="Shares of the population, separated by commas.")]
Joint = Annotated[bool, typer.Option("--joint", help="gamma is for all shares together.")]
AverageEstimator = Annotated[
    str, typer.Option(help="Of the average: betting, kullback-leibler or empirical-bernstein.", metavar="NAME")
]
Rows = Annotated[int, typer.Option(help="Also the worst case of a person with so many rows.")]
FixedExposures = Annotated[
    bool,
    typer.Option(
        "--fixed-exposures",
        help="The norms did not depend on what was released before: only then is the average proved.",
    ),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Also write the JSON to this file.")]
LedgerPath = Annotated[Path, typer.Argument(help="The file of a ledger.")]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder with the data sets; without it the one that BAYESDP_DATA names, or OpenML."),
]


def numbers(name: str, text: str) -> list[float]:
    """Of an option that takes several."""
    from bayesdp.validation import refuse

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise refuse(name, text, "numbers separated by commas") from None
