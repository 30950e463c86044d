"""The study's published slowdowns, and their causes: stages, workers, or neither.

S = T / T_ideal, T the replayed step and T_ideal the one with every operation at its type's usual
duration; S_t, S_dp and S_stage with only the operations of a type, a replica, a stage as measured;
S_w = min(S_dp, S_stage) of a worker. M_W and M_S are the parts of T - T_ideal that disappear when
the slowest 3 % of workers, or the last stage, take the usual durations (OSDI'25, equations 1, 2, 4,
5 and section 5.2; the artifact's `AnalyzerResult` and `compute_mw`).

Those cannot tell a stage that is always slow from one that varies more. So T is also built up: each
type at its median, then each type on its stage, then on its worker, then as measured. What stages
add is uneven division of work, what workers add is unequal speed at equal work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from computeflow.errors import InputError
from computeflow.files.limits import REPLAYED_OPERATIONS
from computeflow.telemetry.op_timelines.dependencies import (
    BACKWARD,
    FORWARD,
    MESSAGES,
    Graph,
    build,
)
from computeflow.telemetry.op_timelines.replay import (
    OwnDurations,
    Scenario,
    measure,
    mix_durations,
    step_seconds,
    usual_durations,
)
from computeflow.telemetry.op_timelines.timeline_file import Floats, OpTimeline

_TOP_PERCENT = 3
_MIN_PAIRS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """Shares of T - T_ideal: `removed` when these operations take usual durations, `added` when
    only they do not.
    """

    removed: float
    added: float
    removed_seconds: float
    """T with these at usual durations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    rank: int
    replica: int
    stage: int
    slowdown: float
    """S_w of the study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    slowdown: float
    """S of the study."""
    step_seconds: float
    """T: mean over the steps, without the pauses that no operation explains."""
    ideal_seconds: float
    recorded_seconds: float
    """Mean time of a step as recorded."""
    by_type: Mapping[str, float]
    """S_t of the study, by type of operation."""
    by_replica: tuple[float, ...]
    by_stage: tuple[float, ...]
    workers: tuple[Worker, ...]
    """Workers, slowest first."""
    slowest: tuple[int, ...]
    """Ranks of the slowest 3 %, at least one."""
    of_slowest: Contribution
    """`removed` is M_W."""
    of_last_stage: Contribution
    """`removed` is M_S."""
    slow: tuple[int, ...]
    """Ranks whose usual durations exceed those of their stage at least half as much as the worst do;
    () where that would be more than a quarter of all."""
    of_slow: Contribution
    slowest_stage: int
    of_slowest_stage: Contribution
    uneven_stages_share: float
    """Share of T over the step with everything at its median that is due to stages that always
    differ."""
    uneven_workers_share: float
    """Share due to workers that always differ from their stage."""
    varying_share: float
    """Share that differs from micro-batch to micro-batch: the rest."""
    varies_with_work: float | None
    """Correlation of forward and backward times of micro-batches: near 1 where some have more work."""
    steps: tuple[int, ...]
    recorded: tuple[float, ...]
    """Seconds of each step, as recorded."""
    replayed: tuple[float, ...]
    ideal: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    timeline: OpTimeline
    graph: Graph
    measured: OwnDurations
    slowdown: Slowdown
    seconds: Mapping[str, Floats]
    """Seconds of each step by scenario: measured, median, by stage, by worker."""


def replay(timeline: OpTimeline) -> ReplayResult:
    graph = build(timeline.pattern)
    measured = measure(timeline, graph)
    ideal = usual_durations(timeline, measured.own)
    kinds, stages = _masks(timeline)
    scenarios = _scenarios(timeline, measured.own, ideal)
    _check_work(timeline, len(scenarios))
    seconds = step_seconds(timeline, graph, scenarios)
    seconds |= step_seconds(timeline, graph, _alone(measured.own, ideal), min(timeline.replicas, 2))
    base = float(seconds["ideal"].mean())
    if not base > 0:
        raise InputError("operations without any duration")
    by_stage = tuple(float(seconds[f"stage {s}"].mean()) / base for s in stages)
    by_replica = tuple(
        float(seconds[f"replica {r}"].mean()) / base for r in range(timeline.replicas)
    )
    workers = _workers(timeline, by_stage, by_replica)
    count = -(-len(workers) * _TOP_PERCENT // 100)
    slow = max(range(len(by_stage)), key=lambda stage: by_stage[stage])
    apart = _apart(timeline, scenarios["by worker"]()[:, 0])
    parts = {
        "slowest": _of_workers(timeline, [(w.replica, w.stage) for w in workers[:count]]),
        "last": stages[str(len(by_stage) - 1)],
        "stage": stages[str(slow)],
        "slow": _of_workers(timeline, apart),
    }
    more = {
        f"without {n}": partial(mix_durations, measured.own, ideal, ~m) for n, m in parts.items()
    }
    more |= {f"only {n}": partial(mix_durations, measured.own, ideal, m) for n, m in parts.items()}
    seconds |= step_seconds(timeline, graph, more)
    mean = {name: float(values.mean()) for name, values in seconds.items()}
    recorded = _recorded(timeline)
    slowdown = Slowdown(
        slowdown=mean["measured"] / base,
        step_seconds=mean["measured"],
        ideal_seconds=base,
        recorded_seconds=float(recorded.mean()),
        by_type={kind: mean[f"type {kind}"] / base for kind in kinds},
        by_replica=by_replica,
        by_stage=by_stage,
        workers=workers,
        slowest=tuple(worker.rank for worker in workers[:count]),
        of_slowest=_contribution(mean, "slowest"),
        of_last_stage=_contribution(mean, "last"),
        slow=tuple(sorted(int(timeline.ranks[worker]) for worker in apart)),
        of_slow=_contribution(mean, "slow"),
        slowest_stage=slow,
        of_slowest_stage=_contribution(mean, "stage"),
        **_shares(mean),
        varies_with_work=_correlation(timeline, measured),
        steps=timeline.steps,
        recorded=tuple(recorded.tolist()),
        replayed=tuple(seconds["measured"].tolist()),
        ideal=tuple(seconds["ideal"].tolist()),
    )
    return ReplayResult(
        timeline=timeline,
        graph=graph,
        measured=measured,
        slowdown=slowdown,
        seconds={n: seconds[n] for n in ("measured", "median", "by stage", "by worker")},
    )


def _check_work(timeline: OpTimeline, scenarios: int) -> None:
    """Refuse timelines that are too large: every type and every stage is replayed over all
    operations.
    """
    work = scenarios * timeline.start.size
    if work > REPLAYED_OPERATIONS:
        raise InputError(
            f"{timeline.start.size:,} operations of {timeline.pattern.stages:,} stages are {work:,} "
            f"to replay; at most {REPLAYED_OPERATIONS:,}: give fewer steps"
        )


def _scenarios(timeline: OpTimeline, own: Floats, ideal: Floats) -> dict[str, Scenario]:
    """Durations as measured, ideal, ideal but for one type or stage, and by medians."""
    scenarios: dict[str, Scenario] = {"measured": lambda: own, "ideal": lambda: ideal[:, None, :]}
    for prefix, masks in zip(("type", "stage"), _masks(timeline), strict=True):
        scenarios |= {
            f"{prefix} {k}": partial(mix_durations, own, ideal, m) for k, m in masks.items()
        }
    for name, by in (("median", ()), ("by stage", ("stage",)), ("by worker", ("stage", "replica"))):
        durations = usual_durations(timeline, own, by=by, median=True)[:, None, :]
        scenarios[name] = partial(np.asarray, durations)
    return scenarios


def _alone(own: Floats, ideal: Floats) -> dict[str, Scenario]:
    """One replica as measured; all others are at their usual durations, so one stands for them."""

    def durations(replica: int) -> Floats:
        others = np.broadcast_to(ideal[:, None, :1], (*own.shape[:2], 1))
        pair = np.concatenate([own[:, :, replica : replica + 1], others], axis=2)
        return pair[:, :, : own.shape[2]]

    return {f"replica {r}": partial(durations, r) for r in range(own.shape[2])}


def _of_workers(timeline: OpTimeline, workers: Sequence[tuple[int, int]]) -> Floats:
    """Mask of the operations, by replica, of workers named by replica and stage."""
    chosen = np.zeros((timeline.pattern.stages, timeline.replicas), bool)
    for replica, stage in workers:
        chosen[stage, replica] = True
    return chosen[timeline.pattern.stage]


def _masks(timeline: OpTimeline) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Masks of operations by replica, for types (messages of one direction count as one) and
    stages.
    """
    pattern = timeline.pattern
    names = np.array([f"{k.split('-')[0]}-pp-comm" if k in MESSAGES else k for k in pattern.optype])
    return (
        {str(k): (names == k)[:, None] for k in np.unique(names)},
        {str(s): (pattern.stage == s)[:, None] for s in range(pattern.stages)},
    )


