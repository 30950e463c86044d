"""`compare` as tables and as a figure: cost against time, offers named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from computeflow.units import (
    DAY_SECONDS,
    MWH_JOULES,
    format_seconds,
    format_share,
    format_si,
)
from computeflow.views.figures import GREY, OWNERS, Data, Figure, base_layout, value_axis
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.comparison.advice import Advice
    from computeflow.comparison.costs import TermCost
    from computeflow.comparison.offers import Offering
    from computeflow.comparison.results import Comparison, Result

_NAME_ROOM = 0.12
"""Between two names, in powers of ten of dollars: the figure is 400 pixels high for two or three."""


def _one_per_type(results: Sequence[Result]) -> list[Result]:
    """The first region of each machine type: the others have the same machines at other prices."""
    first: dict[tuple[str, str], Result] = {}
    for result in results:
        first.setdefault((result.offering.provider, result.offering.instance), result)
    return list(first.values())


def comparison_tables(found: Comparison, top: int) -> list[Table]:
    """The first ones, and sites of the user's own wherever they stand."""
    every = _one_per_type(found.results)
    shown = [r for place, r in enumerate(every) if place < top or r.offering.own]
    return [
        summary_table(found),
        runs_table(found, shown),
        _money_table(shown),
        _quality_table(shown),
    ]


def summary_table(found: Comparison) -> Table:
    request, job = found.request, found.request.job
    rows = [
        (
            "job",
            f"{job.model.name}, {format_si(request.tokens, '')} tokens, {job.global_batch:,} x "
            f"{job.seq_len:,} a step, {job.precision}",
        ),
        (
            "asked",
            f"P90 within {format_seconds(request.deadline_seconds)}"
            + (", over the range of the prediction too" if request.sure else "")
            + (
                f", {usd_text(request.budget_usd)} at most"
                if request.budget_usd is not None
                else ""
            )
            + (", with bringing the data" if request.moves else ""),
        ),
        (
            "offers",
            f"{len(found.results):,} run the job, {len(found.meeting):,} of them as asked, "
            f"{len(found.sure):,} still at the slow end of the predicted range; "
            f"{len(found.refused):,} do not run it; {found.searches:,} plans searched",
        ),
    ]
    if found.meeting:
        rows.append(("cheapest", _words(found.meeting[0])))
    elif found.nearest is not None:
        rows.append(("nothing meets it", f"nearest: {_words(found.nearest)}"))
    if found.safest is not None:
        rows.append(("cheapest over the range", _words(*found.safest)))
    listed = found.cheapest_list_price
    if listed is not None:
        cost = listed.cost("on-demand")
        assert cost is not None
        rows.append(
            ("cheapest list price", f"{cost.usd_per_device_hour:.2f} $/h; {_words(listed, cost)}")
        )
    return Table(
        title="What was compared", columns=columns("what", "is", wrap="is"), rows=tuple(rows)
    )


def usd_text(usd: float | None) -> str:
    return "-" if usd is None else f"${format_si(usd, '')}".replace(" ", "")


def _words(result: Result, cost: TermCost | None = None) -> str:
    """Of a run on one term, else on the best one."""
    cost = cost or result.best
    if cost is None or cost.run is None or cost.p50_seconds is None or cost.p90_seconds is None:
        return result.offering.name
    term = f"{cost.term} ({cost.commitment})" if cost.commitment else cost.term
    return (
        f"{result.offering.name}, {cost.run.gpus:,} {result.offering.accelerator}, {term}, "
        f"{usd_text(cost.usd)}, {cost.p50_seconds / DAY_SECONDS:.1f} days "
        f"(P90 {cost.p90_seconds / DAY_SECONDS:.1f}), "
        f"price of {cost.as_of}" + flags_of(cost)
    )


def flags_of(cost: TermCost) -> str:
    flags = {"OLD": cost.stale, "ODD": cost.odd, "UNSTATED": cost.unstated}
    return "".join(f" {flag}" for flag, is_so in flags.items() if is_so)


def runs_table(found: Comparison, shown: Sequence[Result]) -> Table:
    """Numbers, which the other tables share, with the names of the offers below."""
    rows = []
    for number, result in enumerate(shown, start=1):
        best, ledger = result.best, result.plan.prediction.ledger
        p50, p90 = (seconds / DAY_SECONDS for seconds in result.seconds)
        low, high = (seconds / DAY_SECONDS for seconds in result.seconds_range)
        rows.append(
            (
                f"{number}{_mark(result)}",
                f"{result.gpus:,}",
                f"{100 * (ledger.mfu or 0):.0f} ({100 * (ledger.mfu_palm or 0):.0f})",
                f"{100 * result.simulation.goodput.p50:.0f}",
                f"{p50:.1f} / {p90:.1f}",
                f"{low:.1f} to {high:.1f}",
                "-" if best is None else usd_text(best.usd),
                "-" if best is None else best.term,
            )
        )
    more = len(found.results) - len(shown)
    left = f"{more:,} more results, other regions among them, are in -o json."
    return Table(
        title="Best plan and simulated run of each machine type, in its cheapest region",
        columns=columns(
            "#",
            "GPUs",
            "MFU %",
            "goodput %",
            "days P50 / P90",
            "range",
            "$",
            "term",
            right="#,GPUs,MFU %,goodput %,days P50 / P90,range,$",
        ),
        rows=tuple(rows),
        notes=(
            *(
                f"{n}: {result.offering.accelerator}, {result.offering.name}"
                for n, result in enumerate(shown, start=1)
            ),
            *((left,) if more else ()),
            "* misses deadline or budget. ? meets them if steps are as predicted, not over the whole "
            "range: the P50 if the step is as far off as those of 80 % of runs. MFU is of the dense "
            "peak, in brackets by the PaLM convention. All is on the cheapest term that meets what was "
            "asked.",
        ),
    )


