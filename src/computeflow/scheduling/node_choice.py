"""`choose_nodes`: the nodes that a job is submitted on, their order, and how long to wait for better.

1. A pool whose devices are too small for the predicted memory is out; if all are, the job is refused
   with the nearest layout that fits.
2. Of the others the one with the smallest devices that has nodes free is taken, so that a small job
   leaves large memory to those that need it.
3. Its ranks are placed on the free nodes, and on those that come free later; each placement has its
   predicted step. Waiting is worth it where all steps together gain more than the wait.

Neglected: what a job leaves to the next one; that nodes may come free earlier or later than stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from computeflow.cluster import Cluster, resize_cluster
from computeflow.cluster.wiring import Wiring
from computeflow.errors import InputError, UnknownNameError
from computeflow.planning.placement import effect, place, total, traffic
from computeflow.planning.placement.effect import Neighbours
from computeflow.planning.plans import plan
from computeflow.planning.review import PROVEN
from computeflow.prediction import Prediction, predict
from computeflow.prediction.stack import Stack, usual_stack
from computeflow.units import format_seconds, format_si
from computeflow.workload import Job, Layout

_MAX_WAITS = 8
"""Moments at which nodes come free that are looked at: each is a placement, up to seconds of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePool:
    """Nodes of one kind."""

    name: str
    cluster: Cluster
    wiring: Wiring
    free: tuple[str, ...]
    coming: tuple[tuple[float, str], ...] = ()
    """Nodes that come free later: seconds from now, and the node."""

    def __post_init__(self) -> None:
        known = set(self.wiring.names)
        for node in (*self.free, *(node for _, node in self.coming)):
            if node not in known:
                raise UnknownNameError("node", node, self.wiring.names)
        if any(seconds < 0 for seconds, _ in self.coming):
            raise InputError(f"pool {self.name}: nodes come free from now on, not before")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNodes:
    """One placement of the job, at the moment when its nodes are free."""

    wait_seconds: float
    nodes: tuple[str, ...]
    """In the order of ranks."""
    step_seconds: float
    bytes_by_tier: dict[str, float]
    """Bytes of a step, by how far they go."""
    total_seconds: float
    """The wait and all steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChoice:
    pool: str
    chosen: PlacedNodes | None
    """None: refused, or there will not be enough nodes."""
    options: tuple[PlacedNodes, ...]
    """The placements that were looked at, in the order of their waits."""
    worth_waiting_seconds: float
    """How long a better placement is worth waiting for: what all steps lose on the nodes that are free
    now, against the whole pool."""
    prediction: Prediction | None
    """On the pool; None where the job is refused."""
    nearest: Layout | None = None
    """Where the job is refused: the layout that fits, on as many devices or on the next number that
    does; None: nothing fits."""
    reason: str

    @property
    def refused(self) -> bool:
        return self.prediction is None


def choose_nodes(
    job: Job,
    layout: Layout,
    pools: Sequence[NodePool],
    *,
    steps: int,
    stack: Stack | None = None,
    neighbours: Neighbours = "busy",
    seed: int = 0,
) -> NodeChoice:
    """`steps`: how many are to be run; `neighbours`: whether other jobs use their share of uplinks."""
    if not pools or steps < 1:
        raise InputError("a job of one or more steps needs one or more pools")
    wanted = _Wanted(
        job=job, layout=layout, steps=steps, stack=stack, neighbours=neighbours, seed=seed
    )
    fitting = []
    for pool in pools:
        prediction = wanted.predict(pool)
        if prediction is not None and prediction.fits:
            fitting.append((prediction, pool))
    if not fitting:
        return _refusal(wanted, pools)
    fitting.sort(key=lambda pair: pair[0].memory_limit_bytes)
    free = (pair for pair in fitting if len(pair[1].free) >= wanted.nodes(pair[1]))
    prediction, pool = next(free, fitting[0])
    options = wanted.options(pool)
    if not options:
        there = len(pool.free) + len(pool.coming)
        return NodeChoice(
            pool=pool.name,
            chosen=None,
            options=(),
            worth_waiting_seconds=0.0,
            prediction=prediction,
            reason=f"{wanted.nodes(pool)} nodes needed, {there} free or coming free",
        )
    best = wanted.placed(pool, tuple(range(pool.wiring.nodes)), 0.0)
    chosen = min(options, key=lambda option: (option.total_seconds, option.wait_seconds))
    return NodeChoice(
        pool=pool.name,
        chosen=chosen,
        options=tuple(options),
        worth_waiting_seconds=max(steps * (options[0].step_seconds - best.step_seconds), 0.0),
        prediction=prediction,
        reason=_reason(options, chosen, pool),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The job that is to be placed."""

    job: Job
    layout: Layout
    steps: int
    stack: Stack | None
    neighbours: Neighbours
    seed: int

    def nodes(self, pool: NodePool) -> int:
        return -(-self.layout.gpus // pool.wiring.devices)

    def stack_on(self, pool: NodePool) -> Stack:
        return self.stack or usual_stack(pool.cluster.accelerator.vendor)

    def predict(self, pool: NodePool) -> Prediction | None:
        """The job's step on this pool; None where the pool is smaller than the job."""
        if self.nodes(pool) > pool.wiring.nodes:
            return None
        cluster = resize_cluster(pool.cluster, self.layout.gpus)
        return predict(self.job, cluster, self.layout, self.stack_on(pool))

    def options(self, pool: NodePool) -> list[PlacedNodes]:
        """A placement for each moment at which there are enough nodes, and more than before."""
        index = {name: number for number, name in enumerate(pool.wiring.names)}
        there = [index[node] for node in pool.free]
        moments = {0.0: tuple(there)}
        for seconds, node in sorted(pool.coming):
            there.append(index[node])
            moments[seconds] = tuple(there)
        enough = [moment for moment in moments.items() if len(moment[1]) >= self.nodes(pool)]
        return [self.placed(pool, nodes, seconds) for seconds, nodes in enough[:_MAX_WAITS]]

    def placed(self, pool: NodePool, nodes: tuple[int, ...], wait_seconds: float) -> PlacedNodes:
        cluster = resize_cluster(pool.cluster, self.layout.gpus)
        stack = self.stack_on(pool)
        sent = traffic(self.job, cluster, self.layout, stack)
        order = place(sent, pool.wiring, np.array(nodes, np.int64), seed=self.seed)
        change = effect(
            self.job,
            cluster,
            self.layout,
            order,
            pool.wiring,
            stack=stack,
            neighbours=self.neighbours,
        )
        return PlacedNodes(
            wait_seconds=wait_seconds,
            nodes=tuple(pool.wiring.names[number] for number in order.node_order.tolist()),
            step_seconds=change.step_seconds,
            bytes_by_tier=total(change.crossings, pool.wiring).by_tier,
            total_seconds=wait_seconds + self.steps * change.step_seconds,
        )

    def nearest(self, pool: NodePool) -> Layout | None:
        """The best plan on the same number of devices, else on twice as many, and so on."""
        most = pool.wiring.nodes * pool.wiring.devices
        gpus = min(self.layout.gpus, most)
        while gpus <= most:
            cluster = resize_cluster(pool.cluster, gpus)
            plans = plan(self.job, cluster, self.stack, fixed=PROVEN, top=1).plans
            if plans:
                return plans[0].layout
            gpus *= 2
        return None


def _refusal(wanted: _Wanted, pools: Sequence[NodePool]) -> NodeChoice:
    """The job does not fit anywhere as it is; the nearest that does, on the largest devices."""
    pool = max(pools, key=lambda pool: pool.cluster.accelerator.hbm_bytes)
    prediction = wanted.predict(pool)
    why = f"{wanted.nodes(pool)} nodes needed, {pool.name} has {pool.wiring.nodes}"
    if prediction is not None:
        needs, has = prediction.memory_bytes, prediction.memory_limit_bytes
        why = f"needs {format_si(needs, 'B')} on a device of {format_si(has, 'B')}"
    nearest = wanted.nearest(pool)
    hint = "nothing fits" if nearest is None else f"it fits on {nearest.gpus} devices"
    if nearest is not None and nearest.gpus == wanted.layout.gpus:
        hint = "another layout on as many devices fits"
    return NodeChoice(
        pool=pool.name,
        chosen=None,
        options=(),
        worth_waiting_seconds=0.0,
        prediction=None,
        nearest=nearest,
        reason=f"refused: {why}; {hint}",
    )


def _reason(options: Sequence[PlacedNodes], chosen: PlacedNodes, pool: NodePool) -> str:
    first = options[0]
    step = format_seconds(chosen.step_seconds)
    if chosen is first and not first.wait_seconds:
        return f"{len(chosen.nodes)} nodes of {pool.name} are free: a step of {step}"
    wait = format_seconds(chosen.wait_seconds)
    if chosen is first:
        return f"{len(chosen.nodes)} nodes of {pool.name} are free in {wait}: a step of {step}"
    saved = format_seconds(first.total_seconds - chosen.total_seconds)
    before = format_seconds(first.step_seconds)
    return f"after {wait} a step takes {step} instead of {before}: the run is done {saved} earlier"
