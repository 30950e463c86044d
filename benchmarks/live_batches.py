"""A made run as batches: `deliveries`. Nodes send what their recorders have written, once a second.

Each node sends at its own moment of the second. A rank that has no step for a second beats, and tells
at which collectives it arrived meanwhile, as recorders do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.live_fleet import (
    BUCKETS,
    COLLECTED,
    NODE_RANKS,
    PIECES,
    Fault,
    Fleet,
    Ints,
    MadeRun,
    node_name,
)
from computeflow.collection.wire.batches import Batch, RankNews, RankRows
from computeflow.telemetry.run_folders.phases import LETTERS
from computeflow.telemetry.run_folders.rank_file import Beat, RankStart

FLUSH_SECONDS = 0.4
"""How long a recorder keeps a record before it writes it."""
_RETRIES = 40
"""Allocator retries that come with each second of memory pressure."""


@dataclass(slots=True)
class _Sender:
    """What a node has sent so far."""

    node: int
    ranks: slice
    steps: int = 0
    number: int = 0
    records: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    early: set[int] = field(default_factory=set)
    """Ranks whose arrivals at the collectives of the next step were sent before it ended."""
    ended: bool = False


def deliveries(run: MadeRun, *, until: float | None = None) -> Iterator[tuple[float, Batch]]:
    """Batches in the order in which they are received, with that moment in Unix seconds."""
    fleet = run.fleet
    first = fleet.start + fleet.startup_seconds
    last = _last_second(run) if until is None else until
    senders = []
    for node in range(run.nodes):
        ranks = slice(node * NODE_RANKS, min((node + 1) * NODE_RANKS, fleet.ranks))
        count = np.zeros(ranks.stop - ranks.start, np.int64)
        senders.append(_Sender(node=node, ranks=ranks, records=count))
    for second in range(int(last - first) + 2):
        for sender in sorted(senders, key=_moment):
            now = first + second + _moment(sender)
            if not sender.ended and now <= last:
                batch = _batch(run, sender, now)
                if batch is not None:
                    yield now + 0.01, batch


def _last_second(run: MadeRun) -> float:
    """When a run is over; one that lost a rank is watched for two minutes more."""
    if run.killed:
        return float(run.begin[:, min(run.killed.values())].max() / 1e6) + 120
    return float(run.end.max() / 1e6) + 3


def _moment(sender: _Sender) -> float:
    """When in a second a node sends."""
    return (sender.node * 0.381966 + 0.1) % 1.0


def _batch(run: MadeRun, sender: _Sender, now: float) -> Batch | None:
    micros = round((now - FLUSH_SECONDS) * 1e6)
    ends = run.end[sender.ranks]
    upto = sender.steps
    while upto < run.fleet.steps and ends[:, upto].max() <= micros:
        upto += 1
    steps = slice(sender.steps, upto)
    news = _news(run, sender, micros, upto)
    if upto == sender.steps and not any(news):
        return None
    rows = []
    arrived = np.full(len(ends), (upto - sender.steps) * BUCKETS)
    arrived[[rank - sender.ranks.start for rank in sender.early]] -= BUCKETS * (upto > sender.steps)
    lengths = run.lengths[sender.ranks, steps]
    pieces = (lengths > 0).sum(axis=(1, 2))
    late = _early_arrivals(run, sender, micros, upto)
    for place, rank in enumerate(range(sender.ranks.start, sender.ranks.stop)):
        extra = news[place]
        gone = rank in run.killed and run.killed[rank] <= upto
        records = 2 * (upto - sender.steps) + _records(extra) + (rank in late)
        if not records:
            continue
        rows.append(
            RankRows(
                rank=rank,
                attempt=0,
                first=int(sender.records[place]),
                records=records,
                last=int(ends[place, upto - 1]) if extra is None and upto else micros,
                alive=not gone,
                steps=upto - sender.steps,
                pieces=int(pieces[place]),
                leads=0,
                arrivals=int(arrived[place]) + BUCKETS * (rank in late),
                timed=False,
                news=extra,
            )
        )
        sender.records[place] += records
    if not rows:
        return None
    batch = Batch(
        agent=f"agent-{node_name(sender.node)}",
        number=sender.number,
        node=node_name(sender.node),
        sent=round(now * 1e6),
        run=run.fleet.run,
        about={"name": run.fleet.run, "command": "made"} if not sender.number else {},
        ranks=tuple(rows),
        groups=(("0", "allreduce"),),
        steps=_step_table(run, sender.ranks, steps),
        pieces=_piece_table(run, sender.ranks, steps),
        arrivals=_arrival_table(run, sender, steps, late),
    )
    sender.early = late if upto > sender.steps else sender.early | late
    sender.steps, sender.number = upto, sender.number + 1
    return batch


def _records(news: RankNews | None) -> int:
    if news is None:
        return 0
    return (news.start is not None) + len(news.beats) + bool(news.memory) + (news.ended is not None)


def _news(run: MadeRun, sender: _Sender, micros: int, upto: int) -> list[RankNews | None]:
    """Starts, heart beats, memory and ends of a node's ranks."""
    fleet = run.fleet
    over = upto == fleet.steps
    sender.ended = over
    pressed = {f.rank: f for f in fleet.faults if f.kind == "memory-pressure"}
    news: list[RankNews | None] = []
    for rank in range(sender.ranks.start, sender.ranks.stop):
        gone = rank in run.killed and run.killed[rank] <= upto
        words: dict[str, Any] = {}
        if not sender.number:
            words["start"] = _start(run, rank, sender.node)
            words["parameters"] = 1_000_000_000
        waited = micros - int(run.begin[rank, upto]) if not over else 0
        if waited >= 1_000_000 and not gone:
            words["beats"] = (_beat(run, rank, upto, micros),)
        if rank in pressed and sender.steps < upto and sender.number % 5 == 0:
            words["memory"] = _memory(pressed[rank], upto, fleet)
        if over and not gone:
            words["ended"] = "exit"
        news.append(RankNews(**words) if words else None)
    return news