def _mark(result: Result) -> str:
    if not result.meets:
        return "*"
    return "" if result.best is not None and result.best.sure else "?"


def _money_table(shown: Sequence[Result]) -> Table:
    own = any(cost.term == "owned" for result in shown for cost in result.costs)
    terms = ("on-demand", "reserved", "spot", *(("owned",) if own else ()))
    heads = [term.replace("-", " ") for term in terms]
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
        title="Dollars of the run by term, with the date of the price",
        columns=columns(
            "#", *heads, "$ per M tokens", right="#,$ per M tokens", wrap=",".join(heads)
        ),
        rows=tuple(rows),
        notes=(
            "OLD: the price is older than 180 days. ODD: far under what others ask for the device. "
            "UNSTATED: for a commitment that the list does not state, billed for the run alone. Spot "
            "is simulated with preemptions, waiting and checkpoints.",
        ),
    )


def _money(result: Result, term: str) -> str:
    cost = result.cost(term)
    if cost is not None:
        other = cost.run is not None and cost.run.gpus != result.gpus
        size = f" on {cost.run.gpus:,}" if cost.run and other else ""
        return f"{usd_text(cost.usd)}{size} {cost.as_of}{flags_of(cost)}"
    problems = [one.problem for one in result.costs if one.term == term]
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
                "not known" if most is None else f"{most:,}",
            )
        )
    return Table(
        title="Energy, and what tells offers apart",
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
            "Energy is of the run on the best term, at the meter, with hosts and PUE where they are "
            "known (-o json says). tCO2e by "
            "the region's yearly grid mean. Largest: GPUs of one contiguous cluster, where published. "
            "Site tier, cooling, storage, support and lead time are published by almost nobody: state "
            "yours with --terms. Where cooling is not known, none of the step is taken to be lost to "
            "heat; stated as air, 5 % are.",
        ),
    )


def detail_table(result: Result) -> Table:
    """Everything that is known and not known of one offer."""
    offering, terms, found = result.offering, result.offering.terms, result.plan.prediction
    low, high = (seconds / DAY_SECONDS for seconds in result.seconds_range)
    quality, most = offering.quality, offering.most_gpus
    rows = [
        (
            "step's own range",
            f"{low:.1f} to {high:.1f} days, if the predicted step is as far off as "
            "those of 80 % of runs",
        ),
        ("goodput", format_share(result.simulation.goodput.p50)),
        ("spare machines", f"{result.simulation.run.policy.spares.nodes}"),
        ("saves", f"every {format_seconds(result.simulation.interval_seconds)} of work"),
        ("country", _known(offering.country)),
        ("orchestration", offering.orchestration),
        (
            "site",
            f"{quality.tier or 'tier not known'}, cooling {_known(quality.cooling)}, "
            f"storage {_known(quality.storage)}",
        ),
        (
            "failures",
            f"of {quality.failures}" if quality.failures else "of llama-3: not known here",
        ),
        (
            "largest cluster",
            "not known"
            if most is None
            else f"{most:,} GPUs" + (f" ({offering.limit})" if offering.limit else ""),
        ),
        ("support", _known(terms.support if terms else None)),
        ("lead time", _known(terms.lead if terms else None)),
        ("another machine", _replacement_words(offering)),
        ("availability", "yours" if offering.own else "not known: ask the provider"),
        ("energy", "; ".join(result.meter.notes) or "device, host, PUE and grid are known"),
        ("MWh by account", _energy_words(result)),
        ("assumed", "; ".join(found.assumed)),
    ]
    return Table(
        title=f"{offering.name}: what it rests on",
        columns=columns("what", "is", wrap="is"),
        rows=tuple(rows),
    )


def _known(text: str | None) -> str:
    return text or "not known"


def _replacement_words(offering: Offering) -> str:
    """Until one is there for one that broke."""
    seconds = offering.quality.replace_seconds
    if seconds is None:
        return "as --replace has it (30 min): nobody publishes it"
    return f"after {format_seconds(seconds)} in the median"


