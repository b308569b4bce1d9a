"""Begin to watch a training run with Opacus: check what is given, and put a ``Watch`` around it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

from opacus.grad_sample import AbstractGradSampleHooks
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
    FSDPOptimizerFastGradientClipping,
    SimpleDistributedPerLayerOptimizer,
)
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import DPLossFastGradientAdaptiveClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

from bayesdp import validation
from bayesdp.claims.budget import Budget
from bayesdp.claims.plan import Plan, declared_plan
from bayesdp.claims.stopping import StopWhen
from bayesdp.loggers import LiveCurves, dashboard
from bayesdp.opacus.accountant import AccountantHook
from bayesdp.opacus.audit import AuditNorms, AuditRecords
from bayesdp.opacus.audit_loss import separate_loss
from bayesdp.opacus.audit_measurement import AuditMeasurement
from bayesdp.opacus.clipping import AdaptiveClipping, FlatClipping, PerLayerClipping
from bayesdp.opacus.collating import check_collated_by_itself
from bayesdp.opacus.coupling import check_layers
from bayesdp.opacus.earlier_sources import EarlierSources
from bayesdp.opacus.earlier_steps import EarlierSteps
from bayesdp.opacus.ghost_clipping import GhostClipping
from bayesdp.opacus.open_sum import check_between_sums
from bayesdp.opacus.rank_audit import share_of_rank
from bayesdp.opacus.rank_draws import check_same_data
from bayesdp.opacus.rank_steps import OverRanks
from bayesdp.opacus.ranks import DISTRIBUTED, LedgerOfRankZero, Ranks, RanksError, heard_by_all_ranks
from bayesdp.opacus.run_names import new_ledger_path
from bayesdp.opacus.sampling import Sampling
from bayesdp.opacus.sharded_audit import ShardedAuditRecords
from bayesdp.opacus.sharded_clipping import ShardedGhostClipping
from bayesdp.opacus.trained_rows import check_one_row_each
from bayesdp.opacus.unsupported import check_supported
from bayesdp.opacus.untrained import check_trained
from bayesdp.opacus.watched_run import Watch
from bayesdp.report import check_libraries
from bayesdp.report.live import LiveView
from bayesdp.report.views import Views
from bayesdp.run_ledger import Ledger
from bayesdp.validation import count, refuse
from bayesdp.whole_file import checked_place

_CLIPPING: dict[type, type[FlatClipping]] = {
    DPOptimizer: FlatClipping,
    DPPerLayerOptimizer: PerLayerClipping,
    AdaClipDPOptimizer: AdaptiveClipping,
    DPOptimizerFastGradientClipping: GhostClipping,
    DistributedDPOptimizer: FlatClipping,
    DistributedDPOptimizerFastGradientClipping: GhostClipping,
    FSDPOptimizerFastGradientClipping: ShardedGhostClipping,
}
_DECLARED = ("unit", "audit_ids", "audit_groups", "data", "metadata", "keep_norms", "gate")


@heard_by_all_ranks
def watch(
    model: Any,
    optimizer: Any,
    data_loader: Any,
    *,
    ledger: Ledger | str | Path | None,
    audit: Any = None,
    loss: Any = None,
    every: int = 1,
    between: Literal["clip", "last"] = "clip",
    audit_batch: int = 128,
    budget: StopWhen | Budget | None = None,
    live: bool = False,
    log: Any = None,
    steps: int | None = None,
    audit_used_for: str | None = None,
    random_draws: Literal["estimate", "clip"] = "estimate",
    report: str | Path | None = None,
    delta: float = 1e-5,
    new_world_size: bool = False,
    **declared: Any,
) -> Watch:
    """Record every step of a run with Opacus; call it once, with what ``make_private`` returned, before training.

    Formal guarantees: a step is in the ledger, on disk, before its update is applied. A step that cannot be accounted
    is refused with InvalidInputError, by this call or by the step that shows it, before anything of it is released; the
    parameters then stay as they were. (On a GPU norms are fetched with the next step, so that no step waits for the
    device: an audit norm that is not finite is then refused one step later, and its step stays at the clip bound.)
    Training is the same to the last bit as without ``watch``, except that a sum left unfinished by a ``break`` out of a
    virtual batch is dropped, and that a training record whose gradient is not finite contributes nothing.

    In a process group (DDP, FSDP2) all ranks call this with the same arguments. The batches of all ranks are one step,
    which rank 0 records before any rank updates; a rank that cannot go on stops all of them, with RanksError.

    Arguments:
        ledger: Where to record: an open ``Ledger``, or the path of a new one, which ``Watch.close`` closes. ``{n}`` in
            its name becomes the next number, so that a script can be run again. Steps that the engine's accountant has
            counted and the ledger does not contain are charged to it first. Of several processes rank 0 has it; to
            continue one, ``Ledger.open(path) if rank == 0 else None``.
        audit: People from the same population who are not trained on, as the loader yields records: (inputs, targets)
            or a dictionary, tensors with one row for each person; a data set, which is collated as the loader does it;
            or a loader with a collate function of its own. Or an ``AuditNorms``. Without it there is the worst case
            only.
        loss: The loss that is trained with: the criterion for (inputs, targets), or a function ``loss(model, batch)``
            that returns one loss for each record. Not needed for a dictionary and a model that returns its loss
            (``model(**batch).loss``). Give the object that the loop calls: if the loop scales what it returns, norms of
            audit records are scaled, too. A function cannot be followed; claims then name it as an assumption, unless
            the loop gives each loss to ``Watch.note_loss``. Without audit, a criterion is still refused if it couples
            records.
        every: Audit norms are computed at the first step and at every ``every``-th after it.
        between: At the other steps audit records are charged at the clip bound ("clip": a bound still), or as at the
            last step with norms ("last": claims that rest on them are then estimates).
        audit_batch: How many audit records go through the model at once.
        budget: ``StopWhen`` of the same ledger; for the path of a new one a ``Budget``, which is then declared in it
            and is the claim for everyone. Before the step that would exceed it, training ends: the loader yields no
            more batches, further steps change nothing, and BudgetReachedWarning is issued once.
        live: Whether to show on a terminal what the run has cost so far.
        log: Where to draw epsilon against steps while training goes on, and to leave statement and page at its end: a
            SummaryWriter of TensorBoard, the run of ``mlflow.start_run()`` or of ``wandb.init()``; ``bayesdp.loggers``.
        steps: How many times ``optimizer.step`` will update the model at most: the plan of the run, declared with the
            noise, rate and clip bound that Opacus has now. The claim for everyone is then that of the plan, proved
            whenever training ends. For a ledger that exists, declare it in ``Ledger.create(plan=...)``. If an update
            adds up several batches of a shuffled loader, these count; k draws of Poisson sampling in an update are k
            steps with noise smaller by sqrt(k), to be declared in ``Ledger.create``.
        audit_used_for: What the audit records were used for besides the audit, in words, as in ``Ledger.create``:
            claims that rest on them are then estimates.
        random_draws: What to do if training uses random numbers that are not released (dropout, augmentation), so that
            an audit record's norm is that of one draw: keep the norms and call shares estimates ("estimate"), or charge
            audit records at the clip bound ("clip": what is claimed for shares is then a bound, that for everyone).
            ``Watch.random_draws`` says what was found.
        report: Where to write the page about the run when it is closed. The statement is then printed too. Both are
            left out if the ``with`` block ends with an exception.
        delta: The delta of statement, report and live view.
        new_world_size: Whether a run that goes on may have another number of processes than its ledger's last step.
        declared: Anything else that ``Ledger.create`` takes, for the path of a new ledger: ``unit``, ``audit_ids``,
            ``audit_groups``, ``data``, ``metadata``, ``keep_norms``, ``gate``.

    Raises InvalidInputError for what cannot be accounted (also if norms of audit records are not finite, or turn out to
    depend on the other records of a batch, in a dry run; if too little is known of earlier steps to charge them; or if
    the plan of a ledger without steps does not allow the settings that Opacus has now), and LedgerError if the ledger
    cannot be used: its path is taken, or a checkpoint was loaded whose steps it does not contain; RanksError if another
    rank raised.
    """
    check_layers(model)
    check_supported(model)
    validation.probability("delta", delta)
    if report is not None or log is not None:
        check_libraries()  # before training, not after it
    if log is not None:
        dashboard(log)
    if between not in ("clip", "last"):
        raise refuse("between", between, "'clip' or 'last'")
    if random_draws not in ("estimate", "clip"):
        raise refuse("random_draws", random_draws, "'estimate' or 'clip'")
    _check_declared(declared, ledger)
    new_budget = budget if isinstance(budget, Budget) else None
    if new_budget is not None and isinstance(ledger, Ledger):
        raise refuse("budget", budget, "StopWhen of the ledger that is given; declare it in Ledger.create(budget=...)")
    if new_budget is None and budget is not None and getattr(budget, "ledger", None) is not ledger:
        raise refuse("budget", budget, "StopWhen of the ledger that is given")
    if float(getattr(optimizer, "noise_multiplier", 1.0)) <= 0:
        raise refuse("noise_multiplier", optimizer.noise_multiplier, "noise above 0: without it there is no privacy")
    ranks = Ranks.of(optimizer)
    if report is not None and ranks.has_ledger:
        checked_place("report", report)
    if not ranks.has_ledger:
        ledger = None
    elif ledger is None:
        raise refuse("ledger", None, "a path or an open Ledger")
    elif not isinstance(ledger, Ledger):
        ledger = new_ledger_path(ledger)
    sampling = Sampling(data_loader, ranks if isinstance(optimizer, DISTRIBUTED) else None)
    clipping = clipping_of(model, optimizer, sampling, loss)
    check_same_data(ranks, data_loader.dataset, audit)
    if (ledger.unit if isinstance(ledger, Ledger) else declared.get("unit")) == "person":
        check_one_row_each(data_loader.dataset)
    check_collated_by_itself(data_loader, 0 if model.batch_first else 1)
    records = audit
    if audit is not None and not isinstance(audit, AuditNorms):
        of_model = ShardedAuditRecords if isinstance(clipping, ShardedGhostClipping) else AuditRecords
        records = of_model(audit, loss, model, data_loader, clipping, every=every, audit_batch=audit_batch)
        records.check()
    elif isinstance(loss, nn.Module | DPLossFastGradientClipping):
        separate_loss(loss, model.loss_reduction, None)
    check_between_sums(optimizer, clipping)
    earlier = EarlierSteps(optimizer, sampling, clipping, len(data_loader))
    if ranks.has_ledger:
        planned = steps is not None or new_budget is not None
        earlier.check(ledger if isinstance(ledger, Ledger) else None, planned=planned)
    sources = EarlierSources.of(ledger)
    sources.check_same_people(audit)
    sources.check_world_size(ranks, may_change=new_world_size)
    if isinstance(ledger, Ledger):
        _check_records(ledger, records)
        _check_plan(ledger, _plan(1, data_loader, sampling, clipping))
    elif ranks.has_ledger:
        _check_no_checkpoint(optimizer)
    if steps is not None and isinstance(ledger, Ledger):
        raise refuse(
            "steps", steps, "the path of a new ledger; of one that exists Ledger.create(plan=...) has the plan"
        )
    if audit_used_for is not None and isinstance(ledger, Ledger):
        expected = "the path of a new ledger; for one that exists, declare it in Ledger.create(audit_used_for=...)"
        raise refuse("audit_used_for", audit_used_for, expected)
    share = share_of_rank(records, ranks)
    if isinstance(share, AuditRecords):
        share.check_finite()
    measured = None if share is None else AuditMeasurement(share, model, data_loader, between, random_draws)
    owned = not isinstance(ledger, Ledger)
    plan = None if steps is None else _plan(steps, data_loader, sampling, clipping)
    budgeted = any(ranks.agree(budget is not None))  # and every rank is ready: only now a file may appear
    if ledger is None:
        opened = LedgerOfRankZero(ranks.rank)
    elif isinstance(ledger, Ledger):
        opened = ledger
    else:
        opened = Ledger.create(
            ledger,
            plan=plan,
            budget=new_budget,
            audit_used_for=audit_used_for,
            training_records=sampling.records,
            **declared,
        )
    stopping = budget if isinstance(budget, StopWhen) else None
    if new_budget is not None and isinstance(opened, Ledger):
        stopping = StopWhen(opened)
    curves = LiveCurves(opened, log, delta=delta) if log is not None and isinstance(opened, Ledger) else None
    view = LiveView(opened, delta=delta) if live and isinstance(opened, Ledger) else None
    views = Views([each for each in (view, curves) if each is not None])
    over_ranks = OverRanks(ranks, sampling, clipping, measured, opened, sources, budgeted=budgeted)
    watched = Watch(
        model, optimizer, sampling, clipping, opened, measured, earlier, stopping, over_ranks, owned=owned, live=views
    )
    try:
        ranks.agree()
    except RanksError:
        watched.close()
        raise
    if ranks.has_ledger:
        sampling.compare_with_accountant(
            earlier.accountant, float(optimizer.noise_multiplier), steps, len(data_loader), delta
        )
    if report is not None or curves is not None:
        watched.at_end = lambda: _tell(watched, delta, None if report is None else Path(report), curves)
    return watched


def _tell(watched: Watch, delta: float, report: Path | None, curves: LiveCurves | None) -> None:
    """Print and write what the user asked for at the end of a run."""
    claims = watched.claims(delta)
    if report is not None:
        print(claims.statement())
        watched.ledger.report(report, claims=claims)
        print(f"Report: {report.resolve()}")
    if curves is not None:
        curves.finish(claims)


def _plan(steps: int, data_loader: Any, sampling: Sampling, clipping: FlatClipping) -> Plan:
    """Return the plan of so many updates with the settings that Opacus has now; of a shuffled loader, of its epochs."""
    updates = count("steps", steps, minimum=1)
    epochs = -(-updates // max(len(data_loader), 1))
    return Plan(
        steps=updates if sampling.rate is not None else epochs,
        noise_std=clipping.noise_std(),
        sample_rate=sampling.accounted_rate(sampling.rate),
        clip=math.hypot(clipping.planned_clip(), clipping.extra_norm()),
    )


def _check_declared(declared: dict[str, Any], ledger: Ledger | str | Path | None) -> None:
    """Raise TypeError for an argument that nobody takes, InvalidInputError for one that comes too late."""
    for name, value in declared.items():
        if name not in _DECLARED:
            raise TypeError(f"watch() got an unexpected keyword argument {name!r}")
        if isinstance(ledger, Ledger):
            raise refuse(name, value, f"the path of a new ledger; for one that exists, Ledger.create({name}=...)")


def _check_plan(ledger: Ledger, now: Plan) -> None:
    """Raise if the first step of a ledger, with the settings that Opacus has now, would leave its plan."""
    plan = declared_plan(ledger)
    if plan is None or ledger.steps or plan.stages[0].covers(now):
        return
    first = plan.stages[0]
    if now.sample_rate > first.sample_rate:
        expected = f"at least {now.sample_rate!r}, the rate at which Opacus draws"
        raise refuse("plan.sample_rate", first.sample_rate, expected)
    expected = f"at most {now.noise_multiplier!r}, the noise of Opacus over the clip bound"
    raise refuse("plan.noise_std / plan.clip", first.noise_multiplier, expected)


def _check_records(ledger: Ledger, audit: AuditNorms | None) -> None:
    if audit is not None and ledger.audit_records not in (0, audit.records):
        raise refuse("len(audit)", audit.records, f"the {ledger.audit_records} audit records of the ledger")


def _check_no_checkpoint(optimizer: Any) -> None:
    """Raise if a checkpoint was loaded: a new ledger cannot contain its steps."""
    hook = optimizer.step_hook
    if isinstance(hook, AccountantHook) and hook.accountant.resumes:
        raise refuse("ledger", "a new one", "Ledger.open of the ledger to which the checkpoint that was loaded belongs")


def clipping_of(model: Any, optimizer: Any, sampling: Sampling, loss: Any) -> FlatClipping:
    """Return how an optimizer clips, by its exact class; raise InvalidInputError if that is not known."""
    if not isinstance(optimizer, DPOptimizer):
        wrapped = isinstance(getattr(optimizer, "optimizer", None), DPOptimizer)  # by Accelerate, for instance
        expected = "the optimizer that make_private returned" + ", not one that is wrapped in another" * wrapped
        raise refuse("optimizer", type(optimizer).__name__, expected)
    clipping = _CLIPPING.get(type(optimizer))
    if type(optimizer) is SimpleDistributedPerLayerOptimizer:
        raise refuse("clipping", "per_layer", "flat or ghost clipping with several processes")
    if clipping is None:
        known = ", ".join(known.__name__ for known in _CLIPPING)
        raise refuse("optimizer", type(optimizer).__name__, f"one of {known}")
    if not isinstance(model, AbstractGradSampleHooks):
        raise refuse("model", type(model).__name__, "the model that make_private returned")
    if isinstance(loss, DPLossFastGradientAdaptiveClipping):
        raise refuse("loss", type(loss).__name__, "clipping='adaptive' without ghost: here noise depends on the batch")
    check_trained(model, optimizer)
    return clipping(model, optimizer, sampling)
