"""The search: every layout that can be and fits, ranked by what it takes if things go badly.

An exhaustive search finds the corner where a model is most wrong, so layouts are ranked by a
pessimistic step: the predictor with every figure that hides or speeds up communication one deviation
worse (`pessimistic`). A plan that relies on perfect overlap falls behind one that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from computeflow.cluster import Cluster
from computeflow.errors import InputError
from computeflow.planning.limits import MAX_KEPT, Limits
from computeflow.planning.space import CHUNK, LayoutCounts, Space, possible, space_of
from computeflow.prediction import Parameters, load_parameters
from computeflow.prediction.blocks import Floats
from computeflow.prediction.evidence import outlook_of
from computeflow.prediction.memory import memory
from computeflow.prediction.power import account_watts
from computeflow.prediction.stack import Stack
from computeflow.prediction.step import account_step
from computeflow.prediction.step_inputs import StepInputs, of_job
from computeflow.workload import Job, Layouts
from computeflow.workload.layout import CHOICES, OFFLOADS, SIZES, Mask

Objective = Literal["time", "cost", "energy"]
OBJECTIVES: tuple[Objective, ...] = ("time", "cost", "energy")
_WORSE = {
    "tp_hidden": -1, "dp_hidden": -1, "ep_hidden": -1, "link_efficiency": -1, "nic_efficiency": -1,
    "shard_interference": 1, "p2p_exposed": 1, "link_hop": 1, "network_hop": 1, "ep_latency": 1,
    "host_forward": 1, "jitter": 1, "permute_bytes": 1, "cpu_update": -1, "disk": -1,
    "schedule_gain": -1, "host_link": -1,
}  # fmt: skip
"""Parameters on which a plan may rely too much, and the direction that makes it slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The best layouts of a search, best first."""

    layouts: Layouts
    scores: Floats
    """Ranking criterion: pessimistic seconds or joules of a step."""
    seconds: Floats
    """Time of a pessimistic step."""
    count: LayoutCounts
    smallest_bytes: float
    fastest_seconds: float
    """Least memory that any possible layout needs."""
    complete: bool = True
    """False where the search was interrupted."""


@dataclass(slots=True)
class _Best:
    """The best layouts so far, as columns."""

    columns: dict[str, Any] = field(default_factory=dict)

    def add(self, layouts: Layouts, scores: Floats, seconds: Floats) -> None:
        new = {name: getattr(layouts, name) for name in (*SIZES, *CHOICES)}
        new |= {"score": scores, "seconds": seconds}
        if self.columns:
            new = {name: np.concatenate([self.columns[name], new[name]]) for name in new}
        if len(new["score"]) > MAX_KEPT:
            best = np.argpartition(new["score"], MAX_KEPT)[:MAX_KEPT]
            new = {name: column[best] for name, column in new.items()}
        self.columns = new

    def sorted(self) -> tuple[Layouts, Floats, Floats]:
        if not self.columns:
            empty = np.zeros(0)
            nothing = {name: np.zeros(0, np.int64) for name in (*SIZES, *CHOICES)}
            return Layouts(**nothing), empty, empty
        order = np.argsort(self.columns["score"], kind="stable")
        layouts = {name: self.columns[name][order] for name in (*SIZES, *CHOICES)}
        return Layouts(**layouts), self.columns["score"][order], self.columns["seconds"][order]


Progress = Callable[[float, LayoutCounts], None]


def pessimistic(parameters: Parameters) -> Parameters:
    """Parameters with every figure that a plan could rely on one deviation worse."""
    spread = dict(zip(parameters.names, parameters.deviations.tolist(), strict=True))
    return parameters.replaced(
        {
            name: parameters[name] * float(np.exp(sign * spread[name]))
            for name, sign in _WORSE.items()
        }
    )


def search(
    job: Job,
    cluster: Cluster,
    stack: Stack,
    *,
    space: Space | None = None,
    fixed: Mapping[str, Any] | None = None,
    objective: Objective = "time",
    limits: Limits | None = None,
    parameters: Parameters | None = None,
    progress: Progress | None = None,
    interruptible: bool = False,
) -> SearchResult:
    """All of the space; with `interruptible`, Ctrl-C gives the best so far, where there is any."""
    capped = limits is not None and limits.watts_per_gpu is not None
    if (objective == "energy" or capped) and cluster.accelerator.tdp_watts is None:
        raise InputError(f"the catalog has no power limit of {cluster.accelerator.name}: no watts")
    space = space or space_of(job, cluster.gpus, fixed)
    walk = _Walk(
        job=job,
        cluster=cluster,
        stack=stack,
        space=space,
        objective=objective,
        limits=limits or Limits(),
        parameters=pessimistic(parameters or load_parameters()),
        maturity=outlook_of(job, cluster.accelerator, stack).rate,
    )
    try:
        walk.cover(progress)
        complete = True
    except KeyboardInterrupt:
        if not (interruptible and walk.best.columns):
            raise
        complete = False
    layouts, scores, seconds = walk.best.sorted()
    return SearchResult(
        layouts=layouts,
        scores=scores,
        seconds=seconds,
        count=walk.count,
        smallest_bytes=walk.smallest_bytes,
        fastest_seconds=walk.fastest_seconds,
        complete=complete,
    )


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One search on its way: what it is about, and what it has found so far."""

    job: Job
    cluster: Cluster
    stack: Stack
    space: Space
    objective: Objective
    limits: Limits
    parameters: Parameters
    maturity: float
    count: LayoutCounts = field(default_factory=LayoutCounts)
    best: _Best = field(default_factory=_Best)
    smallest_bytes: float = float("inf")
    fastest_seconds: float = float("inf")

    @property
    def room(self) -> float:
        """Bytes of a device that a plan may fill."""
        device = self.cluster.accelerator
        return self.limits.headroom * (device.reported_bytes or device.hbm_bytes)

    def cover(self, progress: Progress | None) -> None:
        for layouts, done in possible(self.job, self.cluster.gpus, self.space, self.count):
            for start in range(0, len(layouts), CHUNK):
                self.climb(layouts.where(np.arange(start, min(start + CHUNK, len(layouts)))))
            if progress is not None:
                progress(done, self.count)

    def climb(self, layouts: Layouts) -> None:
        """Recompute and offload no more than a layout needs to fit.

        Recomputing more never makes the same layout faster, nor does offloading with the same
        recomputation: what fits with less of either is done, the rest is counted as needless. Less
        recomputation for an offload is another layout, and tried.
        """
        stays, nobody = OFFLOADS.index("none"), np.zeros(len(layouts), bool)
        without: dict[int, Mask] = {}
        for offload in self.space.values["offload"]:
            done = nobody.copy()
            for recompute in self.space.values["recompute"]:
                needless = done | without.get(recompute, nobody)
                rung = layouts.with_choices(offload=offload, recompute=recompute)
                refused = _refused(rung) & ~needless
                left = np.flatnonzero(~needless & ~refused)
                fits = nobody.copy()
                if len(left):
                    fits[left] = self._fitting(rung.where(left))
                self.count.prune("recomputes or offloads more than it needs", int(needless.sum()))
                self.count.prune("offload that the sharding does not allow", int(refused.sum()))
                self.count.prune("does not fit in memory", len(left) - int(fits.sum()))
                done |= fits
                if offload == stays:
                    without[recompute] = done.copy()

    def _fitting(self, layouts: Layouts) -> Mask:
        """Which of the layouts fit on device and host; they are evaluated."""
        held = memory(of_job(self.job, self.cluster, layouts, self.stack))
        fits = held.bytes <= self.room
        if self.cluster.host_memory_bytes is not None:
            fits &= held.host <= self.cluster.host_memory_bytes
        self.smallest_bytes = min(self.smallest_bytes, float(held.bytes.min()))
        if fits.any():
            self.evaluate(layouts.where(fits))
        return np.asarray(fits)

    def evaluate(self, layouts: Layouts) -> None:
        """Predict layouts that fit, and keep the best of those within the limits."""
        inputs = of_job(self.job, self.cluster, layouts, self.stack, self.maturity)
        step = account_step(inputs, self.parameters)
        self.count.evaluated += len(layouts)
        self.fastest_seconds = min(self.fastest_seconds, float(step.seconds.min()))
        scores, kept = step.seconds, np.ones(len(layouts), bool)
        if self.limits.step_seconds is not None:
            kept &= self._within(
                kept, scores <= self.limits.step_seconds, "slower than the deadline allows"
            )
        if self.objective == "energy" or self.limits.watts_per_gpu is not None:
            joules = _joules(inputs, self.parameters, step.accounts)
            if self.limits.watts_per_gpu is not None:
                cool = joules / step.seconds <= self.limits.watts_per_gpu
                kept &= self._within(kept, cool, "draws more than the power cap")
            scores = joules * layouts.gpus if self.objective == "energy" else scores
        if kept.any():
            self.best.add(layouts.where(kept), scores[kept], step.seconds[kept])

    def _within(self, among: Mask, good: Mask, reason: str) -> Mask:
        """Count what a limit rules out; it stays counted as evaluated too."""
        out = int((among & ~good).sum())
        if out:
            self.count.beyond[reason] = self.count.beyond.get(reason, 0) + out
        return good


def _refused(layouts: Layouts) -> Mask:
    """Layouts that only the rung makes impossible: weights on the host or disk without sharding."""
    away = layouts.has("offload", "parameters", "nvme")
    return away & ~layouts.has("sharding", "fsdp", "zero3", "hsdp")


def _joules(inputs: StepInputs, parameters: Parameters, accounts: dict[str, Floats]) -> Floats:
    """Energy of one device and step."""
    watts = account_watts(inputs, parameters)
    return np.asarray(sum(seconds * watts[name] for name, seconds in accounts.items()))
