"""The page of the report: what it says and draws, from its contents."""

from __future__ import annotations

from bayesdp.claims.risk import MEANING, RiskClaim
from bayesdp.formatting import confidence, percent, percent_digits, round_up
from bayesdp.guarantees.trade_off import FALSE_POSITIVE_RATES
from bayesdp.report.chart_data import Column
from bayesdp.report.clip_page import clip_chart
from bayesdp.report.contents import SHARES, Contents
from bayesdp.report.pictures import dots, dots_in_words, scale
from bayesdp.report.release_checks import ACCEPTABLE
from bayesdp.report.single_file import Chart, render_page


def render(page: Contents) -> str:
    """Return the page as HTML. Raises MissingLibraryError if plotly or jinja2 is missing."""
    return render_page(
        "page.html",
        page.data(),
        page=page,
        charts=_charts(page),
        dots=dots(page.first.bands),
        people_alt=dots_in_words(page.first.bands),
        scale_question=ACCEPTABLE,
        scale=None if page.first.figure is None else scale(page.claims[0].epsilon),
        risk_meaning=MEANING,
        risk_heads=[
            "",
            *(f"found at {percent(rate)} false alarms" for rate in FALSE_POSITIVE_RATES),
            "advantage",
            "mu",
            "kind",
        ],
        risk_lines=[_risk_line(claim) for claim in page.risk.all()],
        at_delta=_at_delta(page),
        surely=confidence(page.gamma),
        place=page.by_delta.deltas.index(page.delta),
    )


def _risk_line(claim: RiskClaim) -> list[str]:
    risk = claim.risk
    if risk is None:
        return [claim.for_whom(), *["–"] * (len(FALSE_POSITIVE_RATES) + 2), f"no claim: {claim.reason}"]
    rates = [percent_digits(rate) for rate in risk.tpr]
    return [claim.for_whom(), *rates, percent_digits(risk.advantage), round_up(risk.mu), claim.kind_words()]


def _charts(page: Contents) -> list[Chart]:
    audited = page.over_training.exposure[0]
    return [
        *([_shares(page)] if page.shares else []),
        _training(page),
        *([_exposure(page)] if audited else []),
        *([clip_chart(page.clip)] if page.clip is not None else []),
        _delta(page),
        *([_groups(page)] if page.groups else []),
    ]


def _shares(page: Contents) -> Chart:
    table = page.shares
    lines = [
        [percent(share), _figure(sure), _figure(estimate)]
        for share, sure, estimate in zip(table["shares"], table["ex_post"], table["estimate"], strict=True)
    ]
    half = table["shares"].index(0.5)
    return Chart(
        "shares",
        "Epsilon by share of people",
        "Where a line lies below the ceiling, the model reveals less about that share of people than the worst case "
        "allows for; the ceiling, the guarantee, holds for everyone. One line is what is sure in this run for people "
        "like the audit set whose data was not used, the other an estimate whether it was used or not: what the "
        "privacy would be if nobody's contribution to a step had depended on the steps before. Each point holds by "
        f"itself, with {confidence(page.gamma)} confidence as to who happened to be in the audit set."
        f"{_condition(page)}",
        f"Epsilon by share of people. Everyone: {_figure(table['everyone'])}. Half: sure "
        f"{_figure(table['ex_post'][half])}, estimate {_figure(table['estimate'][half])}.",
        ["share of people", "sure for people not used", "estimate"],
        lines,
    )


def _condition(page: Contents) -> str:
    """Return a sentence about figures that are capped by a guarantee with a condition; nothing if it has none."""
    condition = page.claims[0].condition
    return "" if condition is None else f" Where a figure is that of a guarantee, it holds only {condition}."


