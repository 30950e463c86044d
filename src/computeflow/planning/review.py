"""Review of a given layout: what breaks, and what would be better, each remark with its gain.

Every remark is a change of one thing, predicted again; `better-layout` is the best plan of those whose
schedule and context published runs test, without offload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from computeflow.cluster import Cluster
from computeflow.errors import InputError
from computeflow.planning.plans import TIE, plan
from computeflow.planning.space import Space
from computeflow.planning.timeouts import contradictions
from computeflow.prediction import Prediction, predict
from computeflow.prediction.memory import HEADROOM
from computeflow.prediction.stack import Stack
from computeflow.workload import Job, Layout, Layouts, refusals
from computeflow.workload.layout import Recompute

PROVEN = {"schedule": "1f1b", "offload": "none", "context": "ring"}
"""Choices that published runs have."""
_TRIED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    rule: str
    what: str
    change: Layout | None = None
    """The layout that would be better, where there is one."""
    switch: dict[str, Any] = field(default_factory=dict)
    """Fields of the stack that the file could switch, and their values."""
    gain: float | None = None
    """Share of the step that it saves; None where nothing is gained, or the step cannot run."""
    breaks: bool = False
    """The layout will not run as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    prediction: Prediction | None
    """None where the layout is impossible."""
    remarks: tuple[Remark, ...]
    """Remarks that break first, then by gain."""


class FrameworkChoices(Protocol):
    """The framework of a configuration, as far as it limits layouts."""

    def space(self, job: Job, layout: Layout) -> Space: ...

    def can_express(self, layout: Layout) -> bool: ...

    def switches(self, stack: Stack) -> list[tuple[str, Stack]]: ...


def review(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    stack: Stack,
    framework: FrameworkChoices | None = None,
    timeouts: Mapping[str, float] | None = None,
) -> Review:
    """`framework`: better layouts are those that it can run; None: any. `timeouts`: seconds by the
    names of `timeouts.NAMES`, as the configuration states them.
    """
    if reasons := refusals(job, Layouts.of([layout])):
        wrong = tuple(Remark(rule="impossible", what=reason, breaks=True) for reason in reasons)
        return Review(prediction=None, remarks=wrong)
    now = predict(job, cluster, layout, stack)
    remarks = [*_memory(now), *_timeouts(now, timeouts or {})]
    remarks += _better(job, cluster, stack, now, framework)
    remarks.sort(key=lambda remark: (not remark.breaks, -(remark.gain or 0.0)))
    return Review(prediction=now, remarks=tuple(remarks))


def _memory(now: Prediction) -> list[Remark]:
    needs, has = now.memory_bytes, now.memory_limit_bytes
    if needs > has:
        what = f"needs {needs / 1e9:.0f} GB on a device that has {has / 1e9:.0f}"
        return [Remark(rule="does-not-fit", what=what, breaks=True)]
    if needs > HEADROOM * has:
        what = f"fills {100 * needs / has:.0f} % of a device; the allocator needs some itself"
        return [Remark(rule="tight-memory", what=what)]
    return []


def _timeouts(now: Prediction, timeouts: Mapping[str, float]) -> list[Remark]:
    """They must nest; a step may take as long as the slow end of its range."""
    if not timeouts:
        return []
    known = {"step": now.step_seconds_range[1], **timeouts}
    return [
        Remark(rule="timeout-order", what=pair.what, breaks=pair.order.breaks)
        for pair in contradictions(known)
    ]


def _better(
    job: Job, cluster: Cluster, stack: Stack, now: Prediction, framework: FrameworkChoices | None
) -> list[Remark]:
    """Single changes that fit and are faster by more than a tie, and the best plan."""
    best = _best(job, cluster, now.layout, stack, framework)
    if not now.fits:  # a step that cannot run has no time to gain on
        what = "another layout fits"
        found = [] if best is None else [best.layout]
        return [Remark(rule="better-layout", what=what, change=layout) for layout in found]
    remarks = _switches(job, cluster, stack, now, framework)
    for rule, what, change in _single_changes(now.layout, cluster):
        gain = _gain(job, cluster, change, stack, now)
        if gain > TIE / 3:
            remarks.append(Remark(rule=rule, what=what, change=change, gain=gain))
    if best is None or any(remark.change == best.layout for remark in remarks):
        return remarks
    gain = 1 - best.step_seconds / now.step_seconds
    if gain > TIE:
        what = "another layout is better"
        remarks.append(Remark(rule="better-layout", what=what, change=best.layout, gain=gain))
    return remarks


_SWITCHES = {
    "kernels": ("uncompiled", "kernels are not compiled"),
    "dp_overlap": ("exposed-comm", "gradients are reduced after the backward pass, not behind it"),
    "sequence_parallel": ("no-sequence-parallel", "norms are not split along the sequence"),
}
"""Fields of a stack to the rule of leaving them off, and what it says."""


def _switches(
    job: Job, cluster: Cluster, stack: Stack, now: Prediction, framework: FrameworkChoices | None
) -> list[Remark]:
    """What the file's framework could do, and the file does not switch on."""
    remarks = []
    for name, switched in [] if framework is None else framework.switches(stack):
        gain = _gain(job, cluster, now.layout, switched, now)
        if gain > TIE / 3:
            rule, what = _SWITCHES[name]
            switch = {name: getattr(switched, name)}
            remarks.append(Remark(rule=rule, what=what, switch=switch, gain=gain))
    return remarks


def _gain(job: Job, cluster: Cluster, change: Layout, stack: Stack, now: Prediction) -> float:
    """Share of the step that a change saves; none where it is impossible or does not fit."""
    try:
        after = predict(job, cluster, change, stack)
    except InputError:
        return 0.0
    fits = after.memory_bytes <= HEADROOM * after.memory_limit_bytes
    return 1 - after.step_seconds / now.step_seconds if fits else 0.0


def _single_changes(layout: Layout, cluster: Cluster) -> list[tuple[str, str, Layout]]:
    """Rule, what it says, and the layout that it says it of."""
    tried = []
    if layout.recompute != "none":
        less: Recompute = "none" if layout.recompute == "selective" else "selective"
        change = replace(layout, recompute=less)
        tried.append(("recompute-excess", f"recompute {less} fits too", change))
    if layout.offload != "none":
        tried.append(("needless-offload", "fits without offload", replace(layout, offload="none")))
    if layout.tp > cluster.domain:
        inside = replace(layout, tp=cluster.domain, etp=min(layout.etp, cluster.domain))
        what = f"tp {layout.tp} leaves the domain of {cluster.domain} devices"
        tried.append(("tp-over-nodes", what, inside))
    return tried


def _best(
    job: Job, cluster: Cluster, layout: Layout, stack: Stack, framework: FrameworkChoices | None
) -> Prediction | None:
    """The best plan among those that published runs test and the framework can express."""
    if framework is None:
        plans = plan(job, cluster, stack, fixed=PROVEN, top=1).plans
    else:
        plans = plan(job, cluster, stack, space=framework.space(job, layout), top=_TRIED).plans
    runnable = (p.prediction for p in plans if framework is None or framework.can_express(p.layout))
    return next(runnable, None)
