"""Figures as values: Plotly data, a summary in words, and the numbers as a table.

Start with `ledger_figure`; `gpu_fronts` has time against cost. A figure is plain data; nothing here
imports Plotly. Colours show the owner of an account (`OWNERS`), can be told apart by colour-blind
readers, and stand out on white and on black; what has no owner is in `ACCENT` and `SECOND`. Of tags
a text may have `<br>` alone: others become styles that the page's content policy forbids.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from computeflow.ledger import ACCOUNTS, Ledger, describe
from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.ledgers import ledger_table, ledgers_table
from computeflow.views.plans import account_table, layout_text
from computeflow.views.predictions import memory_table
from computeflow.views.tables import Table

if TYPE_CHECKING:
    from computeflow.planning.plans import Plan
    from computeflow.prediction import Prediction
    from computeflow.prediction.predict import StageMemory

Data = dict[str, Any]
GREY = "#7F7F7F"
OWNERS = {
    "useful": "#009E73",
    "site": "#0072B2",
    "design": "#D55E00",
    "tuning": "#CC79A7",
    "mixed": GREY,
    "unknown": GREY,
}
"""Okabe and Ito's colours by the owner of an account."""
ACCENT, SECOND = "#5B6CDD", "#A87400"
"""For what is no owner's: the one series of a figure, and what it is compared with."""
HATCHED = {"mixed": "/", "unknown": "x"}
"""Hatched: some readers cannot tell grey from the green of `useful`."""
_HOLDERS = {
    "weights": "#4A5BC8",
    "gradients": "#7686E6",
    "optimizer": "#A3AFF0",
    "activations": "#8A6A14",
    "logits": "#C79A3A",
    "buffers": "#B0B0B0",
    "overhead": GREY,
}
"""Shades: one of what stays for the whole run, one of what a step makes, grey of the rest."""
_ABOVE, _BELOW = 50, 44
"""Pixels for a legend above the drawing and an axis below it."""
_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    title: str
    """With its unit."""
    data: tuple[Data, ...]
    layout: Data
    """`data` and `layout` in Plotly's form. The title is not in them, so that a page can wrap it."""
    summary: str
    """The figure in words, for readers who cannot see it."""
    numbers: Table


def ledger_figure(ledger: Ledger, other: Ledger | None = None) -> Figure:
    """A waterfall: the useful account first, then what each owner could change, up to the total.

    A second ledger stands beside the first at the same scale; scale one first if their windows differ.
    """
    ledgers = [ledger] if other is None else [ledger, other]
    names = _in_owner_order(ledgers)
    most = max(one.gpu_seconds for one in ledgers)
    unit, size = describe.ledger_unit(*ledgers)
    traces: list[Data] = []
    layout = base_layout(len(names), 27)
    layout["yaxis"] |= {
        "categoryorder": "array",
        "categoryarray": names,
        "range": [len(names) - 0.5, -0.5],
    }
    for number, one in enumerate(ledgers):
        axis = f"x{number + 1 if number else ''}"
        traces += _falling(one, names, axis, unit, size)
        label = unit if other is None else _panel_label(one, unit)
        layout[f"xaxis{axis[1:]}"] = value_axis(label) | {
            "range": [0, 1.25 * most / size],  # room for the last bar's label
            "domain": [number * 0.52, number * 0.52 + 0.48] if other else [0, 1],
        }
    return Figure(
        title=f"Where the time of {' and '.join(one.window.label for one in ledgers)} goes ({unit})",
        data=_each_once(traces),
        layout=layout,
        summary=" ".join(_ledger_summary(one) for one in ledgers),
        numbers=ledger_table(ledger, bars=False) if other is None else ledgers_table(ledger, other),
    )


