"""Commands that read the ledger of a run: show, claims, verify, compose, report."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from bayesdp.cli.options import (
    AverageEstimator,
    Delta,
    ExPostForm,
    FixedExposures,
    Gamma,
    Joint,
    Json,
    LedgerPath,
    Looks,
    Output,
    Rows,
    Shares,
    numbers,
)
from bayesdp.cli.output import show_result, writing


def show(
    ledger: LedgerPath,
    delta: Delta = 1e-5,
    private: Annotated[
        bool,
        typer.Option("--private", help="Also show what batches reveal about training members: not for release."),
    ] = False,
    json_: Json = False,
    output: Output = None,
) -> None:
    """Show what is in a ledger: steps, noise, rates, exposures of audit records, costs over time.

    Example: bayesdp show run.ledger --json
    """
    from bayesdp.report.summary import summary, words
    from bayesdp.run_ledger import Ledger

    with Ledger.open(ledger, write=False) as opened:
        values = summary(opened, delta=delta, private=private)
    show_result(values, words(values), json_, output)


def claims(
    ledger: LedgerPath,
    delta: Delta = 1e-5,
    gamma: Gamma = 0.01,
    shares: Shares = ".5,.9,.99",
    joint: Joint = False,
    estimator: AverageEstimator = "betting",
    fixed_exposures: FixedExposures = False,
    rows: Rows = 1,
    form: ExPostForm = "hockey-stick",
    looks: Looks = 1,
    private: Annotated[
        bool,
        typer.Option("--private", help="Add the estimate from batches of training members: not for release."),
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables for a model card.")] = False,
    json_: Json = False,
    output: Output = None,
) -> None:
    """Print what may be claimed about a run: for everyone, for shares of the population, and on average.

    Example: bayesdp claims run.ledger --shares .5,.99 --markdown
    """
    from bayesdp.run_ledger import Ledger

    with Ledger.open(ledger, write=False) as opened:
        result = opened.claims(
            delta,
            gamma,
            numbers("shares", shares),
            joint=joint,
            estimator=estimator,
            fixed_exposures=fixed_exposures,
            private=private,
            rows=rows,
            form=cast(Any, form),  # checked there
            looks=looks,
        )
    words = result.to_markdown() if markdown else result.statement()
    values = {"ledger": str(ledger), "claims": [claim.to_dict() for claim in result], "risk": result.risk.to_dict()}
    show_result(values, words, json_, output)


def verify(
    ledger: LedgerPath,
    seal: Annotated[str | None, typer.Option(help="The seal you noted when the ledger was closed.")] = None,
) -> None:
    """Check a ledger from the first step to the last; if anything was changed, say what, with exit code 2.

    Example: bayesdp verify run.ledger
    """
    from bayesdp.run_ledger import Ledger
    from bayesdp.validation import refuse

    with Ledger.open(ledger, write=False) as opened:
        if seal is not None and seal != opened.seal:
            raise refuse("seal", seal, f"{opened.seal}, the seal of this ledger")
        print(f"{ledger}: complete and unchanged, {opened.steps} steps, seal {opened.seal}")


def compose(
    ledgers: Annotated[list[Path], typer.Argument(help="Ledgers of successive runs, in their order.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The new ledger.")],
) -> None:
    """Join the ledgers of successive runs on the same people: costs add up, audit records are matched by id.

    Example: bayesdp compose first.ledger second.ledger -o both.ledger
    """
    from bayesdp.report.summary import summary, words
    from bayesdp.run_ledger import Ledger
    from bayesdp.run_ledger import compose as compute

    with ExitStack() as opened:
        parts = [opened.enter_context(Ledger.open(path, write=False)) for path in ledgers]
        with compute(parts, output) as composed:
            print(words(summary(composed)))


def report(
    ledger: LedgerPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    delta: Delta = 1e-5,
    gamma: Gamma = 0.01,
    title: Annotated[str | None, typer.Option(help="Title of the page, instead of the name of the run.")] = None,
) -> None:
    """Write one page for the person who decides: the statement, who is covered, how each figure was computed.

    The page needs no network and contains nothing about training members.

    Example: bayesdp report run.ledger -o report.html
    """
    from bayesdp.report import write_report
    from bayesdp.run_ledger import Ledger

    with Ledger.open(ledger, write=False) as opened, writing(output):
        write_report(opened, output, delta=delta, gamma=gamma, title=title)
    print(output)