def _workers(
    timeline: OpTimeline, by_stage: tuple[float, ...], by_replica: tuple[float, ...]
) -> tuple[Worker, ...]:
    workers = [
        Worker(
            rank=int(timeline.ranks[r, s]),
            replica=r,
            stage=s,
            slowdown=min(by_replica[r], by_stage[s]),
        )
        for r in range(timeline.replicas)
        for s in range(timeline.pattern.stages)
    ]
    return tuple(sorted(workers, key=lambda worker: (-worker.slowdown, worker.rank)))


def _apart(timeline: OpTimeline, by_worker: Floats) -> list[tuple[int, int]]:
    """Replica and stage of workers that stand out from their stage; a stage with one worker has
    none.
    """
    stage = timeline.pattern.stage
    work = np.stack([by_worker[stage == s].sum(axis=0) for s in range(timeline.pattern.stages)], 1)
    excess = work / np.maximum(np.median(work, axis=0), 1e-12) - 1
    most = float(excess.max())
    outliers = [(int(r), int(s)) for r, s in np.argwhere((excess >= most / 2) & (excess > 0))]
    return outliers if most > 0 and len(outliers) <= max(excess.size // 4, 1) else []


def _contribution(mean: Mapping[str, float], name: str) -> Contribution:
    lost = mean["measured"] - mean["ideal"]
    if not lost > 0:
        return Contribution(removed=0.0, added=0.0, removed_seconds=mean["measured"])
    return Contribution(
        removed=(mean["measured"] - mean[f"without {name}"]) / lost,
        added=(mean[f"only {name}"] - mean["ideal"]) / lost,
        removed_seconds=mean[f"without {name}"],
    )


def _shares(mean: Mapping[str, float]) -> dict[str, float]:
    lost = mean["measured"] - mean["median"]
    if not lost > 0:
        return dict.fromkeys(("uneven_stages_share", "uneven_workers_share", "varying_share"), 0.0)
    stages, workers = mean["by stage"] - mean["median"], mean["by worker"] - mean["by stage"]
    return {
        "uneven_stages_share": stages / lost,
        "uneven_workers_share": workers / lost,
        "varying_share": 1 - (stages + workers) / lost,
    }


def _recorded(timeline: OpTimeline) -> Floats:
    """Seconds of each step, from the first start to the last end."""
    end = timeline.start + timeline.duration
    return np.asarray((end.max(axis=(0, 2)) - timeline.start.min(axis=(0, 2))).astype(np.float64))


def _correlation(timeline: OpTimeline, measured: OwnDurations) -> float | None:
    """Correlation of a micro-batch's forward and backward times, each against its worker's mean."""
    pattern, batch = timeline.pattern, timeline.micro_batch
    if batch is None:
        return None
    kinds = np.array(pattern.optype)
    pairs: dict[str, list[Floats]] = {FORWARD: [], BACKWARD: []}
    for stage in range(pattern.stages):
        for kind, values_of in pairs.items():
            ops = np.flatnonzero((kinds == kind) & (pattern.stage == stage))
            order = np.argsort(batch[ops], axis=0, kind="stable")
            values = np.take_along_axis(measured.own[ops], order, axis=0).astype(np.float64)
            values_of.append((values / np.maximum(values.mean(axis=(0, 1)), 1e-12)).ravel())
    if list(map(len, pairs[FORWARD])) != list(map(len, pairs[BACKWARD])):
        return None
    forward, backward = (np.concatenate(values) for values in pairs.values())
    if len(forward) < _MIN_PAIRS or not (forward.std() > 0 and backward.std() > 0):
        return None
    return float(np.corrcoef(forward, backward)[0, 1])
