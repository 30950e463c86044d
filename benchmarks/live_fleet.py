"""Runs with known truth, faults where wanted: `make_run`; `live_batches` sends them to a collector.

Ranks train together as under DDP: a batch, forward, backward with an all-reduce of buckets whose last
one ends it for all, optimizer. Every step waits for its last rank, so the times of a whole run are sums
of maxima and are computed at once. The noise is that of real runs (`step_noise`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from benchmarks.step_noise import PHASES, StepNoise, draw
from computeflow.telemetry.run_folders.phases import (
    BACKWARD,
    CHECKPOINT,
    COLLECTION,
    DATA,
    EDGE,
    EVALUATION,
    FORWARD,
    OPTIMIZER,
    gap_kinds,
)

Ints = NDArray[np.int64]
Kind = Literal[
    "slow-rank", "slow-node", "slow-loader", "slow-loader-all", "gc", "host-stall", "checkpoint",
    "evaluation", "hang", "killed", "memory-pressure", "regression",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
SHARES = {"input": 0.01, "forward": 0.28, "backward": 0.59, "optimizer": 0.09, "host": 0.02}
"""Shares of a step; the transfer of the last bucket takes the rest."""
TRANSFER = 0.01
BUCKETS = 3
SAVE_EVERY = 20
"""Steps between two checkpoints or evaluations, where they are the fault."""
NODE_RANKS = 8
MAX_STALL_NOISE = 0.005
"""Mean share of a step that noise may add to waiting for data or to host time; 2 % is a finding."""
MAX_RANK_SPREAD = 0.004
"""Production jobs show 0.32 and 0.35 %; ranks that differ by more for good are what is looked for."""
_NEVER_MICROS = 10**12
_EDGE, _SAVE, _EVAL, _INPUT, _FWD, _GC, _MIDDLE, _BWD, _AFTER, _OPT = range(10)
"""Pieces of a step, in their order."""
COLLECTED = _GC
PIECES = 10
_ADDED_TO = {
    "slow-loader": _INPUT, "slow-loader-all": _INPUT, "gc": _GC, "host-stall": _EDGE,
    "checkpoint": _SAVE, "evaluation": _EVAL, "memory-pressure": _FWD,
}  # fmt: skip
_ON_ALL = ("slow-loader-all", "checkpoint", "evaluation", "regression")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, from one step (counted from 0) up to another.

    `severity` is a factor on computing for slow ranks and regressions, 1 + the share of a step that is
    added for the rest, and seconds for a hang.
    """

    kind: Kind
    severity: float
    rank: int = 0
    begin: int = 0
    end: int = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A run to make."""

    run: str = "made"
    ranks: int = 8
    steps: int = 300
    step_seconds: float = 0.5
    noise: StepNoise | None = None
    level: float = 1.0
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    start: float = 1_790_000_000.0
    """Unix seconds at which the processes begin."""
    startup_seconds: float = 2.0
    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRun:
    """Ranks x steps; times are Unix microseconds."""

    fleet: Fleet
    begin: Ints
    end: Ints
    lengths: Ints
    """Ranks x steps x pieces; 0 where a step has no such piece."""
    kinds: NDArray[np.int32]
    arrivals: Ints
    """Ranks x steps x buckets."""
    killed: dict[int, int]
    """Ranks that are gone, and their first step that never ends."""

    @property
    def nodes(self) -> int:
        return -(-self.fleet.ranks // NODE_RANKS)

    def faulty_seconds(self, fault: Fault) -> tuple[float, float]:
        """Unix seconds at which the first faulty step ends, and at which the last one does."""
        last = min(fault.end, self.fleet.steps) - 1
        return float(self.end[:, fault.begin].max() / 1e6), float(self.end[:, last].max() / 1e6)


def node_name(node: int) -> str:
    return f"node{node:04d}"


def make_run(fleet: Fleet) -> MadeRun:
    """Times of every rank and step."""
    usual = round(fleet.step_seconds * 1e6)
    lengths, killed = _own_times(fleet, usual), dict[int, int]()
    for fault in fleet.faults:
        if fault.kind == "killed":
            killed[fault.rank] = fault.begin
    work = lengths[:, :, _BWD].copy()
    before = lengths[:, :, :_BWD].sum(axis=2)
    after = lengths[:, :, _AFTER:].sum(axis=2)
    # a step ends for all when its last rank has come, so steps follow each other by these maxima
    arrived = before + work
    arrived[:, 1:] += after[:, :-1]
    transfer = max(round(TRANSFER * usual), 1)
    began = round((fleet.start + fleet.startup_seconds) * 1e6)
    until = began + np.cumsum(arrived.max(axis=0) + transfer)
    end = until[None] + after
    begin = np.empty_like(end)
    begin[:, 0] = began
    begin[:, 1:] = end[:, :-1]
    start = begin + before
    lengths[:, :, _BWD] = until[None] - start
    parts = np.arange(1, BUCKETS + 1)
    return MadeRun(
        fleet=fleet,
        begin=begin,
        end=end,
        lengths=lengths,
        kinds=_kinds(lengths),
        arrivals=start[:, :, None] + work[:, :, None] * parts // BUCKETS,
        killed=killed,
    )


def _own_times(fleet: Fleet, usual: int) -> Ints:
    """Microseconds of each piece, as if no rank ever waited."""
    random = np.random.default_rng(fleet.seed)
    share = np.array([SHARES[name] for name in PHASES])
    spread = min(fleet.noise.rank_spread, MAX_RANK_SPREAD) if fleet.noise is not None else 0.0
    speed = 1 + fleet.level * spread * random.standard_normal((fleet.ranks, 1, 1))
    own = np.broadcast_to(share * speed, (fleet.ranks, fleet.steps, len(PHASES))).copy()
    if fleet.noise is not None:
        own += _healthy(draw(fleet.noise, fleet.ranks, fleet.steps, fleet.level, random))
    own = np.maximum(own, 0.2 * share)
    lengths = np.zeros((fleet.ranks, fleet.steps, PIECES))
    lengths[:, :, [_INPUT, _FWD, _BWD, _OPT]] = own[:, :, :4]
    for piece in (_EDGE, _MIDDLE, _AFTER):
        lengths[:, :, piece] = own[:, :, 4] / 3
    for fault in fleet.faults:
        _apply(fault, fleet, lengths)
    micros = np.rint(lengths * usual).astype(np.int64)
    micros[:, :, [_INPUT, _FWD, _BWD, _OPT]] = np.maximum(
        micros[:, :, [_INPUT, _FWD, _BWD, _OPT]], 1
    )
    return micros


def _healthy(deviation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Noise whose waits for data and host time are not a stall by themselves.

    In some sources their tails are so long that the mean is a finding, and rightly so.
    """
    for name in ("input", "host"):
        part = deviation[:, :, PHASES.index(name)]
        mean = float(np.maximum(part, -SHARES[name]).mean())
        if mean > MAX_STALL_NOISE:
            part *= MAX_STALL_NOISE / mean
    return deviation


