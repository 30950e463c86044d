"""`flow_figure`: GPU-seconds from what was paid for, by who can change them, to the model's FLOPs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from computeflow.ledger import ACCOUNTS, Ledger, describe
from computeflow.units import format_share
from computeflow.views.figures import OWNERS, Data, Figure, base_layout
from computeflow.views.tables import Table, columns

_PAD, _ROOM = 20, 200
"""Pixels between nodes of a column (a line of text), and for all of its nodes together."""
_EDGE, _SIDE = 12, 6
"""Pixels above and below the drawing, and beside it: half a node."""
_COLUMNS = (0.001, 0.31, 0.999)
"""Horizontal positions of the columns. The last is far from the second, so that the labels of both fit
between them; Plotly reads 0 as no position."""
HOVER = {
    "bgcolor": "#262626",
    "bordercolor": "#A6A6A6",
    "font": {"color": "#FFFFFF"},
    "align": "left",
}
"""Readable on a light and on a dark page."""


def flow_figure(ledger: Ledger) -> Figure:
    unit, size = describe.ledger_unit(ledger)
    booked = {name: s for name, s in _in_owner_order(ledger).items() if s > 0}
    owners = owner_seconds(ledger)
    ends = [*owners, *booked]
    place = {name: number for number, name in enumerate(ends, start=1)}
    shares = [s / ledger.gpu_seconds for s in (*owners.values(), *booked.values())]
    labels = [f"{name} {format_share(share)}" for name, share in zip(ends, shares, strict=True)]
    whole = f"{ledger.gpu_seconds / size:,.1f} {unit}"
    colours = [OWNERS[owner] for owner in owners]
    colours += [OWNERS[ACCOUNTS[name].owner] for name in booked]
    height = _ROOM + _PAD * len(booked)
    trace: Data = {
        "type": "sankey",
        "arrangement": "fixed",
        "valueformat": ",.1f",
        "valuesuffix": f" {unit}",
        "node": {
            "label": [f"contracted<br>{whole}", *labels],
            "pad": _PAD,
            "thickness": 12,
            "color": ["#7F7F7F", *colours],
            "line": {"width": 0},
            "hoverlabel": HOVER,
            **_places(shares[: len(owners)], shares[len(owners) :], height),
            "customdata": ["contracted", *labels],
            "hovertemplate": "%{customdata}: %{value}<extra></extra>",
        },
        "link": {
            "source": [0] * len(owners) + [place[ACCOUNTS[name].owner] for name in booked],
            "target": list(range(1, len(ends) + 1)),
            "value": [s / size for s in (*owners.values(), *booked.values())],
            "color": [_faint(colour) for colour in colours],
            "hoverlabel": HOVER,
            "customdata": labels,
            "hovertemplate": "%{customdata}: %{value}<extra></extra>",
        },
    }
    layout = base_layout(0, 0) | {"height": height + 2 * _EDGE}
    layout["margin"] = {"l": _SIDE, "r": _SIDE, "t": _EDGE, "b": _EDGE}
    layout.pop("yaxis")
    return Figure(
        title=f"From contracted {_time(ledger)} to model FLOPs ({unit})",
        data=(trace,),
        layout=layout,
        summary=_summary(ledger, owners, whole),
        numbers=_numbers(ledger, owners, unit, size),
    )


def _time(ledger: Ledger) -> str:
    return "time" if ledger.on_host else "GPU time"


def _in_owner_order(ledger: Ledger) -> dict[str, float]:
    """Accounts by owner, useful first, the largest of each first."""
    owners = list(OWNERS)
    return dict(
        sorted(
            ledger.accounts.items(),
            key=lambda item: (owners.index(ACCOUNTS[item[0]].owner), -item[1]),
        )
    )


def owner_seconds(ledger: Ledger) -> dict[str, float]:
    """GPU-seconds by owner, in the order of the colours, without owners of nothing."""
    booked = {
        owner: math.fsum(s for name, s in ledger.accounts.items() if ACCOUNTS[name].owner == owner)
        for owner in OWNERS
    }
    return {owner: seconds for owner, seconds in booked.items() if seconds > 0}


def _places(owners: Sequence[float], accounts: Sequence[float], height: int) -> Data:
    """Vertical positions of nodes: in our order, not the one with the fewest crossings; accounts fill
    the height.
    """
    scale = 1 - (len(accounts) - 1) * _PAD / height
    stacked = [_stack([1.0], scale, height), _stack(owners, scale, height)]
    stacked.append(_stack(accounts, scale, height))
    return {
        "x": [x for x, nodes in zip(_COLUMNS, stacked, strict=True) for _ in nodes],
        "y": [y for nodes in stacked for y in nodes],
    }


def _stack(shares: Sequence[float], scale: float, height: int) -> list[float]:
    """Centres of stacked nodes, as fractions of the height, centred in it."""
    pad = _PAD / height
    tops, top = [], (1 - scale * math.fsum(shares) - pad * (len(shares) - 1)) / 2
    for share in shares:
        tops.append(max(top + scale * share / 2, 1e-4))
        top += scale * share + pad
    return tops


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.4)"


def _summary(ledger: Ledger, owners: dict[str, float], whole: str) -> str:
    seen = describe.ranks_text(ledger)
    if ledger.gpus_total not in (None, ledger.gpus):
        seen = f"the {ledger.gpus:,} ranks seen of {ledger.gpus_total:,}"
    parts = ", ".join(
        f"{name} {format_share(s / ledger.gpu_seconds)}" for name, s in owners.items()
    )
    useful = "What reaches compute.model is the model's FLOPs."
    if "useful" not in owners:
        useful = "The share of the model's FLOPs in it is not known."
    return f"{whole} of {seen}, by who can change them: {parts}. {useful}"


def _numbers(ledger: Ledger, owners: dict[str, float], unit: str, size: float) -> Table:
    rows: list[tuple[str, ...]] = []
    strong = set()
    for owner, seconds in owners.items():
        strong.add(len(rows))
        rows.append((owner, "", *_cells(seconds, size, ledger)))
        rows += [
            ("", name, *_cells(s, size, ledger))
            for name, s in _in_owner_order(ledger).items()
            if ACCOUNTS[name].owner == owner
        ]
    rows.append(("contracted", "", *_cells(ledger.gpu_seconds, size, ledger)))
    return Table(
        title="Time by owner and account" if ledger.on_host else "GPU time by owner and account",
        columns=columns("owner", "account", unit, "share", right=f"{unit},share"),
        rows=tuple(rows),
        strong=frozenset({*strong, len(rows) - 1}),
    )


def _cells(seconds: float, size: float, ledger: Ledger) -> tuple[str, str]:
    return f"{seconds / size:,.1f}", format_share(seconds / ledger.gpu_seconds)
