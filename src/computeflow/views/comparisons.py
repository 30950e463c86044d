"""A comparison of offers as tables and as a figure of cost against time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from computeflow.units import (
    DAY_SECONDS,
    MWH_JOULES,
    format_count,
    format_seconds,
    format_share,
    format_si,
    format_usd,
)
from computeflow.views.figures import ACCENT, GREY, SECOND, Data, Figure, base_layout, value_axis
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.comparison.advice import Advice
    from computeflow.comparison.costs import TermCost
    from computeflow.comparison.offers import Offering
    from computeflow.comparison.results import Comparison, Result

_NAME_ROOM = 0.12
"""Least distance of two names, in powers of ten of dollars: 400 pixels show two or three of them."""


def _one_per_type(results: Sequence[Result]) -> list[Result]:
    """The first region of each machine type; other regions have the same machines at other prices."""
    first: dict[tuple[str, str], Result] = {}
    for result in results:
        first.setdefault((result.offering.provider, result.offering.instance), result)
    return list(first.values())


def comparison_headline(comparison: Comparison, advice: Advice) -> str:
    """The recommended offer and what it rests on, then the cheapest of all."""
    goal = f"within {format_seconds(comparison.request.deadline_seconds)}"
    if comparison.request.budget_usd is not None:
        goal += f" and {format_usd(comparison.request.budget_usd)}"
    if not comparison.meeting:
        nearest = "" if comparison.nearest is None else f" Nearest: {_short(comparison.nearest)}."
        return f"No offer runs the job {goal}.{nearest}"
    first, result, cost = comparison.meeting[0], advice.result, advice.cost
    cheapest = f"Cheapest of all: {_short(first)}{_proof(first)}."
    if result is None or cost is None or cost.run is None:
        return f"Nothing is recommended {goal}: {advice.reason}. {cheapest}"
    evidence = cost.run.plan.prediction.evidence.line_at(cost.run.gpus)
    offer = f"{_short(result, cost)}{same_price(comparison, result, cost)}"
    lead = f"For {advice.workload} {goal}: {offer}; it {evidence}."
    if not evidence.startswith("rests"):
        lead = f"For {advice.workload} {goal}: {offer}. Uncertain: {evidence}."
    return lead if first.best == cost else f"{lead} {cheapest}"


def same_price(comparison: Comparison, result: Result, cost: TermCost | None) -> str:
    """In how many other regions the run costs the same."""
    others = 0 if cost is None else comparison.as_cheap(result, cost)
    return f", the same in {format_count(others, 'other region')}" if others else ""


def _proof(result: Result) -> str:
    return "" if result.plan.prediction.evidence.proven else ", of which no run was measured"


def _short(result: Result, cost: TermCost | None = None) -> str:
    """An offer with the median days and the dollars of its run on one term, else on the best one."""
    cost = cost or result.best
    if cost is None or cost.run is None or cost.p50_seconds is None:
        return result.offering.name
    return (
        f"{result.offering.name}, {cost.run.gpus:,} {result.offering.accelerator}, {cost.term}, "
        f"{cost.p50_seconds / DAY_SECONDS:.1f} days, {format_usd(cost.usd)}"
    )


def comparison_tables(comparison: Comparison, top: int) -> list[Table]:
    """The first `top` machine types, and all sites of the user's own."""
    every = _one_per_type(comparison.results)
    shown = [r for index, r in enumerate(every) if index < top or r.offering.own]
    return [runs_table(comparison, shown), _money_table(shown), _quality_table(shown)]