def _training(page: Contents) -> Chart:
    run = page.over_training
    columns: list[Column] = [run.everyone, *(run.ex_post if run.ex_post[0] else [])]
    heads = ["everyone", *(_sure_for(share) for share in SHARES)][: len(columns)]
    return Chart(
        "training",
        "Epsilon over training",
        "Every step costs a little; the lines end at the figures of the statement. The guarantee of a plan is level, "
        "because it holds whenever training ends. Figures before the last step are computed from what the ledger kept "
        f"at these points, rounded up.{_condition(page)}",
        f"Epsilon over {run.steps[-1] if run.steps else 0} steps; for everyone it ends at "
        f"{_figure(run.everyone[-1] if run.everyone else None)}.",
        ["step", *heads],
        [[str(step), *(_figure(column[n]) for column in columns)] for n, step in enumerate(run.steps)],
    )


def _exposure(page: Contents) -> Chart:
    run = page.over_training
    columns = [*run.exposure, run.clipped]
    last = [_percent(column[-1]) for column in columns]
    return Chart(
        "exposure",
        "How exposed audit records were",
        "Exposure is the norm of a person's gradient divided by the noise. The chart shows, for shares of people, the "
        "exposure from the beginning up to each step as a percentage of the most that clipping allows (the root of "
        "the cost so far over the highest possible cost, about the root mean square of the norms), and how many norms "
        "were clipped since the previous point. A low line means that this share of people contributed little.",
        f"Exposure of audit records over training. At the end, half are at {last[0]} or less of what is possible, "
        f"99 % at {last[2]} or less; norms clipped: {last[3]}.",
        ["step", "half at most", "90 % at most", "99 % at most", "norms clipped"],
        [[str(step), *(_percent(column[n]) for column in columns)] for n, step in enumerate(run.steps)],
    )


def _delta(page: Contents) -> Chart:
    table = page.by_delta
    columns: list[Column] = [table.everyone]
    heads = ["delta", "everyone"]
    for number, share in enumerate(SHARES):
        columns += [table.ex_post[number], table.estimate[number]]
        heads += [_sure_for(share), f"estimate for {percent(share)}"]
    place = table.deltas.index(page.delta)
    return Chart(
        "delta",
        "Epsilon against delta",
        "delta is the probability, for each person, that more is revealed: a smaller delta, a larger epsilon. Move the "
        "slider, or type a delta: the next smaller one in the table is used, so that the figures stay on the safe "
        f"side.{_condition(page)}",
        f"Epsilon for deltas from {table.deltas[0]:g} to {table.deltas[-1]:g}; for everyone "
        f"{_figure(table.everyone[place])} at {page.delta:g}.",
        heads,
        [[f"{delta:g}", *(_figure(column[n]) for column in columns)] for n, delta in enumerate(table.deltas)],
    )


def _groups(page: Contents) -> Chart:
    lines = [
        [
            group["name"],
            str(group["records"]),
            *(_figure(figure[what]) for figure in group["figures"] for what in ("ex_post", "estimate")),
        ]
        for group in page.groups
    ]
    heads = ["group", "audit records"]
    for share in SHARES:
        heads += [_sure_for(share), f"estimate for {percent(share)}"]
    return Chart(
        "groups",
        "Groups of people",
        "Claims of the same kinds, direction and confidence for each group of audit records."
        + (
            f" {page.groups_left_out} more with fewer records, or too few for any claim, are not shown."
            if page.groups_left_out
            else ""
        ),
        f"Epsilon for half and for 90 % of the people in each of {len(page.groups)} groups; the table below has the "
        "figures.",
        heads,
        lines,
    )


def _sure_for(share: float) -> str:
    return f"sure for {percent(share)} of people not used"


def _figure(value: float | None) -> str:
    return "no claim" if value is None else round_up(value)


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{round_up(100 * value)} %"


def _at_delta(page: Contents) -> str:
    """Return the figures at the page's delta in words: what the slider shows before it is moved, or without scripts."""
    table = page.by_delta
    place = table.deltas.index(page.delta)
    parts = [f"delta = {page.delta:g}", f"everyone {_figure(table.everyone[place])}"]
    for share, sure, estimate in zip(SHARES, table.ex_post, table.estimate, strict=True):
        if sure[place] is not None:
            parts.append(
                f"{percent(share)} of people: sure if not used {_figure(sure[place])}, "
                f"estimate {_figure(estimate[place])}"
            )
    return "; ".join(parts)
