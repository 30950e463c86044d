"""The limits of one site as tables and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from computeflow.economics import usd_of
from computeflow.units import YEAR_SECONDS, format_usd
from computeflow.views.figures import ACCENT, GREY, Data, Figure, base_layout, value_axis
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.comparison.site_limits import Deployment, Limit
    from computeflow.comparison.tiers import TierLoss


def limits_headline(deployment: Deployment, usd_per_gpu_hour: float | None = None) -> str:
    if not deployment.gpus:
        return (
            f"The site takes no GPU: {deployment.binding} is too little for one "
            f"{deployment.machine.node} of {deployment.machine.gpus} GPUs."
        )
    first = deployment.lifts[0] if deployment.lifts else None
    then = f" Without it, {first.binding} allows {first.gpus:,}." if first else ""
    worth = _worth(deployment, usd_per_gpu_hour)
    return f"The site takes {_whole(deployment)}, limited by {deployment.binding}.{then}{worth}"


def limits_table(deployment: Deployment) -> Table:
    """Every limit in GPUs, the tightest first, with what lifting it alone gains."""
    rows = tuple(
        (limit.name, f"{limit.gpus:,}", _ends(limit), _gain(deployment, limit), limit.needed or "-")
        for limit in deployment.limits
    )
    return Table(
        title=f"Limits of the site with {deployment.machine.node}",
        columns=columns(
            "limit",
            "GPUs",
            "range",
            "alone",
            "would need",
            right="GPUs,range,alone",
            wrap="would need",
        ),
        rows=rows,
        notes=(
            "Alone: GPUs gained if this limit alone were lifted. Would need: what the limit would have "
            "to be for that. Planned with rated watts; the high end uses the mean draw.",
        ),
        strong=frozenset({0}),
    )


def assumptions_table(deployment: Deployment, priced: str = "") -> Table:
    """`priced`: the source of the price, and its age."""
    rows = [("assumed", text) for text in deployment.assumed]
    rows += [("unknown", text) for text in deployment.unknown]
    if priced:
        rows.append(("price", priced))
    return Table(
        title="Assumptions and sources",
        columns=columns("basis", "statement", wrap="statement"),
        rows=tuple(rows),
    )


def terms_table(deployment: Deployment) -> Table:
    return Table(
        title="Meaning of each limit",
        columns=columns("limit", "meaning", wrap="meaning"),
        rows=tuple((limit.name, limit.doc) for limit in deployment.limits),
    )


def _gain(deployment: Deployment, limit: Limit) -> str:
    if limit.alone is None:
        return "no other"
    return f"{limit.alone - deployment.gpus:+,}" if limit.alone > deployment.gpus else "0"


def _worth(deployment: Deployment, usd_per_gpu_hour: float | None) -> str:
    first = deployment.limits[0]
    if usd_per_gpu_hour is None or not first.alone or first.alone <= deployment.gpus:
        return ""
    more = first.alone - deployment.gpus
    usd = usd_of(more * YEAR_SECONDS, usd_per_gpu_hour)
    return (
        f" Renting {more:,} GPUs instead would cost {format_usd(usd)} a year at "
        f"${usd_per_gpu_hour:.2f} per GPU-h."
    )


def lifts_table(deployment: Deployment) -> Table:
    return Table(
        title="Lifting the limits one after another",
        columns=columns("lifted", "GPUs then", "gained", "next limit", right="GPUs then,gained"),
        rows=tuple(
            (lift.lifted, f"{lift.gpus:,}", f"{lift.gained:+,}", lift.binding)
            for lift in deployment.lifts
        ),
        notes=(
            "Racks do not grow: where their height is the limit, more positions are counted instead.",
        ),
    )


def machines_table(deployments: Sequence[Deployment]) -> Table:
    return Table(
        title="The same site with other machines",
        columns=columns("machine", "GPUs", "range", "limit", "next limit", right="GPUs,range"),
        rows=tuple(
            (
                deployment.machine.node,
                f"{deployment.gpus:,}",
                _ends(deployment),
                deployment.binding,
                deployment.next or "-",
            )
            for deployment in deployments
        ),
    )


def _whole(deployment: Deployment) -> str:
    around = "" if deployment.low == deployment.high else f" ({_ends(deployment)})"
    return f"{deployment.gpus:,} GPUs{around}"


def _ends(result: Deployment | Limit) -> str:
    return "-" if result.low == result.high else f"{result.low:,} to {result.high:,}"


def tiers_table(tiers: Sequence[TierLoss], gpus: int) -> Table:
    return Table(
        title=f"Loss by site tier, in a year of training on {gpus:,} GPUs",
        columns=columns(
            "tier",
            "availability",
            "down h",
            "goodput",
            "days lost",
            "range",
            "$ lost",
            right="availability,down h,goodput,days lost,range,$ lost",
        ),
        rows=tuple(
            (
                tier.name,
                f"{100 * tier.availability:.3f} %",
                f"{tier.downtime_hours:.1f}",
                f"{100 * tier.goodput:.2f} %",
                f"{tier.lost_days:.3f}",
                f"{tier.low:.3f} to {tier.high:.3f}",
                format_usd(tier.usd_per_year),
            )
            for tier in tiers
        ),
        notes=(
            "One job of up to 16,384 GPUs, simulated with Llama 3's failure rate and compared with the "
            "same year without outages; $ are for all GPUs. Availability is the industry's figure, not "
            "part of Uptime's standard. The range covers the number of outages that the downtime is "
            "spread over, which is not published.",
        ),
    )


def limits_figure(deployment: Deployment) -> Figure:
    """A bar for every limit, on one scale of GPUs; the tightest is at the top in the accent's colour.

    Bars far beyond it are cut and labelled with their number: switches allow a hundred times what the
    power does, and the limits that matter would not be visible.
    """
    names = [limit.name for limit in deployment.limits]
    end = _scale_end(deployment)
    cut = [limit.name for limit in deployment.limits if limit.gpus > end]
    layout = base_layout(len(names), 34)
    layout["xaxis"] = value_axis("GPUs") | {"range": [0, 1.35 * end]}
    layout["yaxis"] |= {"categoryorder": "array", "categoryarray": names[::-1]}
    layout["shapes"] = [
        {
            "type": "line",
            "x0": deployment.gpus,
            "x1": deployment.gpus,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"dash": "dash", "width": 2, "color": GREY},
        }
    ]
    layout["annotations"] = [
        {
            "x": deployment.gpus,
            "yref": "paper",
            "y": 1,
            "yanchor": "bottom",
            "xanchor": "left",
            "showarrow": False,
            "text": f"the site takes {deployment.gpus:,}",
        }
    ]
    short = f" Bars are cut at {end:,.0f} GPUs: {', '.join(cut)}." if cut else ""
    return Figure(
        title=f"What limits the site with {deployment.machine.node} (GPUs)",
        data=_limit_bars(deployment, end),
        layout=layout,
        summary=f"{limits_headline(deployment)}{short}",
        numbers=limits_table(deployment),
    )


_SCALES = 4
"""The axis reaches at least this many times the tightest limit."""


def _scale_end(deployment: Deployment) -> float:
    """Includes the range of the tightest limit, or of the least one that allows any GPU."""
    least = next((limit.gpus for limit in deployment.limits if limit.gpus), 1)
    most = max(max(limit.high, limit.gpus) for limit in deployment.limits)
    return min(float(most) or 1.0, max(_SCALES * least, deployment.limits[0].high))


def _limit_bars(deployment: Deployment, end: float) -> tuple[Data, Data]:
    """The bars, and the numbers right of them."""
    limits = deployment.limits
    names = [limit.name for limit in limits]
    low, middle, high = (
        [min(ends, end) for ends in side]
        for side in zip(
            *((limit.low, limit.gpus, max(limit.high, limit.gpus)) for limit in limits), strict=True
        )
    )
    bars: Data = {
        "type": "bar",
        "orientation": "h",
        "name": "GPUs that a limit allows",
        "y": names,
        "x": middle,
        "customdata": [limit.gpus for limit in limits],
        "showlegend": False,
        "marker": {"color": [GREY if n else ACCENT for n in range(len(names))]},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "color": GREY,
            "array": [more - mid for mid, more in zip(middle, high, strict=True)],
            "arrayminus": [mid - less for mid, less in zip(middle, low, strict=True)],
        },
        "hovertemplate": "%{y}: %{customdata:,} GPUs<extra></extra>",
    }
    labels: Data = {
        "type": "scatter",
        "mode": "text",
        "y": names,
        "showlegend": False,
        "hoverinfo": "skip",
        "x": high,
        "textposition": "middle right",
        "cliponaxis": False,
        "text": [f"  {limit.gpus:,}" + (" (cut)" if limit.gpus > end else "") for limit in limits],
    }
    return bars, labels