def summary_table(comparison: Comparison) -> Table:
    request, job = comparison.request, comparison.request.job
    rows = [
        (
            "job",
            f"{job.model.name}, {format_si(request.tokens, '')} tokens, {job.global_batch:,} x "
            f"{job.seq_len:,} a step, {job.precision}",
        ),
        (
            "requested",
            f"P90 within {format_seconds(request.deadline_seconds)}"
            + (", at the slow end of the predicted range too" if request.sure else "")
            + (
                f", {format_usd(request.budget_usd)} at most"
                if request.budget_usd is not None
                else ""
            )
            + (", with moving the data" if request.moves else ""),
        ),
        (
            "offers",
            f"{len(comparison.results):,} run the job, {len(comparison.meeting):,} of them as "
            f"requested; {len(comparison.sure):,} still meet the deadline at the slow end of the "
            "predicted range; "
            f"{len(comparison.refused):,} do not run it; {comparison.searches:,} plans searched",
        ),
    ]
    if comparison.meeting:
        rows.append(("cheapest", _words(comparison.meeting[0])))
    elif comparison.nearest is not None:
        rows.append(
            ("nearest", f"no offer meets the request; nearest: {_words(comparison.nearest)}")
        )
    if comparison.safest is not None:
        rows.append(("cheapest at the slow end", _words(*comparison.safest)))
    listed = comparison.cheapest_list_price
    if listed is not None:
        cost = listed.cost("on-demand")
        assert cost is not None
        rows.append(
            ("cheapest list price", f"{cost.usd_per_device_hour:.2f} $/h; {_words(listed, cost)}")
        )
    return Table(
        title="Request and cheapest offers",
        columns=columns("item", "result", wrap="result"),
        rows=tuple(rows),
    )


def _words(result: Result, cost: TermCost | None = None) -> str:
    """An offer with its run's dollars and days on one term, else on the best one."""
    cost = cost or result.best
    if cost is None or cost.run is None or cost.p50_seconds is None or cost.p90_seconds is None:
        return result.offering.name
    term = f"{cost.term} ({cost.commitment})" if cost.commitment else cost.term
    return (
        f"{result.offering.name}, {cost.run.gpus:,} {result.offering.accelerator}, {term}, "
        f"{format_usd(cost.usd)}, {cost.p50_seconds / DAY_SECONDS:.1f} days "
        f"(P90 {cost.p90_seconds / DAY_SECONDS:.1f}), "
        f"price of {cost.as_of}" + flags_of(cost)
    )


def flags_of(cost: TermCost) -> str:
    flags = {"OLD": cost.stale, "ODD": cost.odd, "UNSTATED": cost.unstated}
    return "".join(f" {flag}" for flag, is_so in flags.items() if is_so)


def runs_table(comparison: Comparison, shown: Sequence[Result]) -> Table:
    """Runs by a number that the other tables share."""
    rows = []
    for number, result in enumerate(shown, start=1):
        best, ledger = result.best, result.plan.prediction.ledger
        p50, p90 = (seconds / DAY_SECONDS for seconds in result.seconds)
        low, high = (seconds / DAY_SECONDS for seconds in result.seconds_range)
        term = "" if best is None else f", {best.term}"
        rows.append(
            (
                str(number),
                f"{result.offering.accelerator}{term}: {result.offering.name}",
                f"{result.gpus:,}",
                f"{100 * (ledger.mfu or 0):.0f} ({100 * (ledger.mfu_palm or 0):.0f})",
                f"{p50:.1f} / {p90:.1f}",
                f"{low:.1f} to {high:.1f}",
                "-" if best is None else format_usd(best.usd),
            )
        )
    more = len(comparison.results) - len(shown)
    left = (
        f"{more:,} more of the {len(comparison.results):,} offers that run the job, other regions "
        "among them, are in -o json"
    )
    return Table(
        title="Best plan and simulated run of each product, in its cheapest region",
        columns=columns(
            "#",
            "offer",
            "devices",
            "MFU %",
            "days P50 / P90",
            "days range",
            "$ run",
            right="#,devices,MFU %,days P50 / P90,days range,$ run",
            wrap="offer",
            wide="devices,MFU %,days range",
        ),
        rows=tuple(rows),
        notes=(*_cautions(shown), _RUNS_NOTE, *([left] if more else [])),
    )


_RUNS_NOTE = (
    "Range: median days at both ends of the predicted step (80 % of published runs fell inside). MFU "
    "is of the dense peak, in brackets by the PaLM convention. Each run is on the cheapest term that "
    "meets the request."
)


