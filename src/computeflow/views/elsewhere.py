"""What goes with a comparison: moving data, several places, start windows, serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from computeflow.comparison.windows import MISSING
from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.comparisons import flags_of, usd_text
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.comparison.moves import Move
    from computeflow.comparison.results import Result
    from computeflow.comparison.serving import Chain, ServingEstimate
    from computeflow.comparison.splits import OwnedBase, Split
    from computeflow.comparison.windows import GridCost, Start


def moves_table(moves: Sequence[Move]) -> Table:
    """Of one or more."""
    rows = tuple(
        (
            move.target,
            "not known" if move.usd is None else usd_text(move.usd),
            f"{move.hours[0]:,.1f} to {move.hours[1]:,.1f}",
            "as above" if place and move.note == moves[place - 1].note else move.note,
        )
        for place, move in enumerate(moves)
    )
    return Table(
        title=f"Bringing {format_si(moves[0].bytes, 'B')} from {moves[0].source}",
        columns=columns("to", "egress $", "hours", "note", right="egress $,hours", wrap="note"),
        rows=rows,
        notes=(
            "Hours on lines of 100 and 10 Gb/s, or on the one that was stated. The run starts after "
            "the slower of them; days and $ of the comparison have it in them, an egress price that is "
            "not known is not in them.",
        ),
    )


def split_table(found: Split) -> Table:
    rows = [
        (
            share.result.offering.name,
            f"{share.cost.term}{flags_of(share.cost)}",
            f"{share.runs}",
            f"{share.at_once}",
            usd_text(share.usd),
            "known" if share.limit_known else "not known: one cluster at a time",
        )
        for share in found.shares
    ]
    alone = found.single
    notes = [f"Together {usd_text(found.usd)}."]
    if found.left:
        notes.append(f"{found.left} of {found.runs} runs find no place before the deadline.")
    if alone is None:
        notes.append("No place takes all of them alone.")
    else:
        notes.append(f"{alone.result.offering.name} alone: {usd_text(alone.usd)}.")
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
        notes=tuple(notes),
    )


def hybrid_table(base: OwnedBase) -> Table:
    found, used = base.hybrid, base.hybrid.owned_utilisation
    rows = (
        (
            "own",
            f"{found.owned_gpus:,} GPUs"
            + ("" if used is None else f", used {format_share(used)} of the time"),
        ),
        ("that costs", usd_text(found.usd)),
        ("all owned", usd_text(found.all_owned_usd)),
        (
            "all rented",
            f"{usd_text(found.all_rented_usd)} ({base.rented.offering.name} at "
            f"{base.usd_per_gpu_hour:.2f} $/h)",
        ),
    )
    return Table(
        title="Base load owned, peaks rented",
        columns=columns("what", "is", wrap="is"),
        rows=rows,
        notes=("An owned GPU is paid for always; its price per hour is yours to state.",),
    )


def grids_table(found: Sequence[GridCost], result: Result, top: int = 5) -> Table:
    """The energy of a result at other grids."""
    grid = result.offering.grid
    here = grid.name if grid else "a region that is not known"
    rows = [
        (
            one.grid,
            "-" if one.tonnes is None else f"{one.tonnes:,.0f}",
            "-" if one.usd is None else usd_text(one.usd),
            one.as_of,
        )
        for one in found[:top]
    ]
    return Table(
        title=f"The same energy elsewhere; now in {here}",
        columns=columns("grid", "tCO2e", "energy $", "as of", right="tCO2e,energy $"),
        rows=tuple(rows),
        notes=(
            "Yearly means, cleanest first; whether somebody offers the machines there is another "
            "question.",
        ),
    )


def starts_table(starts: Mapping[str, Start] | None) -> Table:
    """None: no hours were given."""
    if starts is None:
        return Table(
            title="When to start", columns=columns("note", wrap="note"), rows=((MISSING,),)
        )
    rows = tuple(
        (what, start.hour, f"{start.mean:.4g}", format_share(start.over_worst))
        for what, start in starts.items()
    )
    return Table(
        title="When to start, by the hours that were given",
        columns=columns(
            "by",
            "start",
            "mean of the window",
            "worst start costs more",
            right="mean of the window,worst start costs more",
        ),
        rows=rows,
    )


def served_table(found: Sequence[ServingEstimate], model: str, prompt: int, output: int) -> Table:
    rows = []
    for one in found:
        cost = one.usd_per_million
        low, high = one.tokens_per_second_per_gpu
        fast, slow = one.seconds_per_token
        rows.append(
            (
                one.accelerator,
                one.precision,
                f"{one.replica_gpus}",
                f"{one.batch:,}",
                f"{low:,.0f} to {high:,.0f}",
                f"{1e3 * fast:,.0f} to {1e3 * slow:,.0f}",
                "no offer" if cost is None else f"{cost[0]:.2f} to {cost[1]:.2f}",
                one.as_of,
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
            "In: the precision of the weights; bf16 where the device has no peak in the one that was "
            "asked for (fp8, if none was). tokens/s of one GPU. Coarse: 17 to 70 % of a roofline at "
            "the fullest batch, every GPU busy all the time, on-demand prices from the cheapest to the "
            "dearest; $ per million tokens of output.",
        ),
    )


def chains_table(found: Sequence[Chain], calls: int, hops: int, source: str) -> Table:
    rows = tuple(
        (
            chain.place,
            f"{1e3 * chain.round_trip_seconds:.0f}",
            format_seconds(chain.network_seconds),
        )
        for chain in found
    )
    return Table(
        title=f"Network time of {calls} calls x {hops} hops from {found[0].users}; coarse",
        columns=columns("model in", "round trip ms", "chain", right="round trip ms,chain"),
        rows=rows,
        notes=(
            f"{source}; within {found[0].users} itself only the on-ramp counts. The on-ramp of your "
            "users is added only where it is stated. What the model takes to answer comes on top.",
        ),
    )