def _in_owner_order(ledgers: Iterable[Ledger]) -> list[str]:
    """The booked accounts, owner by owner, the largest of each first."""
    most: dict[str, float] = {}
    for ledger in ledgers:
        for name, seconds in ledger.accounts.items():
            most[name] = max(most.get(name, 0.0), seconds / ledger.gpu_seconds)
    owners = list(OWNERS)
    return sorted(most, key=lambda name: (owners.index(ACCOUNTS[name].owner), -most[name]))


def _falling(ledger: Ledger, names: list[str], axis: str, unit: str, size: float) -> list[Data]:
    """A trace for each owner; every bar starts where the one before it ends."""
    booked = {name: ledger.accounts[name] for name in names if name in ledger.accounts}
    starts = dict(zip(booked, accumulate(booked.values(), initial=0.0), strict=False))
    by_owner: dict[str, list[str]] = {}
    for name in booked:
        by_owner.setdefault(ACCOUNTS[name].owner, []).append(name)
    traces = []
    for owner, mine in by_owner.items():
        sizes = [booked[name] / size for name in mine]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": owner,
                "legendgroup": owner,
                "xaxis": axis,
                "y": mine,
                "x": sizes,
                "base": [starts[name] / size for name in mine],
                "marker": _marker(owner),
                "customdata": sizes,
                "text": [format_share(booked[name] / ledger.gpu_seconds) for name in mine],
                "textposition": "outside",
                "textangle": 0,
                "constraintext": "none",
                "cliponaxis": False,
                "hovertemplate": f"%{{y}}: %{{customdata:,.1f}} {unit}, %{{text}}"
                f"<extra>{owner}</extra>",
            }
        )
    return traces


def _each_once(traces: Sequence[Data]) -> tuple[Data, ...]:
    """The traces, with every name once in the legend."""
    names = [trace["name"] for trace in traces]
    return tuple(
        trace | {"showlegend": trace["name"] not in names[:place]}
        for place, trace in enumerate(traces)
    )


def _panel_label(ledger: Ledger, unit: str) -> str:
    label = textwrap.shorten(ledger.window.label, 20, placeholder="...")
    return f"{escape(label, quote=False)}<br>{ledger.basis}, {unit}"  # Plotly reads tags in labels


def _ledger_summary(ledger: Ledger) -> str:
    booked = ledger.accounts
    by_owner = dict.fromkeys(OWNERS, 0.0)
    for name, seconds in booked.items():
        by_owner[ACCOUNTS[name].owner] += seconds / ledger.gpu_seconds
    useful = by_owner.pop("useful")
    parts = sorted(((share, owner) for owner, share in by_owner.items() if share), reverse=True)
    unit, size = describe.ledger_unit(ledger)
    whole = f"{ledger.gpu_seconds / size:,.1f} {unit} ({ledger.basis})"
    text = f"{format_share(useful)} of {whole} are useful"
    if ledger.mfu is None and not useful:
        text = f"Of {whole} it is not known what is useful"
    text += "".join(f", {owner} {format_share(share)}" for share, owner in parts)
    return f"{text}.{_largest_loss(ledger)}"


def _largest_loss(ledger: Ledger) -> str:
    losses = {n: s for n, s in ledger.accounts.items() if ACCOUNTS[n].owner != "useful"}
    if not losses:
        return ""
    largest = max(losses, key=lambda name: losses[name])
    share = format_share(losses[largest] / ledger.gpu_seconds)
    return f" The largest loss is {largest}, {share}."


