"""Dependencies of the operations in a step, as in the straggler study, on one replica.

On a worker, operations of one kind of work run one after another: computation, each direction of
pipeline messages, data-parallel communication. Across them:

- a stage's k-th forward (backward) computation needs its k-th receipt, which is posted after the
  computation before; a send follows its computation;
- the first backward messages are posted two computations before the first backward one;
- the first forward of a chunk needs the chunk's gathered parameters;
- the step ends with: garbage collection, gradients of layer norms, of embeddings (first and last
  stage together), of the data-parallel group, clipping (all stages together), the optimizer. Where
  gradients are reduced while the backward pass runs, each chunk's follow its last backward.

A message joins its two ends; an operation of a data-parallel group joins all its replicas. Operations
that were recorded but move nothing (at the ends of the pipeline) join nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from computeflow.errors import InputError
from computeflow.telemetry.op_timelines.timeline_file import Pattern

FORWARD, BACKWARD = "forward-compute", "backward-compute"
COMPUTE = (FORWARD, BACKWARD)
MESSAGES = ("forward-send", "forward-recv", "backward-send", "backward-recv")
GATHER, REDUCE = "params-all-gather", "grads-reduce-scatter"
SEPARATE = "separate-grads-all-reduce"
NORMS, EMBEDDINGS = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
CLIP, OPTIMIZER, COLLECT = "optimizer-clip-main-grad", "optimizer", "gc"
_ACROSS_REPLICAS = (GATHER, REDUCE, SEPARATE, CLIP)
COMMUNICATION = (*MESSAGES, GATHER, REDUCE, SEPARATE, NORMS, EMBEDDINGS, CLIP)
KNOWN = (*COMPUTE, *COMMUNICATION, OPTIMIZER, COLLECT)
_CLOCKS = 5e-5
"""Seconds by which the clocks of two workers may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Operations that end together, after the last of them has begun; a single one where nothing is
    exchanged.
    """

    ops: tuple[int, ...]
    joined: bool
    """Whether it ends one transfer after its last operation began, rather than each by its own
    duration."""
    all_replicas: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    before: tuple[tuple[int, ...], ...]
    """The operations that each operation waits for."""
    order: tuple[Meeting, ...]
    """Meetings in an order in which each follows what it waits for."""


@dataclass(slots=True)
class _Stage:
    """A worker's operations by type, each in order of start."""

    by_type: dict[str, list[int]] = field(default_factory=dict)

    def of(self, *types: str) -> list[int]:
        return [op for kind in types for op in self.by_type.get(kind, ())]


def build(pattern: Pattern) -> Graph:
    builder = _Builder(pattern)
    builder.connect()
    return builder.graph()