def _cautions(shown: Sequence[Result]) -> list[str]:
    """What is wrong with offers, by their numbers; what is wrong with none is not said."""
    late = [not result.meets for result in shown]
    unsure = [r.meets and not (r.best is not None and r.best.sure) for r in shown]
    unproven = [not result.plan.prediction.evidence.proven for result in shown]
    cautions = (
        (late, "misses", "miss", "the deadline or the budget"),
        (unsure, "misses", "miss", "the deadline at the slow end of the predicted range"),
        (unproven, "is on a device", "are on devices", "of which no run was measured"),
    )
    return [
        f"{_subject(marked)} {one if sum(marked) == 1 else several} {what}"
        for marked, one, several, what in cautions
        if any(marked)
    ]


def _subject(marked: Sequence[bool]) -> str:
    """`Offer 1`, `Offers 1, 3`, or `All of them`."""
    numbers = [str(number) for number, is_so in enumerate(marked, start=1) if is_so]
    if len(numbers) == 1:
        return f"Offer {numbers[0]}"
    return "All of them" if all(marked) else f"Offers {', '.join(numbers)}"


def _money_table(shown: Sequence[Result]) -> Table:
    own = any(cost.term == "owned" for result in shown for cost in result.costs)
    terms = ("on-demand", "reserved", "spot", *(("owned",) if own else ()))
    rows = []
    for number, result in enumerate(shown, start=1):
        per = result.usd_per_million_tokens
        rows.append(
            (
                str(number),
                *(_money(result, term) for term in terms),
                "-" if per is None else f"{per:.3g}",
            )
        )
    return Table(
        title="Cost of the run by term, with the date of the price",
        columns=columns(
            "#", *terms, "$ per M tokens", right="#,$ per M tokens", wrap=",".join(terms)
        ),
        rows=tuple(rows),
        notes=(
            "OLD: the price is older than 180 days. ODD: far under other providers' price of the "
            "device. UNSTATED: the list does not state the commitment; billed for the run alone. Spot "
            "is simulated with preemptions, waiting and checkpoints.",
        ),
    )


def _money(result: Result, term: str) -> str:
    cost = result.cost(term)
    if cost is not None:
        other = cost.run is not None and cost.run.gpus != result.gpus
        size = f" on {cost.run.gpus:,}" if cost.run and other else ""
        return f"{format_usd(cost.usd)}{size} {cost.as_of}{flags_of(cost)}"
    problems = [cost.problem for cost in result.costs if cost.term == term]
    return problems[0] if problems else "-"


def _quality_table(shown: Sequence[Result]) -> Table:
    rows = []
    for number, result in enumerate(shown, start=1):
        energy, offering = result.meter.energy, result.offering
        gflops, most = result.gflops_per_watt, offering.most_gpus
        rows.append(
            (
                str(number),
                "-" if energy.joules is None else f"{energy.joules / MWH_JOULES:,.0f}",
                "-" if energy.grams is None else f"{energy.grams / 1e6:,.0f}",
                "-" if gflops is None else f"{gflops:,.0f}",
                f"{result.runs_per_week:.2g}",
                offering.network,
                offering.access,
                "unknown" if most is None else f"{most:,}",
            )
        )
    return Table(
        title="Energy, network and access",
        columns=columns(
            "#",
            "MWh",
            "tCO2e",
            "GFLOPs/W",
            "runs a week",
            "network",
            "access",
            "largest",
            right="#,MWh,tCO2e,GFLOPs/W,runs a week,largest",
            wrap="network,access,largest",
        ),
        rows=tuple(rows),
        notes=(
            "Energy of the run on the best term, at the meter, with hosts and PUE where they are known "
            "(-o json says). tCO2e by the region's yearly grid mean. Largest: devices of one "
            "contiguous cluster, where published. Almost no provider publishes site tier, cooling, "
            "storage, support and lead time: state yours with --terms. Where cooling is unknown, no "
            "step time is lost to heat; with cooling stated as air, 5 % is.",
        ),
    )


