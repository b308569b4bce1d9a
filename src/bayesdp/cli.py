"""The command ``bayesdp``. Each command reads its options, calls one function of the library, and prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesdp.version import __version__

app = typer.Typer(
    name="bayesdp",
    help="How private a model is for typical people, not only in the worst case.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

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


@app.command()
def epsilon(
    noise_multiplier: NoiseMultiplier,
    sample_rate: SampleRate,
    steps: Steps,
    delta: Delta = 1e-5,
    json_: Json = False,
    output: Output = None,
) -> None:
    """Worst-case epsilon of a DP-SGD run: the guarantee for everyone.

    Example: bayesdp epsilon --noise-multiplier 1.1 --sample-rate 0.0043 --steps 14062 --delta 1e-5
    """
    from bayesdp.worst_case import epsilon as compute

    result = compute(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=delta)
    _show(result.to_dict(), result.statement(), json_, output)


@app.command()
def calibrate(
    target_epsilon: Annotated[float, typer.Option(help="Worst-case epsilon not to be exceeded.")],
    sample_rate: SampleRate,
    steps: Steps,
    delta: Delta = 1e-5,
    json_: Json = False,
    output: Output = None,
) -> None:
    """The noise multiplier that a target epsilon needs, on the safe side.

    Example: bayesdp calibrate --target-epsilon 2 --sample-rate 0.01 --steps 1000
    """
    from bayesdp.calibration import calibrate as compute

    result = compute(target_epsilon=target_epsilon, sample_rate=sample_rate, steps=steps, delta=delta)
    _show(result.to_dict(), result.statement(), json_, output)


@app.command()
def account(
    norms: Annotated[
        Path,
        typer.Argument(
            help="Gradient norms of audit records before clipping, one row per step, one column per record: "
            ".npy, .csv or .parquet."
        ),
    ],
    clip: Annotated[float, typer.Option(help="Clipping bound C of the gradients.")],
    sample_rate: SampleRate,
    noise_std: Annotated[
        float | None, typer.Option(help="Standard deviation of the noise on the sum; or --noise-multiplier.")
    ] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="The same over the clip; or --noise-std.")] = None,
    delta: Delta = 1e-5,
    gamma: Gamma = 0.01,
    shares: Shares = ".5,.9,.99",
    joint: Joint = False,
    estimator: AverageEstimator = "betting",
    groups: Annotated[
        Path | None, typer.Option(help="Text file with the group of each record, one a line: shares by group.")
    ] = None,
    rows: Rows = 1,
    paper_gamma: Annotated[
        float, typer.Option(help="Failure probability of the paper's estimator, per step and order.")
    ] = 1e-15,
    fixed_exposures: FixedExposures = False,
    ledger: Annotated[Path | None, typer.Option(help="Keep the ledger of the run in this new file.")] = None,
    json_: Json = False,
    output: Output = None,
) -> None:
    """Privacy of a run from recorded norms: for everyone, for shares of the population, on average, and the paper's.

    Example: bayesdp account norms.npy --noise-multiplier 1 --clip 1 --sample-rate 0.01 --delta 1e-5
    """
    from bayesdp.norms_file import read_groups, read_norms

    values = read_norms(norms)  # refused before anything heavy is imported
    from bayesdp.accounting import account as compute

    result = compute(
        values,
        clip=clip,
        sample_rate=sample_rate,
        noise_std=noise_std,
        noise_multiplier=noise_multiplier,
        delta=delta,
        gamma=gamma,
        shares=_numbers("shares", shares),
        paper_gamma=paper_gamma,
        joint=joint,
        estimator=estimator,
        fixed_exposures=fixed_exposures,
        groups=None if groups is None else read_groups(groups),
        rows=rows,
        ledger=ledger,
        track=_progress,
    )
    _show(result.to_dict(), result.statement(), json_, output)


LedgerPath = Annotated[Path, typer.Argument(help="The file of a ledger.")]


@app.command()
def show(
    ledger: LedgerPath,
    delta: Delta = 1e-5,
    private: Annotated[
        bool, typer.Option("--private", help="Also what batches show about training members: not for release.")
    ] = False,
    json_: Json = False,
    output: Output = None,
) -> None:
    """What is in a ledger: steps, noise, rates, exposures of audit records, costs over time.

    Example: bayesdp show run.ledger --json
    """
    from bayesdp.ledger import Ledger
    from bayesdp.ledger.summary import summary, words

    with Ledger.open(ledger, write=False) as opened:
        values = summary(opened, delta=delta, private=private)
    _show(values, words(values), json_, output)


@app.command()
def claims(
    ledger: LedgerPath,
    delta: Delta = 1e-5,
    gamma: Gamma = 0.01,
    shares: Shares = ".5,.9,.99",
    joint: Joint = False,
    estimator: AverageEstimator = "betting",
    fixed_exposures: FixedExposures = False,
    rows: Rows = 1,
    private: Annotated[
        bool, typer.Option("--private", help="Also the estimate from batches of training members: not for release.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables for a model card.")] = False,
    json_: Json = False,
    output: Output = None,
) -> None:
    """What may be claimed about the run of a ledger: for everyone, for shares of the population, on average.

    Example: bayesdp claims run.ledger --shares .5,.99 --markdown
    """
    from bayesdp.claim import statement, to_markdown
    from bayesdp.ledger import Ledger

    with Ledger.open(ledger, write=False) as opened:
        found = opened.claims(
            delta,
            gamma,
            _numbers("shares", shares),
            joint=joint,
            estimator=estimator,
            fixed_exposures=fixed_exposures,
            private=private,
            rows=rows,
        )
    words = to_markdown(found) if markdown else statement(found)
    _show({"ledger": str(ledger), "claims": [one.to_dict() for one in found]}, words, json_, output)


@app.command()
def verify(
    ledger: LedgerPath,
    seal: Annotated[str | None, typer.Option(help="The seal that was noted when the ledger was closed.")] = None,
) -> None:
    """Check a ledger from the first step to the last; exit code 2 and what is wrong if anything was changed.

    Example: bayesdp verify run.ledger
    """
    from bayesdp.ledger import Ledger
    from bayesdp.validation import refuse

    with Ledger.open(ledger, write=False) as opened:
        if seal is not None and seal != opened.seal:
            raise refuse("seal", seal, f"{opened.seal}, the seal of this ledger")
        print(f"{ledger}: complete and unchanged, {opened.steps} steps, seal {opened.seal}")


@app.command()
def compose(
    ledgers: Annotated[list[Path], typer.Argument(help="Ledgers of runs that took place one after the other.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The new ledger.")],
) -> None:
    """One ledger of successive runs on the same people: costs add up, audit records are matched by id.

    Example: bayesdp compose first.ledger second.ledger -o both.ledger
    """
    from bayesdp.ledger import Ledger
    from bayesdp.ledger.composition import compose as compute
    from bayesdp.ledger.summary import summary, words

    parts = [Ledger.open(path, write=False) for path in ledgers]
    with compute(parts, output) as composed:
        print(words(summary(composed)))


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="mnist, fashion-mnist, cifar10, abalone, adult or digits.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with the data; without it the one that BAYESDP_DATA names, or OpenML."),
    ] = None,
    target_epsilon: Annotated[
        float | None, typer.Option(help="Worst-case epsilon not to be exceeded; without it the recipe's own.")
    ] = None,
    delta: Delta = 1e-5,
    seed: Annotated[int | None, typer.Option(help="Decides how rows are split; 0 if not given.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Train so many times, with seeds 0, 1, ...")] = None,
    reproducible: Annotated[
        bool, typer.Option("--reproducible", help="Noise from the seed too: an experiment, not for release.")
    ] = False,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also train without noise: its accuracy is not private.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    json_: Json = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="New folder for ledger, model, statement and report.")
    ] = None,
) -> None:
    """Train a private model by a recipe, from raw data to the statement.

    Example: bayesdp train adult --data data -o adult-model
    """
    from bayesdp.validation import refuse

    if seeds is not None and resume:
        raise refuse("resume", True, "one run to resume, without --seeds")
    if seeds is not None and seed is not None:
        raise refuse("seed", seed, "one of --seed and --seeds")
    from bayesdp.recipes import training

    options: dict[str, Any] = {
        "data": data,
        "target_epsilon": target_epsilon,
        "delta": delta,
        "reproducible": reproducible,
        "baseline": baseline or None,
        "output": output,
        "track": _progress,
    }
    try:
        if seeds is not None:
            trained = training.train_several(recipe, seeds=seeds, **options)
        else:
            trained = training.train(recipe, seed=seed or 0, resume=resume, **options)
    except KeyboardInterrupt:
        if output is not None and seeds is None:
            print(f"Interrupted. The same command with --resume goes on with the run in {output}.", file=sys.stderr)
        raise
    _show(trained.to_dict(), trained.statement(), json_, None)


@app.command()
def report(
    ledger: LedgerPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    delta: Delta = 1e-5,
    gamma: Gamma = 0.01,
    title: Annotated[str | None, typer.Option(help="In place of the name of the run.")] = None,
) -> None:
    """Write one page for whoever decides: the statement, who is covered, how each figure came about.

    The page needs no network and holds nothing about training members.

    Example: bayesdp report run.ledger -o report.html
    """
    from bayesdp.ledger import Ledger
    from bayesdp.report import write_report

    with Ledger.open(ledger, write=False) as opened, _writing(output):
        write_report(opened, output, delta=delta, gamma=gamma, title=title)
    print(output)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for model, ledger and report.")] = Path("demo"),
    serve: Annotated[bool, typer.Option("--serve", help="Then show the report on this machine, in a browser.")] = False,
    port: Annotated[int, typer.Option(help="With --serve; 0 takes any that is free.")] = 0,
) -> None:
    """Train a small private model on digits with Opacus, print its statement and write its report."""
    from bayesdp import demo as example

    print(example.run(output, track=_progress), flush=True)
    if serve:
        example.serve(output / "report.html", port, _open_browser)


@app.command()
def reproduce(
    target: Annotated[
        str, typer.Argument(help="composition, sigma-epsilon, lambda-epsilon, motivation, table1, leakage, all")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for JSON and pictures.")] = Path(
        "reproduction"
    ),
    data: Annotated[
        Path | None, typer.Option(help="Folder with the data sets; otherwise BAYESDP_DATA or OpenML.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of synthetic data, of initial weights and of noise.")] = 0,
    small: Annotated[bool, typer.Option("--small", help="A few steps, to try it.")] = False,
) -> None:
    """Compute an experiment of the paper again: JSON and a picture, the published value beside ours.

    Example: bayesdp reproduce lambda-epsilon
    """
    from bayesdp.reproduce import run as again

    if not small:
        print(f"This takes {again.estimate(again.chosen(target))} on two cores.", file=sys.stderr)
    for name, found in again.reproduce(target, output, seed=seed, small=small, data=data, track=_progress).items():
        print(f"{output / name}.json\n{output / name}.png")
        for verdict in found["verdicts"]:
            print(again.Verdict(**verdict).lines())


def _version(wanted: bool) -> None:
    if wanted:
        print(f"bayesdp {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """How private a model is for typical people, not only in the worst case."""


def _show(values: dict[str, Any], words: str, as_json: bool, output: Path | None) -> None:
    text = json.dumps(values, indent=2, allow_nan=False)
    if output is not None:
        from bayesdp.whole_file import write_text

        with _writing(output):
            write_text(output, text + "\n")
    print(text if as_json else words)


@contextmanager
def _writing(path: Path) -> Generator[None]:
    """What the system says about a file that is being written becomes one line."""
    from bayesdp.validation import refuse

    try:
        yield
    except OSError as error:
        raise refuse("output", str(path), f"a file that can be written ({error.strerror})") from None


def _open_browser(address: str) -> None:
    import webbrowser

    print(f"{address} (Ctrl-C ends)", flush=True)
    webbrowser.open(address)


def _numbers(name: str, text: str) -> list[float]:
    from bayesdp.validation import refuse

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise refuse(name, text, "numbers separated by commas") from None


def _progress(items: Sequence[Any], what: str | Callable[[], str] = "Accounting") -> Iterable[Any]:
    """A progress bar on a terminal's stderr, for long work only; ``what`` may change as it goes on."""
    if (what == "Accounting" and len(items) < 500) or not sys.stderr.isatty():
        return items
    return _with_bar(items, what)


