"""Claims from a table of recorded norms: the function behind ``bayesdp account``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bayesdp import validation
from bayesdp.claims.ex_post import Form
from bayesdp.claims.order_layout import plan_settings
from bayesdp.claims.plan import Plan
from bayesdp.claims.request import DEFAULT_SHARES, ClaimRequest
from bayesdp.claims.run_claims import RunClaims, compute_claims
from bayesdp.ledger import MEMORY, LedgerFile, StoredLedger, checked_path, new_settings
from bayesdp.norms_file import check_norms
from bayesdp.progress import Progress
from bayesdp.validation import refuse


def account(
    norms: Any,
    *,
    clip: float,
    sample_rate: float,
    noise_std: float | None = None,
    noise_multiplier: float | None = None,
    delta: float = 1e-5,
    gamma: float = 0.01,
    shares: Iterable[float] = DEFAULT_SHARES,
    paper_gamma: float = 1e-15,
    joint: bool = False,
    estimator: str = "betting",
    fixed_exposures: bool = False,
    groups: Sequence[str] | None = None,
    rows: int = 1,
    planned_steps: int | None = None,
    form: Form = "hockey-stick",
    looks: int = 1,
    ledger: str | Path | None = None,
    audit_used_for: str | None = None,
    track: Progress = iter,
) -> RunClaims:
    """Return the claims of a run, given the gradient norms of its audit records before clipping, [steps, records].

    The same steps recorded in a ``Ledger`` give the same claims, figure for figure: every row of ``norms`` goes into a
    ledger, and the claims are read from it.

    Args:
        norms: Anything that becomes an array [steps, records] of finite numbers of at least 0.
        clip: The bound to which gradients were clipped.
        sample_rate: The probability with which a record is in a batch (Poisson sampling), in (0, 1].
        noise_std: The standard deviation of the noise on the sum of clipped gradients; or
        noise_multiplier: ``noise_std`` over ``clip``. Exactly one of the two must be given.
        paper_gamma: The failure probability of the paper's estimator, at each order.
        planned_steps: How many steps were planned before the run began, with these settings. The claim for everyone is
            then that of the plan, proved although ``norms`` may have fewer steps, for whatever reason.
        groups: The name of each record's group, for claims about shares of every group.
        ledger: The path of a new ledger file; by default the ledger is in memory only.
        audit_used_for: What the audit records were used for besides the audit, as in ``Ledger.create``.
        track: A progress bar around the steps.

    ``delta``, ``gamma``, ``shares``, ``joint``, ``estimator``, ``fixed_exposures``, ``rows``, ``form`` and ``looks``
    are explained in ``Ledger.claims``.

    Raises:
        InvalidInputError: For bad input, before anything is written.
        LedgerError: If there is a file at ``ledger`` already.
        StorageError: If the ledger cannot be written.
    """
    steps = check_norms(norms)
    clip = validation.positive("clip", clip)
    rate = validation.sample_rate(sample_rate)
    noise = _noise(clip, noise_std, noise_multiplier)
    request = ClaimRequest(
        delta=delta,
        gamma=gamma,
        shares=shares,
        joint=joint,
        estimator=estimator,
        fixed_exposures=fixed_exposures,
        rows=rows,
        form=form,
        looks=looks,
        paper_gamma=paper_gamma,
    )
    validation.noise_multiplier(noise / clip)
    groups = None if groups is None else validation.listed("groups", groups, "the name of a group for each record")
    if groups is not None and len(groups) != steps.shape[1]:
        raise refuse("len(groups)", len(groups), f"a group for each of the {steps.shape[1]} records")
    plan = None
    if planned_steps is not None:
        planned = validation.count("planned_steps", planned_steps, minimum=1)
        plan = Plan(steps=planned, noise_std=noise, sample_rate=rate, clip=clip)
    settings = new_settings(audit_groups=groups, audit_used_for=audit_used_for, **plan_settings(plan))
    file = LedgerFile.create(MEMORY if ledger is None else checked_path(ledger), settings)
    with StoredLedger(file) as kept:
        for row in track(list(steps)):
            kept.step(noise_std=noise, sample_rate=rate, clip=clip, audit=row, source="account")
        return compute_claims(kept, request)


def _noise(clip: float, noise_std: float | None, noise_multiplier: float | None) -> float:
    if (noise_std is None) == (noise_multiplier is None):
        given = "neither" if noise_std is None else "both"
        raise refuse("noise_std, noise_multiplier", given, "exactly one of them")
    if noise_std is not None:
        return validation.noise_std(noise_std)
    return validation.noise_std(validation.noise_multiplier(noise_multiplier) * clip)