class _Builder:
    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.overlapped = SEPARATE in pattern.optype
        self.before: list[list[int]] = [[] for _ in pattern.optype]
        self.meets: list[list[int]] = []
        self.stages = [_Stage() for _ in range(pattern.stages)]
        self.sent: dict[tuple[str, int], list[int]] = {}
        """Messages that move something, by type and stage."""
        order = sorted(
            range(len(pattern.optype)),
            key=lambda op: (pattern.start[op], pattern.number[op], pattern.optype[op]),
        )
        unknown = set(pattern.optype) - set(KNOWN)
        if unknown:
            raise InputError(f"operations of unknown type: {', '.join(sorted(unknown)[:5])}")
        for op in order:
            stage = self.stages[int(pattern.stage[op])]
            stage.by_type.setdefault(pattern.optype[op], []).append(op)
        if not all(stage.of(FORWARD) and stage.of(BACKWARD) for stage in self.stages):
            raise InputError("a stage without forward or backward computation")

    def connect(self) -> None:
        for number, stage in enumerate(self.stages):
            work = self._in_order(stage.of(*COMPUTE))
            self._chain(work)
            for kind in MESSAGES:
                self._chain(stage.of(kind))
                self._messages(number, stage, kind)
            self._first_backward(stage, work)
            self._chain(self._in_order(stage.of(GATHER, REDUCE)))
            self._gathered(stage)
            if self.overlapped:
                self._reduced(stage)
            self._end_of_step(stage, work, at_an_end=number in (0, len(self.stages) - 1))
        self._pairs()
        ends = {0, len(self.stages) - 1}
        self.meets.append([op for n in ends for op in self.stages[n].of(EMBEDDINGS)])
        self.meets.append([op for stage in self.stages for op in stage.of(CLIP)])
        self.meets += [[op] for stage in self.stages for op in stage.of(GATHER, REDUCE, SEPARATE)]

    def _in_order(self, ops: Iterable[int]) -> list[int]:
        p = self.pattern
        return sorted(ops, key=lambda op: (p.start[op], p.number[op], p.optype[op]))

    def _chain(self, ops: Iterable[int], last: Iterable[int] = ()) -> None:
        waits = list(last)
        for op in ops:
            self.before[op] += waits
            waits = [op]

    def _messages(self, number: int, stage: _Stage, kind: str) -> None:
        """Link the k-th message of a direction to the k-th computation of that direction."""
        direction, side = kind.split("-")
        work = self._numbered(stage.of(f"{direction}-compute"))
        real = self._moving(stage.of(kind), work, received=side == "recv")
        missing = len(work) - len(real)
        at_an_end = number in (0, self.pattern.stages - 1)
        if real and missing not in ((0, 1) if at_an_end else (0,)):
            raise InputError(
                f"stage {number}: {len(real)} {kind} for {len(work)} {direction} computations"
            )
        # nothing is sent for the first computation
        skipped = missing if side == "recv" and real else 0
        for index, op in enumerate(real, skipped):
            if side == "send":
                self.before[op].append(work[index])
            else:
                self.before[work[index]].append(op)
                self.before[op] += work[max(index - 1, 0) : index]
        with_peer = [
            op for index, op in enumerate(real, skipped) if self._has_peer(kind, work[index])
        ]
        self.sent[kind, number] = with_peer
        self.meets += [[op] for op in stage.of(kind) if op not in set(with_peer)]

    def _moving(self, messages: list[int], work: list[int], *, received: bool) -> list[int]:
        """Messages that a computation of the stage waits for or produces."""
        p = self.pattern
        if received:
            last = max(p.start[op] for op in work)
            return [op for op in messages if p.start[op] <= last + _CLOCKS]
        first = min(p.end[op] for op in work)
        return [op for op in messages if p.end[op] >= first - _CLOCKS]

    def _numbered(self, ops: list[int]) -> list[int]:
        return sorted(ops, key=lambda op: int(self.pattern.number[op]))

    def _has_peer(self, kind: str, work: int) -> bool:
        p = self.pattern
        chunks = p.stages * (int(p.chunk.max()) + 1)
        return 0 <= int(p.global_chunk[work]) + _towards(kind) < chunks

    def _pairs(self) -> None:
        stages = self.pattern.stages
        for (kind, number), ops in self.sent.items():
            direction, side = kind.split("-")
            if side == "recv":
                continue
            there = (number + _towards(kind)) % stages
            others = self.sent.get((f"{direction}-recv", there), [])
            if len(others) != len(ops):
                raise InputError(
                    f"stage {number} sends {len(ops)} messages {direction}, stage {there} takes "
                    f"{len(others)}"
                )
            self.meets += [list(pair) for pair in zip(ops, others, strict=True)]

    def _first_backward(self, stage: _Stage, work: list[int]) -> None:
        first = next(i for i, op in enumerate(work) if self.pattern.optype[op] == BACKWARD)
        if first >= 2:
            for kind in ("backward-recv", "backward-send"):
                self._chain(self._numbered(stage.of(kind))[:1], [work[first - 2]])

    def _gathered(self, stage: _Stage) -> None:
        p = self.pattern
        last = {int(p.chunk[op]): op for op in self._numbered(stage.of(GATHER))}
        for chunk, op in last.items():
            own = [w for w in stage.of(FORWARD) if int(p.chunk[w]) == chunk]
            if own:
                self.before[min(own, key=lambda w: p.start[w])].append(op)

    def _reduced(self, stage: _Stage) -> None:
        p = self.pattern
        first = {int(p.chunk[op]): op for op in reversed(self._numbered(stage.of(REDUCE)))}
        for chunk, op in first.items():
            own = [w for w in stage.of(BACKWARD) if int(p.chunk[w]) == chunk]
            if own:
                self.before[op].append(max(own, key=lambda w: p.end[w]))

    def _end_of_step(self, stage: _Stage, work: list[int], *, at_an_end: bool) -> None:
        last = [max(work, key=lambda op: self.pattern.end[op])]
        collect = stage.of(COLLECT)
        self._chain(collect, last)
        waits = collect[-1:] or last
        embeddings = stage.of(EMBEDDINGS) if at_an_end else []
        middle = reduced = self._numbered(stage.of(REDUCE))
        if self.overlapped:
            waits = [*reduced[-1:], *waits]
            middle = stage.of(SEPARATE)
        closing = [*stage.of(NORMS), *embeddings, *middle, *stage.of(CLIP), *stage.of(OPTIMIZER)]
        self._chain(closing, waits)

    def graph(self) -> Graph:
        """Put every operation into one meeting, in an order that respects all dependencies."""
        meeting_of: dict[int, int] = {}
        meetings: list[tuple[list[int], bool]] = []
        for ops in self.meets:
            if ops:
                meeting_of |= dict.fromkeys(ops, len(meetings))
                meetings.append((ops, True))
        for op in range(len(self.before)):
            if op not in meeting_of:
                meeting_of[op] = len(meetings)
                meetings.append(([op], False))
        return Graph(
            before=tuple(tuple(dict.fromkeys(waits)) for waits in self.before),
            order=tuple(
                Meeting(
                    ops=tuple(meetings[index][0]),
                    joined=meetings[index][1],
                    all_replicas=self._is_shared(*meetings[index]),
                )
                for index in self._sorted(meeting_of, [ops for ops, _ in meetings])
            ),
        )

    def _is_shared(self, ops: list[int], joined: bool) -> bool:
        return joined and self.pattern.optype[ops[0]] in _ACROSS_REPLICAS

    def _sorted(self, meeting_of: dict[int, int], meetings: list[list[int]]) -> list[int]:
        needs = {
            index: {meeting_of[wait] for op in ops for wait in self.before[op]}
            for index, ops in enumerate(meetings)
        }
        try:
            return list(TopologicalSorter(needs).static_order())
        except CycleError:
            raise InputError(
                "operations wait for each other in a circle: not the order of one program"
            ) from None


def _towards(kind: str) -> int:
    """Offset to the stage at a message's other end."""
    return 1 if kind in ("forward-send", "backward-recv") else -1
