"""Commands that read the ledger of a run: show, claims, advise, verify, compose, report."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from bayesdp.cautions import about_delta, about_epsilon
from bayesdp.cli.options import (
    All,
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
from bayesdp.cli.output import caution, show_result, writing

if TYPE_CHECKING:
    from bayesdp.claims import RunClaims
    from bayesdp.report import ReleasedFile
    from bayesdp.run_ledger import Ledger


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
        _caution(opened, values["worst_case"]["epsilon"], delta)
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
    all_: All = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print tables for a model card; --output then gets these, too.")
    ] = False,
    json_: Json = False,
    output: Output = None,
) -> None:
    """Print what may be claimed about a run: for everyone, for most people, and what is not covered.

    Example: bayesdp claims run.ledger --shares .5,.99 --markdown
    """
    from bayesdp.run_ledger import Ledger
    from bayesdp.validation import refuse

    if json_ and markdown:
        raise refuse("markdown", True, "one of --json and --markdown")
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
    words = result.to_markdown(all=all_) if markdown else result.statement(all=all_)
    show_result(_claim_values(ledger, result), words, json_, output, words_to_file=markdown)


def advise(
    ledger: LedgerPath,
    delta: Delta = 1e-5,
    gamma: Gamma = 0.01,
    json_: Json = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Also write a page with the picture to this file.", metavar="FILE"),
    ] = None,
) -> None:
    """Print what typical people would lose at other clip bounds that have the same worst case: estimates, no claims.

    Where most gradients are clipped, half of the people lose as much as anyone. The ledger keeps how far above the
    clip bound audit records were, so that other bounds can be compared without training again.

    Example: bayesdp advise run.ledger -o advice.html
    """
    from bayesdp.claims.clip_advice import clip_advice
    from bayesdp.claims.everyone import guaranteed_worst_case
    from bayesdp.claims.record_figures import RecordFigures
    from bayesdp.report.clip_page import clip_words, render_clip_page
    from bayesdp.run_ledger import Ledger
    from bayesdp.validation import probability

    delta, gamma = probability("delta", delta), probability("gamma", gamma)
    if output is not None:
        from bayesdp.report import check_libraries

        check_libraries()  # before the work
    with Ledger.open(ledger, write=False) as opened:
        figures = RecordFigures(opened, delta, guaranteed_worst_case(opened, delta).epsilon)
        advice = clip_advice(opened, figures, gamma)
    if output is not None:
        from bayesdp.whole_file import write_text

        with writing(output):
            write_text(output, render_clip_page(advice, f"The clip bound of {ledger.name}"))
    show_result({"ledger": str(ledger), **advice.to_dict()}, clip_words(advice), json_, None)


def verify(
    ledger: LedgerPath,
    seal: Annotated[
        str | None,
        typer.Option(help="A seal of this ledger that a report prints, or that you noted.", metavar="SEAL"),
    ] = None,
    json_: Json = False,
    output: Output = None,
) -> None:
    """Check a ledger from the first step to the last; if anything was changed, say what, with exit code 2.

    With --seal also check that it is the ledger that the seal was made from, closed or continued since.

    Example: bayesdp verify run.ledger
    """
    from bayesdp.ledger import verify as check
    from bayesdp.run_ledger import Ledger

    with Ledger.open(ledger, write=False) as opened:
        result = check(opened, seal)
    show_result(result.to_dict(), result.statement(), json_, output)


def compose(
    ledgers: Annotated[
        list[Path], typer.Argument(help="Ledgers of successive runs, in their order.", metavar="LEDGER")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the new ledger to this file.", metavar="FILE")],
    json_: Json = False,
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
            values = summary(composed)
            _caution(composed, values["worst_case"]["epsilon"])
    show_result(values, words(values), json_, None)


def report(
    ledger: LedgerPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the page to this file.", metavar="FILE")] = Path(
        "report.html"
    ),
    delta: Delta = 1e-5,
    gamma: Gamma = 0.01,
    title: Annotated[
        str | None, typer.Option(help="Title of the page, instead of the name of the run.", metavar="TEXT")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="The file that is to be released; the page shows its fingerprint.", metavar="FILE"),
    ] = None,
    json_: Json = False,
) -> None:
    """Write one page for the person who decides: the statement, who is covered, how each figure was computed.

    The page needs no network and contains nothing about training members.

    Example: bayesdp report run.ledger -o report.html
    """
    from bayesdp.report import check_libraries, write_report
    from bayesdp.run_ledger import Ledger

    check_libraries()  # before the work
    released = None if model is None else _released(model)
    with Ledger.open(ledger, write=False) as opened:
        result = opened.claims(delta, gamma)
        with writing(output):
            write_report(opened, output, title=title, claims=result, model=released)
        _caution(opened, result.everyone.epsilon, delta)
    show_result({"report": str(output), **_claim_values(ledger, result)}, str(output), json_, None)


def _released(model: Path) -> ReleasedFile:
    """Read the file of a model. Raises InvalidInputError if there is none."""
    from bayesdp.report import ReleasedFile
    from bayesdp.validation import refuse

    try:
        return ReleasedFile.of(model)
    except OSError as error:
        raise refuse("model", str(model), f"a file that can be read ({error.strerror})") from None


def _caution(ledger: Ledger, epsilon: float | None, delta: float | None = None) -> None:
    caution([*about_delta(delta, ledger.training_records), *about_epsilon(epsilon)])


def _claim_values(ledger: Path, claims: RunClaims) -> dict[str, Any]:
    """Return claims as plain values for JSON."""
    return {
        "ledger": str(ledger),
        "statement": claims.overview().to_dict(),
        "claims": [claim.to_dict() for claim in claims],
        "risk": claims.risk.to_dict(),
    }