def comparison_figure(plans: Sequence[Plan]) -> Figure:
    """The step of each plan, account by account, best first, with the range of its prediction."""
    labels = [
        wrapped(f"{number}  {layout_text(plan.layout)}", 52)
        for number, plan in enumerate(plans, start=1)
    ]
    pixels = 36 + 15 * max(label.count("<br>") + 1 for label in labels)
    places = list(range(len(plans)))
    ledgers = [plan.prediction.ledger for plan in plans]
    names = _in_owner_order(ledgers)
    traces: list[Data] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": ACCOUNTS[name].owner,
            "meta": name,
            "legendgroup": ACCOUNTS[name].owner,
            "marker": _marker(ACCOUNTS[name].owner, gap=1),
            "y": places,
            "x": [one.accounts.get(name, 0.0) / one.gpus for one in ledgers],
            "width": 20 / pixels,
            "offset": 0.5 - 26 / pixels,
            "hovertemplate": f"{name}: %{{x:.3g}} s<extra>{ACCOUNTS[name].owner}</extra>",
        }
        for name in names
    ]
    traces.append(_ranges(plans, at=0.5 - 16 / pixels))
    layout = base_layout(len(plans), pixels) | {"barmode": "stack"}
    layout["xaxis"] = value_axis("seconds of a step") | {"rangemode": "tozero"}
    layout["yaxis"] |= {"visible": False, "range": [len(plans) - 0.5, -0.5]}
    layout["annotations"] = [
        {
            "text": label,
            "showarrow": False,
            "align": "left",
            "xanchor": "left",
            "yanchor": "bottom",
            "x": 0,
            "y": place + 0.5 - 28 / pixels,
            "xshift": -2,
        }
        for place, label in zip(places, labels, strict=True)
    ]
    return Figure(
        title="Step time of each plan, by owner of its accounts (s)",
        data=_each_once(traces),
        layout=layout,
        summary=_comparison_summary(plans),
        numbers=account_table(plans, names),
    )


def _ranges(plans: Sequence[Plan], at: float) -> Data:
    found = [plan.prediction for plan in plans]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "80 % of runs",
        "uid": "range",
        "x": [one.step_seconds for one in found],
        "y": [place + at for place in range(len(found))],
        "marker": {"symbol": "line-ew", "size": 8, "line": {"width": 2, "color": GREY}},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "thickness": 1.5,
            "width": 5,
            "color": GREY,
            "array": [one.step_seconds_range[1] - one.step_seconds for one in found],
            "arrayminus": [one.step_seconds - one.step_seconds_range[0] for one in found],
        },
        "text": [f"{format_seconds(one.step_seconds)} ({_range(one)})" for one in found],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _range(prediction: Prediction) -> str:
    low, high = prediction.step_seconds_range
    return f"{format_seconds(low)} to {format_seconds(high)}"


def _comparison_summary(plans: Sequence[Plan]) -> str:
    best, *others = (plan.prediction for plan in plans)
    step = format_seconds(best.step_seconds)
    text = f"Plan 1 takes {step} a step; {_range(best)} holds 80 % of runs."
    for number, other in enumerate(others, start=2):
        slower = other.step_seconds / best.step_seconds - 1
        text += f" Plan {number}: {format_seconds(other.step_seconds)}, {100 * slower:+.1f} %."
    return text


def _memory_traces(stages: Sequence[StageMemory]) -> Iterator[Data]:
    names = [f"stage {n}" for n in range(1, len(stages) + 1)] if len(stages) > 1 else ["device"]
    for name in stages[0].by_owner:
        sizes = [stage.by_owner[name] for stage in stages]
        if any(sizes):
            yield _held(name, names, sizes, _HOLDERS.get(name, GREY))
    for name, shape in (("host", "/"), ("disk", "x")):
        sizes = [getattr(stage, f"{name}_bytes") for stage in stages]
        if any(sizes):
            pattern = {"shape": shape, "fillmode": "overlay", "solidity": 0.4}
            yield _held(name, names, sizes, GREY, pattern) | {"offsetgroup": "away"}