def detail_table(result: Result) -> Table:
    """Known and unknown properties of one offer, and the assumptions of its run."""
    offering, terms = result.offering, result.offering.terms
    low, high = (seconds / DAY_SECONDS for seconds in result.seconds_range)
    quality, most = offering.quality, offering.most_gpus
    rows = [
        ("evidence", result.plan.prediction.evidence.line_at(result.gpus)),
        (
            "predicted range",
            f"{low:.1f} to {high:.1f} days, with the step at the ends of its predicted range (80 % of "
            "published runs fell inside)",
        ),
        ("goodput", format_share(result.simulation.goodput.p50)),
        ("spare machines", f"{result.simulation.run.policy.spares.nodes}"),
        ("checkpoints", f"every {format_seconds(result.simulation.interval_seconds)} of work"),
        ("country", _known(offering.country)),
        ("orchestration", offering.orchestration),
        (
            "site",
            f"{quality.tier or 'tier unknown'}, cooling {_known(quality.cooling)}, "
            f"storage {_known(quality.storage)}",
        ),
        (
            "failure rate",
            f"{quality.failures}'s" if quality.failures else "llama-3's: unknown for this offer",
        ),
        (
            "largest cluster",
            "unknown"
            if most is None
            else f"{most:,} devices" + (f" ({offering.limit})" if offering.limit else ""),
        ),
        ("support", _known(terms.support if terms else None)),
        ("lead time", _known(terms.lead if terms else None)),
        ("replacement", _replacement_words(offering)),
        ("availability", "yours" if offering.own else "unknown: ask the provider"),
        ("energy, carbon", "; ".join(result.meter.notes) or "device, host, PUE and grid are known"),
        ("MWh by account", _energy_words(result)),
        ("assumptions", "; ".join(result.plan.prediction.assumed)),
    ]
    return Table(
        title=f"What {offering.name} rests on",
        columns=columns("property", "value", wrap="value"),
        rows=tuple(rows),
    )


def _known(text: str | None) -> str:
    return text or "unknown"


def _replacement_words(offering: Offering) -> str:
    """The time until a failed machine is replaced."""
    seconds = offering.quality.replace_seconds
    if seconds is None:
        return "as --replacement-time says (30 min by default): no provider publishes it"
    return f"after {format_seconds(seconds)} in the median"


def _energy_words(result: Result) -> str:
    """The accounts that take the most energy, and the sum of the others."""
    lines = result.meter.energy.by_account
    taken = {
        name: line.joules / MWH_JOULES for name, line in lines.items() if line.joules is not None
    }
    if len(taken) < len(lines) or not taken:
        return "unknown"
    most = sorted(taken, key=lambda name: -taken[name])
    rest = math.fsum(taken[name] for name in most[6:])
    words = [f"{name} {taken[name]:,.1f}" for name in most[:6] if taken[name] > 0]
    return ", ".join(words) + (f", {len(most) - 6} more {rest:,.1f}" if rest else "")


def advice_table(advice: Advice) -> Table:
    where = "-" if advice.result is None else _words(advice.result, advice.cost)
    return Table(
        title=f"Recommended for {advice.workload}",
        columns=columns("offer", "reason", wrap="offer,reason"),
        rows=((where, advice.reason),),
    )


def refused_table(comparison: Comparison, top: int = 6) -> Table:
    """Reasons why offers do not run the job, most frequent first."""
    counted: dict[str, list[str]] = {}
    for refused in comparison.refused:
        counted.setdefault(refused.reason, []).append(refused.offering.name)
    reasons = sorted(counted, key=lambda reason: -len(counted[reason]))
    return Table(
        title="Offers that do not run the job, by reason",
        columns=columns("offers", "reason", "such as", right="offers", wrap="reason,such as"),
        rows=tuple((str(len(counted[r])), r, counted[r][0]) for r in reasons[:top]),
        notes=(f"{len(reasons) - top} more reasons in -o json.",) if len(reasons) > top else (),
    )


