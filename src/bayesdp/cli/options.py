"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NoiseMultiplier = Annotated[
    float,
    typer.Option(
        help="Standard deviation of the noise on the sum of clipped gradients, divided by the clip.", metavar="NUMBER"
    ),
]
SampleRate = Annotated[
    float, typer.Option(help="Probability that a record is in a batch (Poisson), in (0, 1].", metavar="NUMBER")
]
Sampling = Annotated[
    str,
    typer.Option(
        help="How batches are drawn: poisson, fixed-size (relation: replace-one), 'fixed-size, zero-out' or "
        "random-allocation.",
        metavar="NAME",
    ),
]
Steps = Annotated[int, typer.Option(help="Number of noisy steps.", metavar="COUNT")]
Delta = Annotated[float, typer.Option(help="Probability that the guarantee may fail.", metavar="NUMBER")]
All = Annotated[
    bool,
    typer.Option("--all", help="Print every claim: averages, the paper's figure, groups, methods and assumptions."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; a figure that cannot be claimed is null.")]
Gamma = Annotated[float, typer.Option(help="Failure probability of each share and of the average.", metavar="NUMBER")]
Shares = Annotated[str, typer.Option(help="Shares of the population, separated by commas.", metavar="NUMBERS")]
Joint = Annotated[bool, typer.Option("--joint", help="Let gamma apply to all shares together.")]
ExPostForm = Annotated[str, typer.Option(help="Form of ex-post claims: hockey-stick or markov.", metavar="NAME")]
Looks = Annotated[
    int, typer.Option(help="How often figures from these audit records are read; gamma covers all.", metavar="COUNT")
]
AverageEstimator = Annotated[
    str,
    typer.Option(help="Estimator of the average: betting, kullback-leibler or empirical-bernstein.", metavar="NAME"),
]
Rows = Annotated[
    int, typer.Option(help="Also print the worst case for a person with up to this many rows.", metavar="COUNT")
]
FixedExposures = Annotated[
    bool,
    typer.Option(
        "--fixed-exposures",
        help="Declare that norms did not depend on earlier releases: only then is the average proved.",
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Also write the result to this file, as JSON.", metavar="FILE")
]
LedgerPath = Annotated[Path, typer.Argument(help="A ledger file.", metavar="LEDGER")]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the data sets; by default the one that BAYESDP_DATA names, or else OpenML.", metavar="FOLDER"
    ),
]


def numbers(name: str, text: str) -> list[float]:
    """Return the numbers in an option such as ``--shares .5,.9``; raise InvalidInputError if one is no number."""
    from bayesdp.validation import refuse

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise refuse(name, text, "numbers separated by commas") from None
