"""Small traces of made-up jobs whose ranks compute on the host, as Kineto would write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class HostRank:
    """One rank, in milliseconds on the common clock."""

    rank: int
    world: int
    host: str = "node1"
    clock: float = 0.0
    """Offset of the rank's clock, added to every time."""
    shapes: bool = True
    marked: bool = True
    """Whether the profiler marks steps."""
    by_hand: bool = False
    """Whether the update is a function of the user's own, without an event."""
    groups: Sequence[Sequence[int]] = ()
    now: float = 10.0
    events: list[dict[str, Any]] = field(default_factory=list)

    def span(self, category: str, name: str, start: float, end: float, **more: Any) -> None:
        thread = more.pop("thread", 1)
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "args": more}
        self.events.append(event | {"ts": 1e3 * (start + self.clock), "dur": 1e3 * (end - start)})

    def work(self, length: float, name: str = "aten::mm", **more: Any) -> None:
        self.span("cpu_op", name, self.now, self.now + length, **more)
        self.now += length + 0.01

    def idle(self, length: float, inside: str = "") -> None:
        """The host does what no operator shows."""
        if inside:
            self.span("user_annotation", inside, self.now, self.now + length)
        self.now += length

    def forward(self, length: float) -> None:
        self.work(length, "aten::linear", **{"Sequence number": 1, "Fwd thread id": 0})

    def backward(self, length: float) -> None:
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        self.span("cpu_op", name, self.now, self.now + length)
        self.work(length, "AddmmBackward0")

    def optimizer(self, length: float = 0.2) -> None:
        start = self.now
        self.work(length, "aten::add_")
        if not self.by_hand:
            self.span("user_annotation", "Optimizer.step#SGD.step", start, self.now)

    def post(self, name: str, peer: int = -1) -> float:
        """Submit a collective or message; its start."""
        said: dict[str, Any] = {}
        if self.shapes:
            said = {"Input Dims": [[[4, 16]], [], [], []]}
            if peer >= 0:
                said["Concrete Inputs"] = ["", "", str(peer), "0"]
        start = self.now
        self.span("cpu_op", name, start, start + 0.05, **said)
        self.now += 0.06
        return start + 0.02

    def transfer(self, name: str, start: float, end: float) -> None:
        thread = 1 if name in ("gloo:send", "gloo:recv") else 2
        self.span("user_annotation", name, start, end, thread=thread)

    def step(self, number: int, start: float) -> None:
        if self.marked:
            self.span("user_annotation", f"ProfilerStep#{number}", start, self.now)

    def write(self, folder: Path) -> Path:
        groups = [list(range(self.world)), *map(list, self.groups)]
        config = [{"pg_name": str(n), "pg_desc": "", "ranks": g} for n, g in enumerate(groups)]
        info = {"backend": "gloo", "rank": self.rank, "world_size": self.world, "pg_config": config}
        data: dict[str, Any] = {"schemaVersion": 1, "distributedInfo": info}
        if self.host:
            data["host_name"] = self.host
        path = folder / f"rank{self.rank}.json"
        path.write_text(json.dumps(data | {"traceEvents": self.events}))
        return path


def all_reduce(ranks: Sequence[HostRank], took: float = 0.5) -> None:
    """All ranks reduce together and wait for it."""
    starts = [rank.post("c10d::allreduce_") for rank in ranks]
    end = max(starts) + took
    for rank, start in zip(ranks, starts, strict=True):
        rank.transfer("gloo:all_reduce", start, end)
        rank.now = end + 0.1


