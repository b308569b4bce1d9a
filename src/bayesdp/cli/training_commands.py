"""Commands that train models: train, demo, reproduce."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesdp.cautions import about_target
from bayesdp.cli.options import Data, Delta, Json
from bayesdp.cli.output import caution, progress, show_result
from bayesdp.progress import LiveText


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="mnist, fashion-mnist, cifar10, abalone, adult, sst2 or digits; mnist-network or cifar10-network for "
            "a network from scratch, without public features.",
            metavar="RECIPE",
        ),
    ],
    data: Data = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a transformer, for sst2; by default the one that BAYESDP_MODEL names.", metavar="FOLDER"
        ),
    ] = None,
    target_epsilon: Annotated[
        float | None,
        typer.Option(
            help="The worst-case epsilon that must not be exceeded; by default the recipe's own.", metavar="NUMBER"
        ),
    ] = None,
    delta: Delta = 1e-5,
    aim: Annotated[
        str,
        typer.Option(
            help="For whom settings were chosen: everyone (the most accurate model), or typical (the same worst case, "
            "the least epsilon for half of the people, and less accuracy: the statement says how much; mnist, cifar10, "
            "adult).",
            metavar="everyone|typical",
        ),
    ] = "everyone",
    tune: Annotated[
        float | None,
        typer.Option(
            help="Choose settings privately, within the target: train a random number of times, NUMBER on average, "
            "each with settings drawn at random, and keep the run with the best private score.",
            metavar="NUMBER",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed for the noise of --reproducible; 0 by default.", metavar="NUMBER")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Train this many times, with seeds 0, 1, ...", metavar="COUNT")
    ] = None,
    reproducible: Annotated[
        bool,
        typer.Option("--reproducible", help="Draw the noise from the seed, too: an experiment, not for release."),
    ] = False,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also train without noise; the accuracy of that is not private.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted run in the folder.")] = False,
    json_: Json = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the ledger, model, statement and report to this new folder.", metavar="FOLDER"
        ),
    ] = None,
) -> None:
    """Train a private model with a recipe, from raw data to the statement.

    Example: bayesdp train adult --data data -o adult-model
    """
    from bayesdp.validation import refuse

    if seeds is not None and resume:
        raise refuse("resume", True, "one run to resume, without --seeds")
    if seeds is not None and seed is not None:
        raise refuse("seed", seed, "one of --seed and --seeds")
    from bayesdp.recipes import training

    waiting = [target_epsilon]

    def track(items: Sequence[Any], what: str | LiveText) -> Iterable[Any]:
        """Show progress, which begins after all input was checked; before the first bar comes the caution."""
        if waiting:
            caution(about_target(waiting.pop()))
        return progress(items, what)

    options: dict[str, Any] = {
        "data": data,
        "model": model,
        "target_epsilon": target_epsilon,
        "delta": delta,
        "aim": aim,
        "tune": tune,
        "reproducible": reproducible,
        "baseline": baseline or None,
        "output": output,
        "track": track,
    }
    try:
        if seeds is not None:
            trained = training.train_several(recipe, seeds=seeds, **options)
        else:
            trained = training.train(recipe, seed=seed or 0, resume=resume, **options)
    except KeyboardInterrupt:
        if output is not None and seeds is None:
            print(training.after_interruption(output, resume), file=sys.stderr)
        raise
    values = trained.to_dict()
    if output is None:
        show_result(values, trained.statement(), json_, None)
    else:
        files = training.written_files(output) if seeds is None else {"folder": str(output.resolve())}
        show_result({**values, "files": files}, f"{trained.statement()}\n\n{_files(files)}", json_, None)


def _files(files: dict[str, str]) -> str:
    return "\n".join(f"{name.capitalize()}: {path}" for name, path in files.items())


def demo(
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Write the model, ledger and report to this folder.", metavar="FOLDER"),
    ] = Path("demo"),
    serve: Annotated[
        bool, typer.Option("--serve", help="Then serve the report on this machine and open a browser.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port for --serve; 0 takes any free one.", metavar="NUMBER")] = 0,
    json_: Json = False,
) -> None:
    """Train a small private model on digits with Opacus, print its statement and write its report.

    Example: bayesdp demo -o demo --serve
    """
    from bayesdp.recipes import demo as example
    from bayesdp.recipes.training import written_files

    try:
        trained = example.run(output, track=progress)
    except KeyboardInterrupt:
        print("Interrupted. The same command goes on.", file=sys.stderr)
        raise
    files = written_files(output)
    show_result({**trained.to_dict(), "files": files}, f"{trained.statement()}\n\n{_files(files)}", json_, None)
    sys.stdout.flush()
    if serve:
        example.serve(Path(files["report"]), port, lambda address: _open_browser(address, quiet=json_))


def reproduce(
    target: Annotated[
        str,
        typer.Argument(
            help="composition, sigma-epsilon, lambda-epsilon, motivation, table1, recipes, leakage, all",
            metavar="EXPERIMENT",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write JSON and pictures to this folder.", metavar="FOLDER")
    ] = Path("reproduction"),
    data: Data = None,
    seed: Annotated[int, typer.Option(help="Seed of synthetic data, initial weights and noise.", metavar="NUMBER")] = 0,
    small: Annotated[
        bool, typer.Option("--small", help="Take a few steps only, to try it out; this says nothing about the paper.")
    ] = False,
    json_: Json = False,
) -> None:
    """Repeat an experiment of the paper: JSON and a picture, with the published values beside ours.

    Example: bayesdp reproduce lambda-epsilon
    """
    from bayesdp.reproduce.experiment import Verdict
    from bayesdp.reproduce.targets import prepare

    prepared = prepare(target, output, seed=seed, small=small, data=data, track=progress)
    if not small:
        print(f"This takes {prepared.estimate()} on two cores.", file=sys.stderr)
    results: dict[str, Any] = {}
    for name, result in prepared:
        results[name] = result
        if not json_:
            verdicts = [Verdict(**verdict).lines() for verdict in result["verdicts"]]
            print(prepared.path(name, "json"), prepared.path(name, "png"), *verdicts, sep="\n", flush=True)
    if json_:
        print(json.dumps(results, indent=2, allow_nan=False))


def _open_browser(address: str, *, quiet: bool) -> None:
    import webbrowser

    print(f"{address} (Ctrl-C ends)", flush=True, file=sys.stderr if quiet else sys.stdout)
    webbrowser.open(address)
