"""Commands that need no ledger: epsilon, calibrate, account."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from bayesdp.cautions import about_delta, about_epsilon, about_target
from bayesdp.cli.options import (
    All,
    AverageEstimator,
    Delta,
    ExPostForm,
    FixedExposures,
    Gamma,
    Joint,
    Json,
    Looks,
    NoiseMultiplier,
    Output,
    Rows,
    SampleRate,
    Sampling,
    Shares,
    Steps,
    numbers,
)
from bayesdp.cli.output import caution, progress, show_result


def epsilon(
    noise_multiplier: NoiseMultiplier,
    sample_rate: SampleRate,
    steps: Steps,
    delta: Delta = 1e-5,
    sampling: Sampling = "poisson",
    json_: Json = False,
    output: Output = None,
) -> None:
    """Compute the worst-case epsilon of a DP-SGD run: the guarantee for everyone.

    \b
    Example: bayesdp epsilon --noise-multiplier 1.1 --sample-rate 0.0043 \\
             --steps 14062 --delta 1e-5
    Example: bayesdp epsilon --noise-multiplier 2 --sample-rate 0.01 \\
             --steps 1000 --sampling fixed-size
    """
    from bayesdp.guarantees.sampling_laws import epsilon as compute

    result = compute(
        noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=delta, sampling=sampling
    )
    caution([*about_delta(result.delta, None), *about_epsilon(result.epsilon)])
    show_result(result.to_dict(), result.statement(), json_, output)


def calibrate(
    sample_rate: SampleRate,
    steps: Steps,
    target_epsilon: Annotated[
        float | None,
        typer.Option(
            help="The worst-case epsilon that must not be exceeded; or give --tpr and --fpr.", metavar="NUMBER"
        ),
    ] = None,
    tpr: Annotated[
        float | None,
        typer.Option(help="The true-positive rate that no attacker may exceed, above --fpr.", metavar="NUMBER"),
    ] = None,
    fpr: Annotated[
        float | None,
        typer.Option(help="The false-positive rate that the attacker accepts, such as 0.01.", metavar="NUMBER"),
    ] = None,
    delta: Delta = 1e-5,
    json_: Json = False,
    output: Output = None,
) -> None:
    """Find the noise multiplier that a target needs, rounded to the safe side.

    The target is a worst-case epsilon, or the share of people in the data whom an attacker may find at a given rate of
    false alarms.

    \b
    Example: bayesdp calibrate --target-epsilon 2 --sample-rate 0.01 \\
             --steps 1000
    Example: bayesdp calibrate --tpr 0.05 --fpr 0.01 --sample-rate 0.01 \\
             --steps 1000
    """
    from bayesdp.validation import refuse

    if target_epsilon is not None and tpr is None and fpr is None:
        from bayesdp.guarantees.calibration import calibrate as compute

        result = compute(target_epsilon=target_epsilon, sample_rate=sample_rate, steps=steps, delta=delta)
    elif target_epsilon is None and tpr is not None and fpr is not None:
        from bayesdp.guarantees.risk_calibration import calibrate_risk

        result = calibrate_risk(tpr=tpr, fpr=fpr, sample_rate=sample_rate, steps=steps, delta=delta)
    else:
        given = {"target_epsilon": target_epsilon, "tpr": tpr, "fpr": fpr}
        names = ", ".join(name for name, value in given.items() if value is not None)
        raise refuse("target", names or None, "either --target-epsilon, or --tpr and --fpr")
    caution([*about_delta(delta, None), *about_target(target_epsilon)])
    show_result(result.to_dict(), result.statement(), json_, output)


def account(
    norms: Annotated[
        Path,
        typer.Argument(
            help="Gradient norms of audit records before clipping, as .npy, .csv or .parquet: one row per step, "
            "one column per record.",
            metavar="NORMS",
        ),
    ],
    clip: Annotated[float, typer.Option(help="The bound to which gradients were clipped.", metavar="NUMBER")],
    sample_rate: SampleRate,
    noise_std: Annotated[
        float | None,
        typer.Option(help="Standard deviation of the noise on the sum; or give --noise-multiplier.", metavar="NUMBER"),
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="The noise divided by the clip; or give --noise-std.", metavar="NUMBER")
    ] = None,
    delta: Delta = 1e-5,
    gamma: Gamma = 0.01,
    shares: Shares = ".5,.9,.99",
    joint: Joint = False,
    estimator: AverageEstimator = "betting",
    groups: Annotated[
        Path | None,
        typer.Option(
            help="Text file with the group of each record, one per line, for shares of each group.", metavar="FILE"
        ),
    ] = None,
    rows: Rows = 1,
    form: ExPostForm = "hockey-stick",
    looks: Looks = 1,
    paper_gamma: Annotated[
        float, typer.Option(help="Failure probability of the paper's estimator, at each order.", metavar="NUMBER")
    ] = 1e-15,
    fixed_exposures: FixedExposures = False,
    planned_steps: Annotated[
        int | None,
        typer.Option(
            help="Steps that were planned before the run began: the claim for everyone is that of the plan.",
            metavar="COUNT",
        ),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Keep the ledger of the run in this new file.", metavar="FILE")
    ] = None,
    audit_used_for: Annotated[
        str | None,
        typer.Option(
            help="What the audit records were used for besides the audit, such as 'learning rate': claims that rest on "
            "them are then estimates.",
            metavar="TEXT",
        ),
    ] = None,
    all_: All = False,
    json_: Json = False,
    output: Output = None,
) -> None:
    """Account for a run from recorded norms: for everyone, for shares of the population, and on average.

    \b
    Example: bayesdp account norms.npy --noise-multiplier 1 --clip 1 \\
             --sample-rate 0.01 --delta 1e-5
    """
    from bayesdp.norms_file import read_groups, read_norms

    values = read_norms(norms)  # refused before anything heavy is imported
    from bayesdp.claims.account import account as compute

    result = compute(
        values,
        clip=clip,
        sample_rate=sample_rate,
        noise_std=noise_std,
        noise_multiplier=noise_multiplier,
        delta=delta,
        gamma=gamma,
        shares=numbers("shares", shares),
        paper_gamma=paper_gamma,
        joint=joint,
        estimator=estimator,
        fixed_exposures=fixed_exposures,
        groups=None if groups is None else read_groups(groups),
        rows=rows,
        form=cast(Any, form),  # checked there
        looks=looks,
        planned_steps=planned_steps,
        ledger=ledger,
        audit_used_for=audit_used_for,
        track=progress,
    )
    show_result(result.to_dict(), result.statement(all=all_), json_, output)