def _energy_words(result: Result) -> str:
    """Of the accounts that take the most, with what the others take together."""
    lines = result.meter.energy.by_account
    taken = {
        name: line.joules / MWH_JOULES for name, line in lines.items() if line.joules is not None
    }
    if len(taken) < len(lines) or not taken:
        return "not known"
    most = sorted(taken, key=lambda name: -taken[name])
    rest = math.fsum(taken[name] for name in most[6:])
    words = [f"{name} {taken[name]:,.1f}" for name in most[:6] if taken[name] > 0]
    return ", ".join(words) + (f", {len(most) - 6} more {rest:,.1f}" if rest else "")


def advice_table(advice: Advice) -> Table:
    where = "-" if advice.result is None else _words(advice.result, advice.cost)
    rows = (("answer", where), ("because", advice.reason))
    return Table(
        title=f"For {advice.workload}", columns=columns("what", "is", wrap="is"), rows=rows
    )


def refused_table(found: Comparison, top: int = 6) -> Table:
    """Reasons, most frequent first."""
    counted: dict[str, list[str]] = {}
    for refused in found.refused:
        counted.setdefault(refused.reason, []).append(refused.offering.name)
    reasons = sorted(counted, key=lambda reason: -len(counted[reason]))
    return Table(
        title="Offers that do not run it, by reason",
        columns=columns("offers", "reason", "such as", right="offers", wrap="reason,such as"),
        rows=tuple((str(len(counted[r])), r, counted[r][0]) for r in reasons[:top]),
        notes=(f"{len(reasons) - top} more reasons in -o json.",) if len(reasons) > top else (),
    )


def front_figure(found: Comparison) -> Figure:
    """Days and dollars of every offer on its best term; those that none beats are named."""
    front = found.front
    rest = [result for result in found.results if result.best is not None and result not in front]
    points = [_point(result) for result in [*front, *rest]]
    layout = base_layout(1, 400)
    layout["xaxis"] = value_axis("days (P50)") | _log_axis([days for days, _ in points])
    layout["yaxis"] |= {
        "title": {"text": "USD"},
        "showgrid": True,
        "gridcolor": layout["xaxis"]["gridcolor"],
    } | _log_axis([usd for _, usd in points])
    days, usd = ([10**end for end in layout[axis]["range"]] for axis in ("xaxis", "yaxis"))
    request = found.request
    deadline = request.deadline_seconds / DAY_SECONDS
    traces = [_rest(rest), _front(front), _names(front), _line([deadline] * 2, usd, "deadline")]
    if request.budget_usd is not None:
        traces.append(_line(days, [request.budget_usd] * 2, "budget"))
    return Figure(
        title=f"Cost against time of {request.job.model.name} on {format_si(request.tokens, '')} "
        "tokens (USD, days)",
        data=tuple(traces),
        layout=layout,
        summary=_front_summary(front, len(points)),
        numbers=replace(
            runs_table(found, front), title="None is both faster and cheaper: the points by number"
        ),
    )


def _log_axis(values: Sequence[float]) -> Data:
    """With room for names on the left."""
    low, high = math.log10(min(values, default=1.0)), math.log10(max(values, default=10.0))
    pad = max(0.1 * (high - low), 0.1)
    return {"type": "log", "range": [low - 2 * pad, high + pad], "dtick": "D2", "tickformat": ",~s"}


def _point(result: Result) -> tuple[float, float]:
    assert result.best is not None
    return result.seconds[0] / DAY_SECONDS, result.best.usd


def _front(results: Sequence[Result]) -> Data:
    """Points with the numbers that the table beside the figure has."""
    points = [_point(result) for result in results]
    return {
        "type": "scatter",
        "mode": "lines+markers+text",
        "name": "none is both faster and cheaper",
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "cliponaxis": False,
        "text": [f"<b>{n}</b>" for n in range(1, len(points) + 1)],
        "textposition": "top right",
        "marker": {"size": 11, "color": OWNERS["useful"]},
        "line": {"width": 2, "color": OWNERS["useful"], "shape": "hv"},
        "customdata": [_words(result) for result in results],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _names(results: Sequence[Result]) -> Data:
    """Left of the points, where no other name stands. The report leaves this trace, by its `uid`, out
    of narrow screens.
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
        "name": "another is both faster and cheaper",
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "marker": {"size": 7, "color": GREY, "symbol": "circle-open"},
        "customdata": [_words(result) for result in results],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _line(x: Sequence[float], y: Sequence[float], name: str) -> Data:
    """Across the drawing. A trace, because the page gives shapes the colour of text and their
    legend another one.
    """
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"dash": "dash", "width": 2, "color": OWNERS["design"]},
        "hoverinfo": "skip",
    }


def _front_summary(front: Sequence[Result], offers: int) -> str:
    if not front:
        return "No offer runs the job."
    return (
        f"{offers:,} offers. Fastest: {_words(front[0])}. Cheapest: {_words(front[-1])}. "
        f"{len(front)} are beaten by none."
    )
