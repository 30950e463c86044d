"""What a given layout costs, and what would be better: each remark with what it is worth.

Every remark is a change of one thing, predicted again; `better-layout` is the best plan of those whose
schedule and context published runs test, without offload.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from computeflow.cluster import Cluster
from computeflow.errors import InputError
from computeflow.planning.plans import TIE, plan
from computeflow.prediction import Prediction, predict
from computeflow.prediction.memory import HEADROOM
from computeflow.prediction.stack import Stack
from computeflow.workload import Job, Layout, Layouts, refusals
from computeflow.workload.layout import Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    rule: str
    what: str
    change: Layout | None = None
    """The layout that would be better, where there is one."""
    gain: float | None = None
    """Share of the step that it saves."""
    breaks: bool = False
    """The layout will not run as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    prediction: Prediction | None
    """None where the layout is impossible."""
    remarks: tuple[Remark, ...]
    """What breaks first, then by gain."""


def review(job: Job, cluster: Cluster, layout: Layout, stack: Stack) -> Review:
    if reasons := refusals(job, Layouts.of([layout])):
        wrong = tuple(Remark(rule="impossible", what=reason, breaks=True) for reason in reasons)
        return Review(prediction=None, remarks=wrong)
    now = predict(job, cluster, layout, stack)
    remarks = [*_memory(now), *_better(job, cluster, layout, stack, now)]
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


def _better(
    job: Job, cluster: Cluster, layout: Layout, stack: Stack, now: Prediction
) -> list[Remark]:
    """Single changes that fit and are faster by more than a tie, and the best plan."""
    tried: list[tuple[str, str, Layout]] = []
    if layout.recompute != "none":
        less: Recompute = "none" if layout.recompute == "selective" else "selective"
        tried.append(("recompute-excess", f"recompute {less} fits too",
                      replace(layout, recompute=less)))  # fmt: skip
    if layout.offload != "none":
        tried.append(("needless-offload", "fits without offload", replace(layout, offload="none")))
    if layout.tp > cluster.domain:
        inside = replace(layout, tp=cluster.domain, etp=min(layout.etp, cluster.domain))
        what = f"tp {layout.tp} leaves the domain of {cluster.domain} devices"
        tried.append(("tp-over-nodes", what, inside))
    found = []
    for rule, what, change in tried:
        try:
            after = predict(job, cluster, change, stack)
        except InputError:
            continue
        gain = 1 - after.step_seconds / now.step_seconds
        if after.memory_bytes <= HEADROOM * after.memory_limit_bytes and gain > TIE / 3:
            found.append(Remark(rule=rule, what=what, change=change, gain=gain))
    proven = {"schedule": "1f1b", "offload": "none", "context": "ring"}  # what published runs have
    best = plan(job, cluster, stack, fixed=proven, top=1).plans
    if best:
        gain = 1 - best[0].prediction.step_seconds / now.step_seconds
        if gain > TIE or not now.fits:
            what = "another layout is better" if now.fits else "another layout fits"
            found.append(Remark(rule="better-layout", what=what, change=best[0].layout, gain=gain))
    return found