def front_figure(comparison: Comparison) -> Figure:
    """Days and dollars of every offer on its best term; offers that no other beats are named."""
    front = comparison.front
    rest = [
        result for result in comparison.results if result.best is not None and result not in front
    ]
    points = [_point(result) for result in [*front, *rest]]
    layout = base_layout(1, 400)
    layout["xaxis"] = value_axis("days (P50)") | _log_axis([days for days, _ in points])
    layout["yaxis"] |= {
        "title": {"text": "USD"},
        "showgrid": True,
        "gridcolor": layout["xaxis"]["gridcolor"],
    } | _log_axis([usd for _, usd in points])
    days, usd = ([10**end for end in layout[axis]["range"]] for axis in ("xaxis", "yaxis"))
    request = comparison.request
    deadline = request.deadline_seconds / DAY_SECONDS
    traces = [_rest(rest), _front(front), _names(front), _line([deadline] * 2, usd, "deadline")]
    if request.budget_usd is not None:
        traces.append(_line(days, [request.budget_usd] * 2, "budget"))
    return Figure(
        title=f"Cost against time of {request.job.model.name} on {format_si(request.tokens, '')} "
        "tokens (USD, days)",
        data=tuple(traces),
        layout=layout,
        summary=_front_summary(front, len(points), len(comparison.results)),
        numbers=_front_table(comparison),
    )


def _front_table(comparison: Comparison) -> Table:
    """The runs of the points."""
    return replace(
        runs_table(comparison, comparison.front),
        title="Offers on the Pareto front, by number",
    )


def _log_axis(values: Sequence[float]) -> Data:
    """An axis with room for names on the left."""
    low, high = math.log10(min(values, default=1.0)), math.log10(max(values, default=10.0))
    pad = max(0.1 * (high - low), 0.1)
    return {"type": "log", "range": [low - 2 * pad, high + pad], "dtick": "D2", "tickformat": ",~s"}


def _point(result: Result) -> tuple[float, float]:
    assert result.best is not None
    return result.seconds[0] / DAY_SECONDS, result.best.usd


def _front(results: Sequence[Result]) -> Data:
    """Points with their numbers in the table beside the figure."""
    points = [_point(result) for result in results]
    return {
        "type": "scatter",
        "mode": "lines+markers+text",
        "name": "on the Pareto front",
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "cliponaxis": False,
        "text": [str(n) for n in range(1, len(points) + 1)],
        "textfont": {"weight": "bold"},
        "textposition": "top right",
        "marker": {"size": 11, "color": ACCENT},
        "line": {"width": 2, "color": ACCENT, "shape": "hv"},
        "customdata": [_words(result) for result in results],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _names(results: Sequence[Result]) -> Data:
    """Names left of the points, where they do not overlap. The report leaves this trace, by its
    `uid`, out of narrow screens.
    """
    named: list[Result] = []
    for result in results:
        height = math.log10(_point(result)[1])
        if all(abs(height - math.log10(_point(other)[1])) > _NAME_ROOM for other in named):
            named.append(result)
    points = [_point(result) for result in named]
    return {
        "type": "scatter",
        "mode": "text",
        "uid": "wide",
        "showlegend": False,
        "hoverinfo": "skip",
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "cliponaxis": False,
        "text": [f"{r.offering.provider}, {r.gpus:,} {r.offering.accelerator}  " for r in named],
        "textposition": "middle left",
    }


def _rest(results: Sequence[Result]) -> Data:
    points = [_point(result) for result in results]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "another offer is both faster and cheaper",
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "marker": {"size": 7, "color": GREY, "symbol": "circle-open"},
        "customdata": [_words(result) for result in results],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _line(x: Sequence[float], y: Sequence[float], name: str) -> Data:
    """A line across the drawing. It is a trace, because the page gives shapes the colour of text and
    their legend another one.
    """
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"dash": "dash", "width": 2, "color": SECOND},
        "hoverinfo": "skip",
    }


def _front_summary(front: Sequence[Result], drawn: int, offers: int) -> str:
    """A point is an offer with a cost: a term may not be available for as long, or not end."""
    if not front:
        return "No offer runs the job." if not offers else "No offer is available for the job."
    count = f"{offers:,} offers run the job"
    some = "" if drawn == offers else f", {drawn:,} of them on a term that is available and drawn"
    return (
        f"{count}{some}. Fastest: {_words(front[0])}. Cheapest: {_words(front[-1])}. "
        f"{len(front)} {'is' if len(front) == 1 else 'are'} on the Pareto front."
    )
