"""The best checkpoint interval and number of spares, with their curves.

All points of a curve have the same random numbers, so the curve is smooth where its points
are noisy. The interval is the vertex of a parabola through the points around the lowest, in
logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from computeflow.errors import InputError
from computeflow.scheduling import Checkpoints, Spares, daly_seconds, young_seconds
from computeflow.simulation.run_inputs import RunInputs, pool_nodes
from computeflow.simulation.simulate import Simulation, simulate_many

_POINTS = 17
_WIDTH = 8.0
"""Factor of the searched intervals on either side of Daly's."""
_AROUND = 3
"""Points on either side of the lowest that the parabola goes through: it is flat there."""
TIE = 0.001
"""Share of the time: spares that gain less are not worth a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One setting, simulated."""

    at: float
    """The interval in seconds, or the number of spare nodes."""
    seconds: float
    """Mean, as the run's own: replicas that were given up count until then. Where the run goes by
    time: what all of it takes at this pace."""
    p10: float
    p90: float
    pace_seconds: float
    """That all of the work takes at the mean pace, by which settings are compared; `seconds` where
    every replica finished."""
    finished: float
    """Share of replicas that did all their work; 1 where the run goes by time."""
    work_seconds: float
    """Mean of steps at full speed that were done and kept."""
    work_p10: float
    work_p90: float
    ettr: float
    goodput: float
    gpu_seconds: float
    """GPU-seconds of all allocated GPUs, in `seconds`."""
    waits: float
    """Failures without a spare, mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalCurve:
    points: tuple[CurvePoint, ...]
    best_seconds: float
    young_seconds: float
    daly_seconds: float
    daly_costs: float
    """How much longer the run is at Daly's interval than at the best, as a share; from the points."""
    replicas: int

    @property
    def flat_seconds(self) -> tuple[float, float]:
        """The intervals around the best between which the run takes at most `TIE` longer than there, by
        the logarithm of the interval between points.
        """
        costs = [point.pace_seconds for point in self.points]
        logs = [math.log(point.at) for point in self.points]
        most, lowest = min(costs) * (1 + TIE), costs.index(min(costs))
        ends = []
        for step, last in ((-1, 0), (1, len(costs) - 1)):
            inside = lowest
            while inside != last and costs[inside + step] <= most:
                inside += step
            log = logs[inside]
            if inside != last:
                part = (most - costs[inside]) / (costs[inside + step] - costs[inside])
                log += part * (logs[inside + step] - log)
            ends.append(math.exp(log))
        return min(ends[0], self.best_seconds), max(ends[1], self.best_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparesCurve:
    points: tuple[CurvePoint, ...]
    fastest: int
    """The least number that more spares do not beat."""
    cheapest: int
    """Spares with which the fewest GPU-seconds are paid for, spares included."""
    pool: int
    """Spares for 99 % of failures, by the Poisson rule."""
    replicas: int


def interval_curve(run: RunInputs, *, replicas: int = 200, seed: int = 0) -> IntervalCurve:
    conditions = run.conditions
    if not math.isfinite(run.between_seconds):
        raise InputError("nothing interrupts this run: it needs no checkpoint")
    young = young_seconds(conditions.stall_seconds, run.between_seconds)
    daly = daly_seconds(conditions.stall_seconds, run.between_seconds)
    middle = max(daly, conditions.persist_seconds, 1.0)
    least = max(conditions.persist_seconds, 1.0, daly / _WIDTH)
    grid = np.geomspace(least, _WIDTH * middle, _POINTS)
    policies = [
        replace(run.policy, checkpoints=Checkpoints(interval_seconds=float(i))) for i in grid
    ]
    simulations = simulate_many(
        [replace(run, policy=policy) for policy in policies], replicas=replicas, seed=seed
    )
    points = tuple(_point(float(i), s) for i, s in zip(grid, simulations, strict=True))
    costs = [point.pace_seconds for point in points]
    best = _vertex(grid, costs)
    at_daly = float(np.interp(math.log(max(daly, least)), np.log(grid), costs))
    return IntervalCurve(
        points=points,
        best_seconds=best,
        young_seconds=young,
        daly_seconds=daly,
        daly_costs=at_daly / min(costs) - 1,
        replicas=replicas,
    )


def _vertex(grid: np.ndarray, costs: Sequence[float]) -> float:
    lowest = int(np.argmin(costs))
    low, high = max(lowest - _AROUND, 0), min(lowest + _AROUND + 1, len(grid))
    logs = np.log(grid[low:high])
    bend, slope, _ = np.polyfit(logs, np.asarray(costs[low:high]), 2)
    if bend <= 0:
        return float(grid[lowest])
    return float(np.clip(math.exp(-slope / (2 * bend)), grid[low], grid[high - 1]))


def spares_curve(
    run: RunInputs, *, most: int | None = None, replicas: int = 200, seed: int = 0
) -> SparesCurve:
    """From no spare to `most`, by default twice the number of the Poisson rule."""
    pool = pool_nodes(run)
    end = most if most is not None else min(max(2 * pool, 8), max(run.nodes // 4, 8), 512)
    counts = _counts(end)
    policies = [replace(run.policy, spares=Spares(nodes=n)) for n in counts]
    simulations = simulate_many(
        [replace(run, policy=p) for p in policies], replicas=replicas, seed=seed
    )
    points = tuple(_point(float(n), s) for n, s in zip(counts, simulations, strict=True))
    least = min(point.pace_seconds for point in points)
    fastest = next(point for point in points if point.pace_seconds <= least * (1 + TIE))
    paid = [
        point.pace_seconds * s.run.allocated_gpus
        for point, s in zip(points, simulations, strict=True)
    ]
    return SparesCurve(
        points=points,
        fastest=int(fastest.at),
        cheapest=counts[int(np.argmin(paid))],
        pool=pool,
        replicas=replicas,
    )


def _counts(end: int) -> list[int]:
    """All small ones, then ever wider apart."""
    counts = {round(x) for x in np.geomspace(1, max(end, 1), 14)} | set(range(min(end, 4) + 1))
    return sorted(n for n in counts if n <= end)


def _point(at: float, simulation: Simulation) -> CurvePoint:
    pace = _pace(simulation)
    seconds, p10, p90 = simulation.seconds.mean, simulation.seconds.p10, simulation.seconds.p90
    if simulation.run.work_seconds is None:
        seconds, p10, p90 = pace, *_ends(simulation)
    return CurvePoint(
        at=at,
        seconds=seconds,
        p10=p10,
        p90=p90,
        pace_seconds=pace,
        finished=simulation.finished,
        work_seconds=simulation.work_seconds.mean,
        work_p10=simulation.work_seconds.p10,
        work_p90=simulation.work_seconds.p90,
        ettr=simulation.ettr.mean,
        goodput=simulation.goodput.mean,
        gpu_seconds=seconds * simulation.run.allocated_gpus,
        waits=simulation.spare_waits.mean,
    )


def _pace(simulation: Simulation) -> float:
    """Seconds over work of all replicas together, for the whole work: the mean where all finished."""
    run = simulation.run
    if run.work_seconds is not None and simulation.finished == 1:
        return simulation.seconds.mean
    whole = run.work_seconds or run.limit_seconds
    return simulation.seconds.mean * whole / max(simulation.work_seconds.mean, 1.0)


def _ends(simulation: Simulation) -> tuple[float, float]:
    """P10 and P90 of a run by time, whose replica that did the least is the latest."""
    limit, work = simulation.run.limit_seconds, simulation.work_seconds
    return limit**2 / max(work.p90, 1.0), limit**2 / max(work.p10, 1.0)