def _with_bar(items: Sequence[Any], what: str | Callable[[], str]) -> Iterable[Any]:
    from rich.console import Console
    from rich.progress import Progress

    def text() -> str:
        return what if isinstance(what, str) else what()

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text(), total=len(items))
        for item in items:
            yield item
            bar.update(task, advance=1, description=text())


_ParserError: Any = typer.BadParameter.__mro__[2]  # ClickException, which typer does not export


def main() -> None:
    """Run the command; bad input ends in one line on stderr and exit code 2."""
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    try:
        code = typer.main.get_command(app).main(standalone_mode=False)
    except _ParserError as error:
        _fail(_parser_words(error, sys.argv))
    except ValueError as error:
        from bayesdp.validation import InvalidInputError

        if not isinstance(error, InvalidInputError):
            raise
        _fail(str(error))
    except OSError as error:  # a full disk, a folder that may not be written
        _fail(f"file={error.filename or ''}: {error.strerror or error}")
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _parser_words(error: Any, arguments: Sequence[str]) -> str:
    """The parser's complaint in one line, with name=value where a value was given."""
    message = " ".join(error.format_message().split())
    parameter: Any = getattr(error, "param", None)
    for option in getattr(parameter, "opts", ()):
        for given, following in reversed(list(zip(arguments, [*arguments[1:], ""], strict=True))):
            value = following if given == option else given.removeprefix(f"{option}=")
            if given == option or value != given:
                return f"{parameter.name.rstrip('_')}={value}: {message}"
    return message


def _fail(message: str) -> None:
    print(f"bayesdp: {message}", file=sys.stderr)
    sys.exit(2)