def _apply(fault: Fault, fleet: Fleet, lengths: NDArray[np.float64]) -> None:
    """Change lengths, in steps, as the fault does."""
    ranks = faulty_ranks(fault, fleet.ranks) or tuple(range(fleet.ranks))
    rows = lengths[ranks[0] : ranks[-1] + 1, fault.begin : min(fault.end, fleet.steps)]
    more = fault.severity - 1
    match fault.kind:
        case "slow-rank" | "slow-node" | "regression":
            rows[:, :, _FWD] *= fault.severity
            rows[:, :, _BWD] *= fault.severity
        case "checkpoint" | "evaluation":
            rows[:, ::SAVE_EVERY, _ADDED_TO[fault.kind]] += more * SAVE_EVERY
        case "hang":
            rows[:, :1, _FWD] += fault.severity / fleet.step_seconds
        case "killed":
            rows[:, :1, _FWD] += _NEVER_MICROS / 1e6 / fleet.step_seconds
        case kind:
            rows[:, :, _ADDED_TO[kind]] += more


def faulty_ranks(fault: Fault, world: int) -> tuple[int, ...]:
    """The ranks that a fault is on; () where it is on all of them."""
    if fault.kind in _ON_ALL:
        return ()
    if fault.kind != "slow-node":
        return (fault.rank,)
    first = fault.rank - fault.rank % NODE_RANKS
    return tuple(range(first, min(first + NODE_RANKS, world)))


def _kinds(lengths: Ints) -> NDArray[np.int32]:
    """Kinds of the pieces; gaps are known by their neighbours."""
    kinds = np.empty(lengths.shape, np.int32)
    letters = {
        _SAVE: CHECKPOINT,
        _EVAL: EVALUATION,
        _INPUT: DATA,
        _FWD: FORWARD,
        _GC: COLLECTION,
        _BWD: BACKWARD,
        _OPT: OPTIMIZER,
    }
    for piece, letter in letters.items():
        kinds[:, :, piece] = letter
    after = np.where(
        lengths[:, :, _SAVE] > 0, CHECKPOINT, np.where(lengths[:, :, _EVAL] > 0, EVALUATION, DATA)
    )
    kinds[:, :, _EDGE] = gap_kinds(np.full_like(after, EDGE), after)
    before = np.where(lengths[:, :, _GC] > 0, COLLECTION, FORWARD)
    kinds[:, :, _MIDDLE] = gap_kinds(before, np.full_like(before, BACKWARD))
    kinds[:, :, _AFTER] = gap_kinds(np.array(BACKWARD), np.array(OPTIMIZER))
    return kinds
