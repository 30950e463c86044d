"""Closed ledgers of op timelines: what every worker did in a step, and why it waited.

Parts of a worker's step, from its first start to the last end of any worker:

- computation, the optimizer, and transfers that computation does not hide, as recorded (a transfer is
  what follows the start of the last side);
- `bubble`: the wait that remains when every operation takes its type's median (a replay);
- pauses that no operation explains, which a replay does not have: `unexplained`;
- the rest is waiting for others: `imbalance` where stages always differ and where micro-batches have
  unequal work (their forward and backward times rise together), `straggler` where workers always
  differ from their stage, or times vary without such a cause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from computeflow.ledger import Cause, Entry, Ledger, Window, concatenate
from computeflow.telemetry.intervals import EMPTY, union
from computeflow.telemetry.op_timelines import dependencies as ops
from computeflow.telemetry.op_timelines.replay import ends_of, usual_durations
from computeflow.telemetry.op_timelines.slowdown import ReplayResult, Slowdown, Worker
from computeflow.telemetry.op_timelines.timeline_file import Floats, Ints

ACCOUNTS = {
    **dict.fromkeys(ops.COMPUTE, "compute"),
    ops.OPTIMIZER: "optimizer",
    **dict.fromkeys((*ops.MESSAGES, ops.EMBEDDINGS), "comm.pp"),
    **dict.fromkeys((ops.GATHER, ops.REDUCE, ops.SEPARATE), "comm.dp"),
    ops.NORMS: "comm.tp",
    ops.CLIP: "comm.other",
    ops.COLLECT: "host",
}
ORDER = ("compute", "optimizer", "comm.pp", "comm.dp", "comm.tp", "comm.other", "host")
"""Priority of accounts: an instant belongs to the first one that has it."""
WORK_VARIES = 0.9
"""The study's bound on the correlation of forward and backward times."""
MIN_SLOWDOWN = 1.03
"""Slowdown below which the study's artifact looks no further."""
MIN_SHARE = 0.5
"""Least share of the lost time that one cause must explain to be named: the study's bound on M_W
and M_S."""
_UNAVAILABLE = {
    "compute.model": "FLOPs of the model",
    "host": "what the host did",
    "input": "what the host did",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAccounts:
    step: int
    wall_seconds: float
    accounts: dict[str, float]
    """GPU-seconds by account."""


def slow_workers(slowdown: Slowdown) -> tuple[Worker, ...]:
    """Workers that always differ from their stage and explain most of the lost time, or none."""
    if slowdown.slowdown < MIN_SLOWDOWN or slowdown.uneven_workers_share < MIN_SHARE:
        return ()
    if slowdown.of_slow.removed < MIN_SHARE:
        return ()
    return tuple(worker for worker in slowdown.workers if worker.rank in slowdown.slow)


def worker_ledger(replayed: ReplayResult) -> tuple[Ledger, tuple[StepAccounts, ...]]:
    """The closed ledger and its steps; waits name their cause where one worker alone holds the
    others up.
    """
    timeline, slowdown = replayed.timeline, replayed.slowdown
    busy = _busy(replayed)
    waits = _waits(replayed, busy)
    gpus = timeline.ranks.size * timeline.gpus_per_worker
    slow = slow_workers(slowdown)
    cause = Cause(rank=slow[0].rank, account="compute") if len(slow) == 1 else None
    ledgers = []
    for index, step in enumerate(timeline.steps):
        seconds = {name: float(table[index].sum()) for name, table in (busy | waits).items()}
        entries = [
            Entry(
                account=name,
                gpu_seconds=value * timeline.gpus_per_worker,
                cause=cause if name == "straggler" else None,
            )
            for name, value in seconds.items()
            if value > 0
        ]
        ledgers.append(
            Ledger.closed(
                entries,
                gpus=gpus,
                wall_seconds=slowdown.recorded[index],
                basis="measured",
                window=Window(label=f"step {step}", first_step=step, last_step=step),
                unavailable=_UNAVAILABLE,
                booked_under={"input": "unexplained"},
            )
        )
    by_step = tuple(
        StepAccounts(step=step, wall_seconds=ledger.wall_seconds, accounts=ledger.accounts)
        for step, ledger in zip(timeline.steps, ledgers, strict=True)
    )
    return concatenate(ledgers), by_step


def _busy(replayed: ReplayResult) -> dict[str, Floats]:
    """Busy seconds by account as recorded, step by worker (replica by stage)."""
    timeline = replayed.timeline
    first = timeline.start.min(axis=(0, 2))[None, :, None]
    start = np.maximum(replayed.measured.began, timeline.start) - first
    end = timeline.start + timeline.duration - first
    return _exposed(replayed, start, end)


def _waits(replayed: ReplayResult, busy: dict[str, Floats]) -> dict[str, Floats]:
    slowdown, seconds = replayed.slowdown, replayed.seconds
    whole = np.array(slowdown.recorded)[:, None]
    rest = np.maximum(whole - sum(busy.values()), 0.0)
    bubble = np.minimum(rest, _usual_wait(replayed)[None, :])
    pauses = np.maximum(whole - np.array(slowdown.replayed)[:, None], 0.0)
    excess = np.maximum(rest - bubble - pauses, 0.0)
    stages = np.maximum(seconds["by stage"] - seconds["median"], 0.0)
    workers = np.maximum(seconds["by worker"] - seconds["by stage"], 0.0)
    varying = np.maximum(seconds["measured"] - seconds["by worker"], 0.0)
    total = np.maximum(stages + workers + varying, 1e-30)
    by_work = (slowdown.varies_with_work or 0.0) >= WORK_VARIES
    uneven = (stages + (varying if by_work else 0.0)) / total
    unequal = (workers + (0.0 if by_work else varying)) / total
    return {
        "bubble": bubble,
        "imbalance": excess * uneven[:, None],
        "straggler": excess * unequal[:, None],
    }


def _usual_wait(replayed: ReplayResult) -> Floats:
    """Each worker's wait in a replay with medians: one step of one replica stands for all."""
    timeline = replayed.timeline
    median = usual_durations(timeline, replayed.measured.own, median=True)[:, :1, None]
    end = ends_of(replayed.graph, (len(median), 1, 1), [median])[:, 0]
    busy = _exposed(replayed, end - median, end)
    wait = float(replayed.seconds["median"][0]) - sum(busy.values())
    return np.tile(np.maximum(wait, 0.0)[0], timeline.replicas)


def _exposed(replayed: ReplayResult, start: Floats, end: Floats) -> dict[str, Floats]:
    """Exposed seconds of each account, by step and worker, which are laid out on one long line."""
    pattern = replayed.timeline.pattern
    _, steps, replicas = start.shape
    slots = steps * replicas * pattern.stages
    begin, finish = _nanoseconds(start), _nanoseconds(end)
    length = int(finish.max(initial=0)) + 1
    step, replica = np.arange(steps)[:, None], np.arange(replicas)[None, :]
    slot = (step * replicas + replica)[None] * pattern.stages + pattern.stage[:, None, None]
    begin, finish = slot * length + begin, slot * length + finish
    edges = np.arange(slots, dtype=np.int64) * length
    taken, exposed = EMPTY, {}
    kinds = np.array([ACCOUNTS[kind] for kind in pattern.optype])
    for account in ORDER:
        chosen = kinds == account
        own = union(begin[chosen].ravel(), finish[chosen].ravel()).minus(taken)
        taken = taken.either(own)
        seconds = own.within(edges, edges + length) / 1e9
        exposed[account] = seconds.reshape(steps, replicas * pattern.stages)
    return exposed


def _nanoseconds(seconds: Floats) -> Ints:
    return np.maximum(np.rint(seconds.astype(np.float64) * 1e9), 0).astype(np.int64)
