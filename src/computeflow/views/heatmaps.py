"""`ranks_figure`: the accounts of every rank side by side, to make an unusual rank visible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from computeflow.ledger import ACCOUNTS
from computeflow.telemetry.traces.job_ledgers import RankLedger
from computeflow.units import format_share
from computeflow.views.figures import Data, Figure, base_layout
from computeflow.views.flows import HOVER
from computeflow.views.tables import Table, columns

MAX_RANKS = 64
_FEW = 16
"""Up to so many ranks get tall rows; more are drawn so that 64 fit on a printed page."""
_HEAD, _FOOT = 128, 70
"""Pixels for the upright names of accounts, and for the scale."""
_SCALE = [[0, "rgba(0,114,178,0)"], [0.5, "rgba(0,114,178,0.65)"], [1, "rgba(0,45,80,1)"]]
"""From the page's colour for zero; a dark page inverts the lightness (report.html)."""
_TICKS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)


def ranks_figure(ranks: Sequence[RankLedger]) -> Figure:
    names = _accounts(ranks)
    shares = {rank.rank: _shares(rank, names) for rank in ranks}
    usual = [median(row[place] for row in shares.values()) for place in range(len(names))]
    order = _farthest_first(shares, usual)
    shown = order[:MAX_RANKS] if len(order) > MAX_RANKS else sorted(order)
    most = max(max(row) for row in shares.values())
    few = len(shown) <= _FEW
    layout = base_layout(0, 0) | {"hoverlabel": HOVER}
    layout["height"] = len(shown) * (24 if few else 11) + _HEAD + _FOOT
    layout["margin"] = {"l": 8, "r": 8, "t": _HEAD, "b": _FOOT}
    layout["xaxis"] = {
        "type": "category",
        "side": "top",
        "tickangle": -90,
        "fixedrange": True,
        "showgrid": False,
        "tickmode": "linear",
    }
    layout["yaxis"] |= {
        "type": "category",
        "autorange": "reversed",
        "title": {"text": "rank"},
        "tickfont": {"size": 12 if few else 9},
        "tickmode": "linear",
    }
    which = (
        "every rank"
        if len(shown) == len(order)
        else f"the {len(shown)} ranks farthest from the median"
    )
    return Figure(
        title=f"Accounts of {which} (share of a rank's window)",
        data=(_cells(shown, names, shares, usual, most),),
        layout=layout,
        summary=_summary(order, names, shares, usual),
        numbers=_numbers(shown, order, names, shares, usual),
    )


def _accounts(ranks: Sequence[RankLedger]) -> list[str]:
    booked = {name for rank in ranks for name, s in rank.ledger.accounts.items() if s > 0}
    return [name for name in ACCOUNTS if name in booked]


def _shares(rank: RankLedger, names: Sequence[str]) -> list[float]:
    booked = rank.ledger.accounts
    return [booked.get(name, 0.0) / rank.ledger.gpu_seconds for name in names]


def _farthest_first(shares: dict[int, list[float]], usual: Sequence[float]) -> list[int]:
    """Ranks by the share of their window that is booked unlike the median rank's."""

    def distance(rank: int) -> float:
        return math.fsum(abs(a - b) for a, b in zip(shares[rank], usual, strict=True))

    return sorted(shares, key=lambda rank: (-distance(rank), rank))


def _cells(
    ranks: Sequence[int],
    names: Sequence[str],
    shares: dict[int, list[float]],
    usual: Sequence[float],
    most: float,
) -> Data:
    """Coloured by the square root of the share, which makes small accounts visible."""
    ticks = [tick for tick in _TICKS if tick <= most]
    return {
        "type": "heatmap",
        "x": list(names),
        "y": [str(rank) for rank in ranks],
        "xgap": 1,
        "ygap": 1,
        "z": [[round(math.sqrt(share), 4) for share in shares[rank]] for rank in ranks],
        "zmin": 0,
        "zmax": math.sqrt(most),
        "colorscale": _SCALE,
        "customdata": [
            [
                f"{format_share(share)}, median {format_share(middle)}"
                for share, middle in zip(shares[rank], usual, strict=True)
            ]
            for rank in ranks
        ],
        "hovertemplate": "rank %{y}, %{x}<br>%{customdata}<extra></extra>",
        "colorbar": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 0,
            "yanchor": "top",
            "len": 1,
            "thickness": 12,
            "ypad": 12,
            "outlinewidth": 0,
            "tickvals": [math.sqrt(tick) for tick in ticks],
            "ticktext": [f"{100 * tick:.0f} %" for tick in ticks],
        },
    }


def _summary(
    order: Sequence[int],
    names: Sequence[str],
    shares: dict[int, list[float]],
    usual: Sequence[float],
) -> str:
    odd = order[0]
    place = max(range(len(names)), key=lambda place: abs(shares[odd][place] - usual[place]))
    return (
        f"Of {len(order):,} ranks, rank {odd} lies farthest from the median: {names[place]} takes "
        f"{format_share(shares[odd][place])} of its window, {format_share(usual[place])} of the "
        "median rank's."
    )


def _numbers(
    shown: Sequence[int],
    order: Sequence[int],
    names: Sequence[str],
    shares: dict[int, list[float]],
    usual: Sequence[float],
) -> Table:
    hidden = order[len(shown) :]
    left = f"The {len(hidden):,} ranks nearest to the median are left out; audit -o json has all"
    rows = [("median", *map(format_share, usual))]
    rows += [(str(rank), *map(format_share, shares[rank])) for rank in shown]
    return Table(
        title="Share of each rank's window"
        + (", farthest from the median first" if hidden else ""),
        columns=columns("rank", *names, right=",".join(("rank", *names))),
        rows=tuple(rows),
        notes=(left,) if hidden else (),
        strong=frozenset({0}),
    )
