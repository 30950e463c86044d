"""`SlurmEngine`: steps as states of Slurm that are looked for first, and brought about where missing.

An operator's account suffices (`sacctmgr modify user NAME set adminlevel=operator`), but for a new
submission in the name of another user, which only root may do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from computeflow.actions.engine import (
    ClusterState,
    EngineNode,
    Found,
    Preview,
    RefusedStepError,
    StepProgress,
)
from computeflow.actions.slurm import slurm_commands as commands
from computeflow.actions.slurm.command_line import CommandLine
from computeflow.actions.slurm.slurm_commands import mark
from computeflow.actions.slurm.slurm_previews import preview_step
from computeflow.actions.slurm.slurm_probes import advance_probe, undo_probe
from computeflow.actions.slurm.slurm_restarts import (
    advance_requeue,
    advance_resubmit,
    allow_again,
    unsubmit,
)
from computeflow.actions.slurm.slurm_session import (
    CommandLineReader,
    SlurmSession,
    StateReader,
    find_job,
    marked_job,
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
    Signal,
    Submit,
)

PROBE = ("computeflow", "probe", "--accept")


class SlurmEngine:
    """`folder`: where scripts of jobs that are submitted again, and lists of hosts, are kept.
    `reader`: where jobs and nodes are read; None: the command line. `probe`: what probes a node.
    """

    name = "slurm"

    def __init__(
        self,
        line: CommandLine,
        folder: Path,
        now: Callable[[], float],
        *,
        reader: StateReader | None = None,
        probe: tuple[str, ...] = PROBE,
    ) -> None:
        reader = reader or CommandLineReader(line=line)
        self._session = SlurmSession(line=line, reader=reader, folder=folder, now=now)
        self._probe = probe

    def cluster_name(self) -> str:
        """The cluster with its controller's address: two clusters may have one name."""
        text = self._session.line.run(commands.SHOW_CONFIG)
        facts = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
        named = {name.strip(): value.strip() for name, value in facts.items()}
        wanted = ("ClusterName", "SlurmctldHost[0]", "SlurmctldPort")
        return "-".join(named.get(name, "") for name in wanted)

    def observe(self) -> ClusterState:
        return self._session.observe()

    def find(self, step: EngineStep) -> dict[str, Any]:
        state = self.observe()
        match step:
            case Drain() | Resume() | ProbeNode():
                node = self._node(step.node)
                return {"drained": node.drained, "reason": node.reason}
            case Submit():
                return {}
            case _:
                job = find_job(state, step.job)
                return {
                    "restarts": job.restarts,
                    "excluded": list(job.excluded),
                    "nodes": list(job.nodes),
                    "comment": job.comment,
                }

    def _node(self, name: str) -> EngineNode:
        node = self.observe().nodes.get(name)
        if node is None:
            raise RefusedStepError(f"node {name}: Slurm knows none of this name")
        return node

    # Bringing it about

    def advance(self, step: EngineStep, key: str, found: Found) -> StepProgress:
        match step:
            case Drain():
                return self._drain(step, key)
            case Resume():
                return self._resume(step)
            case ProbeNode():
                return advance_probe(self._session, step, key, self._probe)
            case Requeue():
                return advance_requeue(self._session, step, key, found)
            case Resubmit():
                return advance_resubmit(self._session, step, key)
            case Submit():
                return self._submit(step, key)
            case Release():
                return self._release(step)
            case Shrink():
                return self._shrink(step)
            case Signal():
                return self._session.done(commands.send_signal(step.job, step.signal))

    def _drain(self, step: Drain, key: str) -> StepProgress:
        node = self._node(step.node)
        if node.drained:
            return StepProgress(done=True, note=f"{step.node} is drained: {node.reason}")
        return self._session.done(commands.drain(step.node, step.reason, key))

    def _resume(self, step: Resume) -> StepProgress:
        node = self.observe().nodes.get(step.node)
        if node is not None and node.is_healthy:
            return StepProgress(done=True, note=f"{step.node} is in service")
        return self._session.done(commands.resume(step.node))

    def _submit(self, step: Submit, key: str) -> StepProgress:
        if (made := marked_job(self._session.rows(), key)) is not None:
            return StepProgress(done=True, note=f"submitted as job {made}", result={"job": made})
        words = commands.submit(step, key)
        more = {"SLURM_HOSTFILE": str(self._hostfile(step, key))} if step.node_order else None
        job = self._session.submit(words, more)
        return StepProgress(
            done=True, commands=(words,), note=f"submitted as job {job}", result={"job": job}
        )

    def _hostfile(self, step: Submit, key: str) -> Path:
        """A line for each rank, in their order: `--distribution=arbitrary` follows it."""
        lines = [name for name in step.node_order for _ in range(step.tasks_per_node)]
        return self._session.keep(f"hosts-{key}", "\n".join(lines) + "\n")

    def _release(self, step: Release) -> StepProgress:
        job = find_job(self.observe(), step.job)
        if job.phase != "pending" or not job.held:
            return StepProgress(done=True, note=f"job {step.job} is not held")
        placed = [commands.place(step.job, step.nodes)] if step.nodes else []
        return self._session.done(*placed, commands.release(step.job))

    def _shrink(self, step: Shrink) -> StepProgress:
        job = find_job(self.observe(), step.job)
        if set(job.nodes) <= set(step.keep):
            return StepProgress(done=True, note=f"job {step.job} has {len(job.nodes)} nodes")
        return self._session.done(commands.shrink(step.job, step.keep))

    # Undoing it

    def undo(self, step: EngineStep, key: str, found: Found) -> StepProgress:
        match step:
            case Drain():
                return self._undrain(step, key, found)
            case Resume() if found.get("drained"):
                return self._drain(Drain(node=step.node, reason=str(found.get("reason", ""))), key)
            case ProbeNode():
                return undo_probe(self._session, step, key, found)
            case Requeue():
                return allow_again(self._session, step, found)
            case Submit() | Resubmit():
                return unsubmit(self._session, key)
            case _:
                return StepProgress(done=True, note=f"{type(step).__name__} cannot be undone")

    def _undrain(self, step: Drain, key: str, found: Found) -> StepProgress:
        """Take a node back that this action drained; one that was drained before stays so."""
        node = self.observe().nodes.get(step.node)
        if found.get("drained") or node is None or mark(key) not in node.reason.split():
            return StepProgress(done=True, note=f"{step.node}: not drained by this action")
        return self._session.done(commands.resume(step.node))

    # Saying what it would do

    def preview(self, step: EngineStep, key: str) -> Preview:
        return preview_step(step, key)