def memory_figure(prediction: Prediction) -> Figure:
    """Bytes by owner on one device of each pipeline stage, and what it holds elsewhere, hatched."""
    stages = prediction.memory_by_stage
    layout = base_layout(len(stages), max(16, min(40, 640 // len(stages)))) | {"barmode": "stack"}
    limit = prediction.memory_limit_bytes
    layout["height"] += 60  # the legend takes three lines on a narrow screen
    widest = max(limit, *(max(one.bytes, one.host_bytes + one.disk_bytes) for one in stages))
    layout["xaxis"] = value_axis("GB on one device") | {"range": [0, 1.02 * widest / _GB]}
    layout["yaxis"] |= {"range": [len(stages) - 0.5, -0.5]}
    layout["shapes"] = [
        {
            "type": "line",
            "x0": limit / _GB,
            "x1": limit / _GB,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"dash": "dash", "width": 2, "color": GREY},
            "showlegend": True,
            "name": f"limit {format_si(limit, 'B')}",
        }
    ]
    return Figure(
        title=f"Memory of a device{' by pipeline stage' if len(stages) > 1 else ''} (GB)",
        data=tuple(_memory_traces(stages)),
        layout=layout,
        summary=_memory_summary(prediction),
        numbers=memory_table(prediction),
    )


def _held(
    name: str, stages: list[str], sizes: list[float], colour: str, pattern: Data | None = None
) -> Data:
    marker = {"color": colour, "line": {"width": 1, "color": "white"}}
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": stages,
        "offsetgroup": "device",
        "x": [size / _GB for size in sizes],
        "marker": marker | ({"pattern": pattern} if pattern else {}),
        "hovertemplate": f"%{{y}}: {name} %{{x:.3g}} GB<extra></extra>",
    }


def _memory_summary(prediction: Prediction) -> str:
    stage = prediction.memory_by_stage[prediction.fullest_stage]
    several = len(prediction.memory_by_stage) > 1
    where = f"Stage {prediction.fullest_stage + 1} is the fullest" if several else "It is fullest"
    owners = sorted(stage.by_owner.items(), key=lambda item: -item[1])[:2]
    parts = " and ".join(f"{name} {format_si(size, 'B')}" for name, size in owners)
    away = ((stage.host_bytes, "in the host's memory"), (stage.disk_bytes, "on disk"))
    return (
        f"{where}, in {stage.moment}: {format_si(stage.bytes, 'B')} of "
        f"{format_si(prediction.memory_limit_bytes, 'B')}, "
        f"{'which fits' if prediction.fits else 'too much'}; "
        f"most of it {parts}."
        + "".join(f" It holds {format_si(size, 'B')} {place}." for size, place in away if size)
    )


def _marker(owner: str, gap: int = 0) -> Data:
    """`gap`: pixels between a bar and its neighbours, in the page's colour."""
    marker: Data = {"color": OWNERS[owner], "line": {"width": gap, "color": "white"}}
    if owner in HATCHED:
        marker["pattern"] = {"shape": HATCHED[owner], "fillmode": "overlay", "solidity": 0.4}
    return marker


def wrapped(layout: str, width: int) -> str:
    """The layout's text, with line breaks between its parts only."""
    parts = ", ".join(part.replace(" ", "\u00a0") for part in layout.split(", "))
    return "<br>".join(textwrap.wrap(parts, width, break_long_words=False, break_on_hyphens=False))


def base_layout(rows: int, row_pixels: int) -> Data:
    """Layout shared by all figures: a legend above the data, and room for labels."""
    height = rows * row_pixels + _ABOVE + _BELOW
    return {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": _ABOVE, "b": _BELOW},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "bargap": 0.3,
        "dragmode": False,
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
            "traceorder": "normal",
            "itemclick": False,
            "itemdoubleclick": False,
        },
        "yaxis": {
            "automargin": True,
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
            "ticks": "outside",
            "ticklen": 4,
            "tickcolor": "rgba(0,0,0,0)",
        },
    }


def value_axis(unit: str) -> Data:
    return {
        "title": {"text": unit, "standoff": 8},
        "tickangle": 0,
        "separatethousands": True,
        "fixedrange": True,
        "automargin": True,
        "zeroline": False,
        "gridcolor": "#E6E6E6",
    }