def _start(run: MadeRun, rank: int, node: int) -> RankStart:
    fleet = run.fleet
    zero = round((fleet.start + fleet.startup_seconds / 2) * 1e6)
    return RankStart(
        rank=rank,
        world=fleet.ranks,
        attempt=0,
        host=node_name(node),
        device=fleet.device,
        gpu="",
        gpu_uuid="",
        framework={},
        versions={"torch": "2.11"},
        epoch=zero,
        began=-round(fleet.startup_seconds / 2 * 1e6),
    )


def _beat(run: MadeRun, rank: int, step: int, micros: int) -> Beat:
    """A second without a step: the phase in which the rank is, and since when."""
    since = int(run.begin[rank, step])
    for piece in range(PIECES):
        length = int(run.lengths[rank, step, piece])
        if since + length > micros:
            kind = int(run.kinds[rank, step, piece])
            return Beat(at=micros, inside=LETTERS[kind] if kind < len(LETTERS) else "", since=since)
        since += length
    return Beat(at=micros, inside="", since=since)


def _memory(fault: Fault, step: int, fleet: Fleet) -> dict[str, int]:
    """Totals of the allocator so far."""
    within = max(min(step, fault.end) - fault.begin, 0)
    retries = round(_RETRIES * within * fleet.step_seconds * fault.severity)
    return {
        "allocated": 70 << 30,
        "reserved": 79 << 30,
        "peak": 78 << 30,
        "retries": retries,
        "ooms": 0,
    }


def _early_arrivals(run: MadeRun, sender: _Sender, micros: int, upto: int) -> set[int]:
    """Ranks that came to the collectives of a step which lasts; a recorder tells it with its beat."""
    if upto == run.fleet.steps:
        return set()
    before = sender.early if upto == sender.steps else set()
    return {
        rank
        for rank in range(sender.ranks.start, sender.ranks.stop)
        if rank not in before
        and micros - run.begin[rank, upto] >= 1_000_000
        and run.arrivals[rank, upto, -1] <= micros
        and not (rank in run.killed and run.killed[rank] <= upto)
    }


def _step_table(run: MadeRun, ranks: slice, steps: slice) -> dict[str, NDArray[Any]]:
    begin = run.begin[ranks, steps]
    if not begin.size:
        return {}
    number = np.broadcast_to(np.arange(steps.start, steps.stop), begin.shape).ravel() + 1
    count = begin.size
    return {
        "number": number,
        "own": number,
        "begin": begin.ravel(),
        "end": run.end[ranks, steps].ravel(),
        "tokens": np.full(count, 4096),
        "samples": np.full(count, 4),
        "profiled": np.zeros(count, bool),
        "loss": 10.0 / number,
        "collections": (run.lengths[ranks, steps, COLLECTED] > 0).ravel().astype(np.int64),
        "collecting": run.lengths[ranks, steps, COLLECTED].ravel(),
    }


def _piece_table(run: MadeRun, ranks: slice, steps: slice) -> dict[str, NDArray[Any]]:
    lengths = run.lengths[ranks, steps].ravel()
    if not lengths.size:
        return {}
    there = lengths > 0
    return {"length": lengths[there], "kind": run.kinds[ranks, steps].ravel()[there]}


def _arrival_table(
    run: MadeRun, sender: _Sender, steps: slice, late: set[int]
) -> dict[str, NDArray[Any]]:
    """Arrivals at collectives of the steps, and of the one that lasts where ranks came to it."""
    at, sequence = [], []
    for rank in range(sender.ranks.start, sender.ranks.stop):
        low = steps.start + (rank in sender.early and steps.stop > steps.start)
        high = steps.stop + (rank in late)
        at.append(run.arrivals[rank, low:high].ravel())
        sequence.append(np.arange(low * BUCKETS, high * BUCKETS))
    times = np.concatenate(at)
    if not times.size:
        return {}
    count = len(times)
    return {
        "group": np.zeros(count, np.int32),
        "sequence": np.concatenate(sequence),
        "at": times,
        "end": np.full(count, -1),
        "bytes": np.full(count, 25_000_000),
        "every": np.ones(count, np.int32),
    }
