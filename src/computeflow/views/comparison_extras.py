"""Additions to a comparison as tables: moving data, several providers, start windows, serving."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from computeflow.catalog.rows import normalise
from computeflow.comparison.windows import MISSING
from computeflow.units import format_seconds, format_share, format_si, format_usd
from computeflow.views.comparisons import flags_of
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.comparison.moves import Move
    from computeflow.comparison.results import Result
    from computeflow.comparison.serving import CallChain, ServingEstimate
    from computeflow.comparison.splits import OwnedBase, Split
    from computeflow.comparison.windows import GridCost, Start


def moves_table(moves: Sequence[Move]) -> Table:
    rows = tuple(
        (
            move.target,
            "unknown" if move.usd is None else format_usd(move.usd),
            f"{move.hours[0]:,.1f} to {move.hours[1]:,.1f}",
            "as above" if index and move.note == moves[index - 1].note else move.note,
        )
        for index, move in enumerate(moves)
    )
    return Table(
        title=f"Moving {format_si(moves[0].bytes, 'B')} from {moves[0].source}",
        columns=columns("to", "egress $", "hours", "note", right="egress $,hours", wrap="note"),
        rows=rows,
        notes=(
            "Hours on lines of 100 and 10 Gb/s, or on the stated one. The run starts after the slower "
            "of them. Days and $ of the comparison include the move, but not an unknown egress price.",
        ),
    )


def split_table(found: Split) -> Table:
    rows = [
        (
            share.result.offering.name,
            f"{share.cost.term}{flags_of(share.cost)}",
            f"{share.runs}",
            f"{share.at_once}",
            format_usd(share.usd),
            "known" if share.limit_known else "unknown: one cluster at a time",
        )
        for share in found.shares
    ]
    alone = found.single
    notes = [f"Together {format_usd(found.usd)}."]
    if found.left:
        notes.append(f"{found.left} of {found.runs} runs do not fit before the deadline.")
    if alone is None:
        notes.append("No provider takes all of them alone.")
    else:
        notes.append(f"{alone.result.offering.name} alone: {format_usd(alone.usd)}.")
    return Table(
        title=f"{found.runs} runs over several providers, one offer of each",
        columns=columns(
            "offer",
            "term",
            "runs",
            "at once",
            "$",
            "capacity",
            right="runs,at once,$",
            wrap="offer,capacity",
        ),
        rows=tuple(rows),
        notes=(" ".join(notes),),
    )


def hybrid_table(base: OwnedBase) -> Table:
    found, used = base.hybrid, base.hybrid.owned_utilisation
    rows = (
        (
            "best base load",
            f"own {found.owned_gpus:,} GPUs"
            + ("" if used is None else f", used {format_share(used)} of the time"),
        ),
        ("with that base load", format_usd(found.usd)),
        ("everything owned", format_usd(found.all_owned_usd)),
        (
            "everything rented",
            f"{format_usd(found.all_rented_usd)} ({base.rented.offering.name} at "
            f"{base.usd_per_gpu_hour:.2f} $/h)",
        ),
    )
    return Table(
        title="Base load owned, peaks rented",
        columns=columns("option", "cost", wrap="cost"),
        rows=rows,
        notes=("An owned GPU costs money in every hour, at the price that you state.",),
    )


def grids_table(found: Sequence[GridCost], result: Result, top: int = 5) -> Table:
    """The energy of a result on other grids."""
    grid = result.offering.grid
    here = grid.name if grid else "an unknown region"
    rows = [
        (
            cost.grid,
            "-" if cost.tonnes is None else f"{cost.tonnes:,.0f}",
            "-" if cost.usd is None else format_usd(cost.usd),
            cost.as_of,
        )
        for cost in found[:top]
    ]
    return Table(
        title=f"The same energy on other grids; now in {here}",
        columns=columns("grid", "tCO2e", "energy $", "as of", right="tCO2e,energy $"),
        rows=tuple(rows),
        notes=("Yearly means, cleanest first, whether or not the machines are offered there.",),
    )


def starts_table(starts: Mapping[str, Start] | None) -> Table:
    """Start times by price and carbon; None: no hourly figures were given."""
    if starts is None:
        return Table(
            title="When to start",
            columns=columns("missing signal", wrap="missing signal"),
            rows=((MISSING,),),
        )
    rows = tuple(
        (what, start.hour, f"{start.mean:.4g}", format_share(start.over_worst))
        for what, start in starts.items()
    )
    return Table(
        title="When to start, by the hourly figures given",
        columns=columns(
            "by",
            "start",
            "mean of the window",
            "worst start costs more",
            right="mean of the window,worst start costs more",
        ),
        rows=rows,
    )


def served_headline(estimates: Sequence[ServingEstimate], model: str) -> str:
    """The device with the cheapest output tokens."""
    priced = [row for row in estimates if row.usd_per_million is not None]
    if not priced:
        return f"No device that serves {model} has an on-demand price."
    best = min(priced, key=lambda row: row.usd_per_million or (math.inf, math.inf))
    low, high = best.usd_per_million or (math.inf, math.inf)
    return (
        f"Cheapest to serve {model}: {best.accelerator} in {best.precision}, ${low:.2f} to "
        f"${high:.2f} per million tokens of output; a coarse estimate."
    )


def served_table(found: Sequence[ServingEstimate], model: str, prompt: int, output: int) -> Table:
    rows = []
    for row in found:
        cost = row.usd_per_million
        low, high = row.tokens_per_second_per_gpu
        fast, slow = row.seconds_per_token
        rows.append(
            (
                row.accelerator,
                row.precision,
                f"{row.replica_gpus}",
                f"{row.batch:,}",
                f"{low:,.0f} to {high:,.0f}",
                f"{1e3 * fast:,.0f} to {1e3 * slow:,.0f}",
                "no offer" if cost is None else f"{cost[0]:.2f} to {cost[1]:.2f}",
                row.as_of,
            )
        )
    return Table(
        title=f"Serving {model}: prompts of {prompt:,}, answers of {output:,} tokens; coarse",
        columns=columns(
            "device",
            "in",
            "GPUs",
            "batch",
            "tokens/s",
            "ms a token",
            "$ per M",
            "prices from",
            right="GPUs,batch,tokens/s,ms a token,$ per M",
            wrap="tokens/s,ms a token,$ per M",
        ),
        rows=tuple(rows),
        notes=(
            "In: the precision of the weights; bf16 where the device has no peak in the requested one "
            "(fp8 by default). tokens/s of one GPU. Coarse: 17 to 70 % of a roofline at the fullest "
            "batch, every GPU busy all the time, on-demand prices from the cheapest to the most "
            "expensive; $ per million tokens of output.",
        ),
    )


def chains_table(
    found: Sequence[CallChain], users: str, calls: int, hops: int, source: str
) -> Table:
    """`users`: where they are, as it was asked; the round trips may be of a region near it."""
    region = found[0].users
    taken = "" if normalise(users) == region else f" (round trips of {region}, the nearest known)"
    rows = tuple(
        (
            chain.place,
            f"{1e3 * chain.round_trip_seconds:.0f}",
            format_seconds(chain.network_seconds),
        )
        for chain in found
    )
    return Table(
        title=f"Network time of {calls} calls x {hops} hops from {users}{taken}; coarse",
        columns=columns("model in", "round trip ms", "chain", right="round trip ms,chain"),
        rows=rows,
        notes=(
            f"{source}; within {region} itself only the on-ramp counts. The on-ramp of your "
            "users is added only where it is stated. The model's own time comes on top.",
        ),
    )