def data_parallel(
    folder: Path,
    ranks: Sequence[HostRank],
    *,
    work: Sequence[Sequence[float]],
    idle: Sequence[float] = (),
    inside: str = "",
    passes: int = 1,
) -> list[Path]:
    """A job whose ranks work (steps x ranks, in milliseconds), reduce in each backward pass, and
    step; `idle`: what each rank's host does after that, in every step.
    """
    for number, lengths in enumerate(work, 1):
        starts = [rank.now for rank in ranks]
        for _ in range(passes):
            for rank, length in zip(ranks, lengths, strict=True):
                rank.forward(length / 3)
                rank.backward(2 * length / 3)
            all_reduce(ranks)
        for rank, start in zip(ranks, starts, strict=True):
            rank.optimizer()
            if idle and idle[ranks.index(rank)]:
                rank.idle(idle[ranks.index(rank)], inside)
            rank.step(number, start)
    return [rank.write(folder) for rank in ranks]


def pipeline(
    folder: Path,
    ranks: Sequence[HostRank],
    *,
    micro_batches: int,
    forward: Sequence[float],
    warm_up: Sequence[int] | None = None,
    steps: int = 4,
) -> list[Path]:
    """A pipeline whose stages take `forward` milliseconds and twice that backward; `warm_up`: forward
    passes with which each stage begins, all of them where not given (GPipe).
    """
    last = len(ranks) - 1
    orders = [
        _order(micro_batches, micro_batches if warm_up is None else warm_up[at])
        for at in range(len(ranks))
    ]
    for number in range(1, steps + 1):
        starts = [rank.now for rank in ranks]
        sent: dict[tuple[int, str, int], float] = {}
        places = [0] * len(ranks)
        while any(place < len(order) for place, order in zip(places, orders, strict=True)):
            for at, rank in enumerate(ranks):
                while places[at] < len(orders[at]):
                    kind, batch = orders[at][places[at]]
                    source = at - 1 if kind == "F" else at + 1
                    target = at + 1 if kind == "F" else at - 1
                    if 0 <= source <= last:
                        if (source, kind, batch) not in sent:
                            break
                        start = rank.post("c10d::recv_", source)
                        end = max(start, sent[source, kind, batch]) + 0.2
                        rank.transfer("gloo:recv", start, end)
                        rank.now = end + 0.1
                    if kind == "F":
                        rank.forward(forward[at])
                    else:
                        rank.backward(2 * forward[at])
                    if 0 <= target <= last:
                        start = rank.post("c10d::send", target)
                        rank.transfer("gloo:send", start, start + 0.1)
                        rank.now = start + 0.15
                        sent[at, kind, batch] = start
                    places[at] += 1
        for rank, start in zip(ranks, starts, strict=True):
            rank.optimizer()
            rank.step(number, start)
    return [rank.write(folder) for rank in ranks]


def ring(
    folder: Path,
    ranks: Sequence[HostRank],
    *,
    busy: Sequence[float],
    turns: int = 3,
    steps: int = 6,
) -> list[Path]:
    """Ranks that pass a block on and are busy meanwhile, so many milliseconds, with what no operator
    shows; only then do they ask for the message.
    """
    count = len(ranks)
    for number in range(1, steps + 1):
        starts = [rank.now for rank in ranks]
        for _ in range(turns):
            sent = [rank.post("c10d::send", (rank.rank + 1) % count) for rank in ranks]
            asked = [rank.post("c10d::recv_", (rank.rank - 1) % count) for rank in ranks]
            for at, rank in enumerate(ranks):
                rank.idle(busy[at])
                end = max(rank.now, sent[at - 1] + 0.2)
                rank.transfer("gloo:send", sent[at], end)
                rank.transfer("gloo:recv", asked[at], end)
                rank.now = end + 0.1
                rank.work(0.3)
        for rank, start in zip(ranks, starts, strict=True):
            rank.optimizer()
            rank.step(number, start)
    return [rank.write(folder) for rank in ranks]


def _order(micro_batches: int, warm_up: int) -> list[tuple[str, int]]:
    kinds = ["F"] * warm_up + ["F", "B"] * (micro_batches - warm_up) + ["B"] * warm_up
    counts = {"F": 0, "B": 0}
    order = []
    for kind in kinds:
        order.append((kind, counts[kind]))
        counts[kind] += 1
    return order
