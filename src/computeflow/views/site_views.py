"""The limits of one site as tables and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from computeflow.economics import usd_of
from computeflow.units import YEAR_SECONDS
from computeflow.views.comparisons import usd_text
from computeflow.views.figures import GREY, OWNERS, Data, Figure, base_layout, value_axis
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.comparison.site_limits import Deployment, Limit
    from computeflow.comparison.tiers import TierWorth


def limits_table(
    found: Deployment, usd_per_gpu_hour: float | None = None, priced: str = ""
) -> Table:
    """Every limit as GPUs, the tightest first, with what lifting it alone buys.

    `priced`: where the price is from, and how old it is.
    """
    rows = tuple(
        (limit.name, f"{limit.gpus:,}", _ends(limit), _gain(found, limit), limit.needed or "-")
        for limit in found.limits
    )
    return Table(
        title=f"{found.machine.node}: {_whole(found)}, limited by {found.binding}",
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
            *_nothing(found),
            "alone: GPUs more if this limit alone were gone. would need: what it would have to be "
            "for them. Planned on rated watts; the high end is on the mean draw.",
            *_worth(found, usd_per_gpu_hour, priced),
            *found.assumed,
            *found.unknown,
        ),
        strong=frozenset({0}),
    )


def _nothing(found: Deployment) -> tuple[str, ...]:
    if found.gpus:
        return ()
    return (
        f"The site takes none: {found.binding} is too little for one {found.machine.node} of "
        f"{found.machine.gpus} GPUs.",
    )


def terms_table(found: Deployment) -> Table:
    return Table(
        title="What each limit is",
        columns=columns("limit", "what it is", wrap="what it is"),
        rows=tuple((limit.name, limit.doc) for limit in found.limits),
    )


def _gain(found: Deployment, limit: Limit) -> str:
    if limit.alone is None:
        return "no other"
    return f"{limit.alone - found.gpus:+,}" if limit.alone > found.gpus else "0"


def _worth(found: Deployment, usd_per_gpu_hour: float | None, priced: str) -> tuple[str, ...]:
    first = found.limits[0]
    if usd_per_gpu_hour is None or not first.alone or first.alone <= found.gpus:
        return ()
    more = first.alone - found.gpus
    usd = usd_of(more * YEAR_SECONDS, usd_per_gpu_hour)
    return (
        f"To rent the {more:,} GPUs that {first.name} keeps out would cost {usd_text(usd)} a year at "
        f"${usd_per_gpu_hour:.2f} a GPU-hour{priced and f' ({priced})'}.",
    )


def lifts_table(found: Deployment) -> Table:
    return Table(
        title="The limits lifted one after the other",
        columns=columns("lifted", "GPUs then", "gained", "binds then", right="GPUs then,gained"),
        rows=tuple(
            (lift.lifted, f"{lift.gpus:,}", f"{lift.gained:+,}", lift.binding)
            for lift in found.lifts
        ),
        notes=("Racks do not grow: where their height binds, more positions are lifted instead.",),
    )


def machines_table(found: Sequence[Deployment]) -> Table:
    """The same site with other machines in it."""
    return Table(
        title="The same site with other machines",
        columns=columns("machine", "GPUs", "range", "bound by", "then", right="GPUs,range"),
        rows=tuple(
            (one.machine.node, f"{one.gpus:,}", _ends(one), one.binding, one.next or "-")
            for one in found
        ),
    )


def _whole(found: Deployment) -> str:
    around = "" if found.low == found.high else f" ({_ends(found)})"
    return f"{found.gpus:,} GPUs{around}"


def _ends(one: Deployment | Limit) -> str:
    return "-" if one.low == one.high else f"{one.low:,} to {one.high:,}"


def tiers_table(found: Sequence[TierWorth], gpus: int, priced: str = "") -> Table:
    return Table(
        title=f"What a tier is worth: a year of training on {gpus:,} GPUs",
        columns=columns(
            "tier",
            "availability",
            "down h",
            "goodput",
            "days lost",
            "range",
            "lost a year",
            right="availability,down h,goodput,days lost,range,lost a year",
        ),
        rows=tuple(
            (
                one.name,
                f"{100 * one.availability:.3f} %",
                f"{one.downtime_hours:.1f}",
                f"{100 * one.goodput:.2f} %",
                f"{one.lost_days:.3f}",
                f"{one.low:.3f} to {one.high:.3f}",
                usd_text(one.usd_per_year),
            )
            for one in found
        ),
        notes=(
            "One job of up to 16,384 GPUs simulated with Llama 3's failure rate, against the same "
            "year without outages; dollars are of all GPUs. "
            "Availability is the industry's figure, none of Uptime's standard. The range is over how "
            "many outages the downtime is spread over, which nobody published.",
            *([f"Dollars: {priced}."] if priced else []),
        ),
    )


def limits_figure(
    found: Deployment, usd_per_gpu_hour: float | None = None, priced: str = ""
) -> Figure:
    """A bar for every limit, on one scale of GPUs; the tightest stands at the top in its own colour.

    Bars far beyond it are cut, with their number written: switches allow a hundred times what the
    power does, and the limits that matter would not be seen.
    """
    names = [limit.name for limit in found.limits]
    end = _scale_end(found)
    cut = [limit.name for limit in found.limits if limit.gpus > end]
    layout = base_layout(len(names), 34)
    layout["xaxis"] = value_axis("GPUs") | {"range": [0, 1.35 * end]}
    layout["yaxis"] |= {"categoryorder": "array", "categoryarray": names[::-1]}
    layout["shapes"] = [
        {
            "type": "line",
            "x0": found.gpus,
            "x1": found.gpus,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"dash": "dash", "width": 2, "color": GREY},
        }
    ]
    layout["annotations"] = [
        {
            "x": found.gpus,
            "yref": "paper",
            "y": 1,
            "yanchor": "bottom",
            "xanchor": "left",
            "showarrow": False,
            "text": f"the site takes {found.gpus:,}",
        }
    ]
    first = found.lifts[0] if found.lifts else None
    then = f" Without it, {first.binding} allows {first.gpus:,}." if first else ""
    short = f" Bars are cut at {end:,.0f} GPUs: {', '.join(cut)}." if cut else ""
    return Figure(
        title=f"What limits the site with {found.machine.node} (GPUs)",
        data=_limit_bars(found, end),
        layout=layout,
        summary=f"The site takes {_whole(found)}, limited by {found.binding}.{then}{short}",
        numbers=limits_table(found, usd_per_gpu_hour, priced),
    )


_SCALES = 4
"""Times the tightest limit that the axis goes to, at least."""


def _scale_end(found: Deployment) -> float:
    """The tightest limit's own range is always in it; of none, the least that allows anything."""
    least = next((limit.gpus for limit in found.limits if limit.gpus), 1)
    most = max(max(limit.high, limit.gpus) for limit in found.limits)
    return min(float(most) or 1.0, max(_SCALES * least, found.limits[0].high))


def _limit_bars(found: Deployment, end: float) -> tuple[Data, Data]:
    """The bars, and their numbers at the right of them."""
    limits = found.limits
    names = [limit.name for limit in limits]
    low, middle, high = (
        [min(ends, end) for ends in side]
        for side in zip(
            *((one.low, one.gpus, max(one.high, one.gpus)) for one in limits), strict=True
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
        "marker": {"color": [OWNERS["site" if n else "design"] for n in range(len(names))]},
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
        "text": [f"  {one.gpus:,}" + (" (cut)" if one.gpus > end else "") for one in limits],
    }
    return bars, labels
