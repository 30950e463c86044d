"""`FakeEngine`: a cluster in memory that takes the same steps as Slurm, for tests.

It is a fake: nodes and jobs are rows of a table, and every job gets the first nodes that are free. What
it shares with a real engine is the contract: it looks before it acts, and knows its own marks again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from computeflow.actions.engine import (
    ClusterState,
    EngineError,
    EngineJob,
    EngineNode,
    Found,
    Preview,
    RefusedStepError,
    StepProgress,
)
from computeflow.actions.steps import (
    Drain,
    EngineStep,
    ProbeNode,
    Release,
    Requeue,
    Resubmit,
    Resume,
    Shrink,
    Submit,
    step_name,
)

_PARTITION, _ACCOUNT = "train", "research"


def _ignore(_: str, __: EngineStep) -> None:
    pass


@dataclass(slots=True)
class FakeEngine:
    nodes: dict[str, EngineNode]
    jobs: dict[str, EngineJob] = field(default_factory=dict)
    at: float = 0.0
    is_down: bool = False
    """It does not answer."""
    refuses: frozenset[str] = frozenset()
    """Names of steps that it refuses."""
    bad_nodes: frozenset[str] = frozenset()
    """Nodes that a probe refuses."""
    on_change: Callable[[str, EngineStep], None] = _ignore
    """Called before each change with the mark of its step."""
    changes: list[tuple[str, str]] = field(default_factory=list)
    """Mark and word of every change, in order."""
    name: str = "fake"

    @classmethod
    def with_nodes(cls, count: int) -> FakeEngine:
        names = [f"n{number}" for number in range(count)]
        return cls(
            {name: EngineNode(name=name, state="IDLE", partitions=("train",)) for name in names}
        )

    def observe(self) -> ClusterState:
        if self.is_down:
            raise EngineError("the fake engine does not answer")
        busy = {node for job in self.jobs.values() if job.phase == "running" for node in job.nodes}
        nodes = {name: replace(node, busy=name in busy) for name, node in self.nodes.items()}
        return ClusterState(at=self.at, jobs=dict(self.jobs), nodes=nodes)

    def add_job(self, count: int, *, can_requeue: bool = True, comment: str = "") -> EngineJob:
        """A job on the first nodes that are free; pending where there are too few."""
        job = EngineJob(
            job=str(len(self.jobs) + 1),
            phase="pending",
            state="PENDING",
            node_count=count,
            gpus=count,
            partition=_PARTITION,
            account=_ACCOUNT,
            can_requeue=can_requeue,
            comment=comment,
        )
        self.jobs[job.job] = job
        self._schedule()
        return self.jobs[job.job]

    def fail_node(self, name: str) -> None:
        """Lose a node, and the jobs on it that cannot be requeued."""
        self.nodes[name] = replace(self.nodes[name], is_up=False, state="DOWN")
        for job in list(self.jobs.values()):
            if job.phase == "running" and name in job.nodes:
                self.jobs[job.job] = replace(job, phase="failed", state="NODE_FAIL")

    def _schedule(self) -> None:
        for job in list(self.jobs.values()):
            free = [
                node.name
                for node in self.observe().nodes.values()
                if node.is_spare and node.name not in job.excluded
            ]
            if job.phase == "pending" and not job.held and len(free) >= job.node_count:
                self.jobs[job.job] = replace(
                    job, phase="running", state="RUNNING", nodes=tuple(free[: job.node_count])
                )

    def find(self, step: EngineStep) -> dict[str, Any]:
        state = self.observe()
        if isinstance(step, Drain | Resume | ProbeNode):
            node = state.nodes[step.node]
            return {"drained": node.drained, "reason": node.reason}
        if isinstance(step, Submit):
            return {}
        return {"restarts": self._job(step.job).restarts}

    def _job(self, name: str) -> EngineJob:
        if name not in self.jobs:
            raise RefusedStepError(f"job {name}: none of this number")
        return self.jobs[name]

    def _change(self, key: str, step: EngineStep, word: str) -> None:
        if step_name(step) in self.refuses:
            raise RefusedStepError(f"{step_name(step)}: refused")
        self.on_change(key, step)
        self.changes.append((key, word))

    def advance(self, step: EngineStep, key: str, found: Found) -> StepProgress:
        self.observe()
        match step:
            case Drain():
                self._set_drained(step, key, drained=True)
            case Resume():
                self._set_drained(step, key, drained=False)
            case ProbeNode():
                if step.node in self.bad_nodes:
                    raise RefusedStepError(f"{step.node} stays drained: refused by the probe")
                self._set_drained(Resume(node=step.node), key, drained=False)
            case Requeue():
                return self._requeue(step, key, found)
            case Resubmit():
                return self._resubmit(step, key)
            case Submit():
                self._submit(step, key, step.nodes)
            case Release() if self._job(step.job).held:
                self._change(key, step, "release")
                self.jobs[step.job] = replace(self._job(step.job), held=False)
            case Shrink() if set(self._job(step.job).nodes) > set(step.keep):
                self._change(key, step, "shrink")
                self.jobs[step.job] = replace(self._job(step.job), nodes=step.keep)
            case _:
                pass
        self._schedule()
        return StepProgress(done=True, note=step_name(step))

    def _set_drained(self, step: Drain | Resume, key: str, *, drained: bool) -> None:
        node = self.nodes[step.node]
        if node.drained != drained:
            self._change(key, step, "drain" if drained else "resume")
            self.nodes[step.node] = replace(node, drained=drained, reason=key if drained else "")

    def _requeue(self, step: Requeue, key: str, found: Found) -> StepProgress:
        job = self._job(step.job)
        if job.restarts == found.get("restarts", 0):
            if job.phase != "running":
                raise RefusedStepError(f"job {job.job} has ended")
            self._change(key, step, "requeue")
            self.jobs[step.job] = replace(
                job,
                phase="pending",
                state="PENDING",
                held=True,
                nodes=(),
                restarts=job.restarts + 1,
            )
            return StepProgress(done=False, note="requeued")
        if job.held and job.phase == "pending":
            self._change(key, step, "release")
            excluded = tuple(sorted({*job.excluded, *step.exclude}))
            self.jobs[step.job] = replace(job, held=False, excluded=excluded)
        self._schedule()
        return StepProgress(done=True, note="released")

    def _resubmit(self, step: Resubmit, key: str) -> StepProgress:
        made = self._marked(key)
        if made is None:
            old = self._job(step.job)
            if old.phase in ("pending", "running"):
                self._change(key, step, "cancel")
                self.jobs[old.job] = replace(old, phase="failed", state="CANCELLED", nodes=())
                return StepProgress(done=False, note="ended")
            made = self._submit(step, key, old.node_count)
        self._schedule()
        return StepProgress(done=True, note=f"submitted as job {made}", result={"job": made})

    def _submit(self, step: Submit | Resubmit, key: str, count: int) -> str:
        made = self._marked(key)
        if made is None:
            self._change(key, step, "submit")
            made = self.add_job(0, comment=key).job
            pending = replace(self.jobs[made], phase="pending", node_count=count, nodes=())
            self.jobs[made] = replace(pending, excluded=tuple(step.exclude))
        return made

    def _marked(self, key: str) -> str | None:
        return next((job.job for job in self.jobs.values() if job.comment == key), None)

    def undo(self, step: EngineStep, key: str, found: Found) -> StepProgress:
        self.observe()
        if isinstance(step, Drain) and not found.get("drained"):
            if self.nodes[step.node].reason == key:
                self._set_drained(Resume(node=step.node), key, drained=False)
        elif isinstance(step, ProbeNode) and found.get("drained"):
            if not self.nodes[step.node].drained:
                why = str(found["reason"])
                self._change(key, step, "drain")
                self.nodes[step.node] = replace(self.nodes[step.node], drained=True, reason=why)
        elif isinstance(step, Submit | Resubmit) and (made := self._marked(key)) is not None:
            job = self.jobs[made]
            if job.phase in ("pending", "running"):
                self._change(key, step, "cancel")
                self.jobs[made] = replace(job, phase="failed", state="CANCELLED", nodes=())
        self._schedule()
        return StepProgress(done=True, note="undone")

    def preview(self, step: EngineStep, key: str) -> Preview:
        words = ("fake", step_name(step), key)
        return Preview(commands=(words,), changes=step_name(step), undo="undo", rights="nobody's")
