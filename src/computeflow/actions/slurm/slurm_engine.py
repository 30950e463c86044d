"""`SlurmEngine`: steps as states of Slurm that are looked for first, and brought about where missing.

An operator's account suffices (`sacctmgr modify user NAME set adminlevel=operator`), but for a new
submission in the name of another user, which only root may do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from computeflow.actions.engine import (
    ClusterState,
    EngineJob,
    Found,
    Preview,
    RefusedStepError,
    StepProgress,
)
from computeflow.actions.slurm import slurm_commands as commands
from computeflow.actions.slurm.command_line import CommandLine
from computeflow.actions.slurm.slurm_commands import Words, mark
from computeflow.actions.slurm.slurm_state import job_name, read_jobs, read_state
from computeflow.actions.steps import (
    Drain,
    EngineStep,
    Release,
    Requeue,
    Resubmit,
    Resume,
    Shrink,
    Signal,
    Submit,
)
from computeflow.errors import OutputError

OPERATOR = "an operator of Slurm (AdminLevel=Operator)"
OWNER = "the job's user, or an operator of Slurm"
SUBMITTER = "the job's user; root for jobs of others"


class SlurmEngine:
    """`folder`: where scripts of jobs that are submitted again, and lists of hosts, are kept."""

    name = "slurm"

    def __init__(self, line: CommandLine, folder: Path, now: Callable[[], float]) -> None:
        self._line, self._folder, self._now = line, folder, now

    def observe(self) -> ClusterState:
        jobs = self._line.run(commands.SHOW_JOBS)
        return read_state(jobs, self._line.run(commands.SHOW_NODES), self._now())

    def find(self, step: EngineStep) -> dict[str, Any]:
        state = self.observe()
        match step:
            case Drain() | Resume():
                node = state.nodes.get(step.node)
                if node is None:
                    raise RefusedStepError(f"node {step.node}: Slurm knows none of this name")
                return {"drained": node.drained, "reason": node.reason}
            case Submit():
                return {}
            case _:
                job = _job(state, step.job)
                return {
                    "restarts": job.restarts,
                    "excluded": list(job.excluded),
                    "nodes": list(job.nodes),
                    "comment": job.comment,
                }

    # Bringing it about

    def advance(self, step: EngineStep, key: str, found: Found) -> StepProgress:
        match step:
            case Drain():
                return self._drain(step, key)
            case Resume():
                return self._resume(step)
            case Requeue():
                return self._requeue(step, key, found)
            case Resubmit():
                return self._resubmit(step, key)
            case Submit():
                return self._submit(step, key)
            case Release():
                return self._release(step)
            case Shrink():
                return self._shrink(step)
            case Signal():
                return self._done(commands.send_signal(step.job, step.signal))

    def _done(self, *words: Words, note: str = "") -> StepProgress:
        for each in words:
            self._line.run(each)
        return StepProgress(done=True, commands=words, note=note)

    def _drain(self, step: Drain, key: str) -> StepProgress:
        node = self.observe().nodes.get(step.node)
        if node is None:
            raise RefusedStepError(f"node {step.node}: Slurm knows none of this name")
        if node.drained:
            return StepProgress(done=True, note=f"{step.node} is drained: {node.reason}")
        return self._done(commands.drain(step.node, step.reason, key))

    def _resume(self, step: Resume) -> StepProgress:
        node = self.observe().nodes.get(step.node)
        if node is not None and node.is_healthy:
            return StepProgress(done=True, note=f"{step.node} is in service")
        return self._done(commands.resume(step.node))

    def _requeue(self, step: Requeue, key: str, found: Found) -> StepProgress:
        """Stopped and held; kept off nodes; let go: whichever comes next."""
        job = _job(self.observe(), step.job)
        missing = [node for node in step.exclude if node not in job.excluded]
        requeued = job.restarts > int(found.get("restarts", 0))
        if job.phase in ("done", "failed") and not requeued:
            raise RefusedStepError(f"job {step.job} has ended: {job.state}")
        if not requeued:
            return self._wait(commands.requeue_held(step.job), note="requeued")
        if job.phase == "ending":
            return StepProgress(done=False, note="its processes end")
        if job.phase != "pending":
            return self._running_again(job, step)
        if missing or mark(key) not in job.comment:
            everything = sorted({*job.excluded, *step.exclude})
            comment = f"{job.comment} {mark(key)}".strip()
            return self._wait(commands.exclude(step.job, everything, comment), note="excluded")
        if job.held:
            return self._done(commands.release(step.job), note="released")
        return StepProgress(done=True, note=f"job {step.job} waits for nodes")

    def _running_again(self, job: EngineJob, step: Requeue) -> StepProgress:
        """Slurm itself may have requeued it, after a node had failed."""
        on = [node for node in step.exclude if node in job.nodes]
        if on:
            return self._wait(
                commands.requeue_held(step.job), note=f"again: it came back on {', '.join(on)}"
            )
        return StepProgress(done=True, note=f"job {step.job} runs on {', '.join(job.nodes)}")

    def _wait(self, words: Words, note: str) -> StepProgress:
        self._line.run(words)
        return StepProgress(done=False, commands=(words,), note=note)

    def _resubmit(self, step: Resubmit, key: str) -> StepProgress:
        rows = read_jobs(self._line.run(commands.SHOW_JOBS))
        if (made := _marked(rows, key, other_than=step.job)) is not None:
            return StepProgress(done=True, note=f"submitted as job {made}", result={"job": made})
        row = next((row for row in rows if job_name(row) == step.job), None)
        if row is None:
            raise RefusedStepError(f"job {step.job}: Slurm no longer knows it")
        state = self.observe()
        if _job(state, step.job).phase in ("pending", "running"):
            return self._end(step.job)
        script = self._folder / f"job-{step.job}.sh"
        text = self._line.run(commands.batch_script(step.job))
        _write(script, text)
        words = commands.resubmit(row, str(script), step.exclude, key)
        job = self._line.run(words).strip().partition(";")[0]
        return StepProgress(
            done=True, commands=(words,), note=f"submitted as job {job}", result={"job": job}
        )

    def _end(self, job: str) -> StepProgress:
        words = commands.kill(job), commands.cancel(job)
        for each in words:
            self._line.run(each)
        return StepProgress(done=False, commands=words, note="ended")

    def _submit(self, step: Submit, key: str) -> StepProgress:
        rows = read_jobs(self._line.run(commands.SHOW_JOBS))
        if (made := _marked(rows, key)) is not None:
            return StepProgress(done=True, note=f"submitted as job {made}", result={"job": made})
        words = commands.submit(step, key)
        more = {"SLURM_HOSTFILE": str(self._hostfile(step, key))} if step.node_order else None
        job = self._line.run(words, more).strip().partition(";")[0]
        return StepProgress(
            done=True, commands=(words,), note=f"submitted as job {job}", result={"job": job}
        )

    def _hostfile(self, step: Submit, key: str) -> Path:
        """A line for each rank, in their order: `--distribution=arbitrary` follows it."""
        path = self._folder / f"hosts-{key}"
        lines = [name for name in step.node_order for _ in range(step.tasks_per_node)]
        _write(path, "\n".join(lines) + "\n")
        return path

    def _release(self, step: Release) -> StepProgress:
        job = _job(self.observe(), step.job)
        if job.phase != "pending" or not job.held:
            return StepProgress(done=True, note=f"job {step.job} is not held")
        placed = [commands.place(step.job, step.nodes)] if step.nodes else []
        return self._done(*placed, commands.release(step.job))

    def _shrink(self, step: Shrink) -> StepProgress:
        job = _job(self.observe(), step.job)
        if set(job.nodes) <= set(step.keep):
            return StepProgress(done=True, note=f"job {step.job} has {len(job.nodes)} nodes")
        return self._done(commands.shrink(step.job, step.keep))

    # Undoing it

    def undo(self, step: EngineStep, key: str, found: Found) -> StepProgress:
        match step:
            case Drain():
                return self._undrain(step, key, found)
            case Resume() if found.get("drained"):
                return self._drain(Drain(node=step.node, reason=str(found.get("reason", ""))), key)
            case Requeue():
                return self._allow_again(step, found)
            case Submit() | Resubmit():
                return self._unsubmit(key)
            case _:
                return StepProgress(done=True, note=f"{type(step).__name__} cannot be undone")

    def _undrain(self, step: Drain, key: str, found: Found) -> StepProgress:
        """Take a node back that this action drained; one that was drained before stays so."""
        node = self.observe().nodes.get(step.node)
        if found.get("drained") or node is None or mark(key) not in node.reason.split():
            return StepProgress(done=True, note=f"{step.node}: not drained by this action")
        return self._done(commands.resume(step.node))

    def _allow_again(self, step: Requeue, found: Found) -> StepProgress:
        """The job goes on where it is; while it waits, the nodes are allowed to it again."""
        job = _job(self.observe(), step.job)
        before = list(found.get("excluded", ()))
        if job.phase != "pending" or sorted(job.excluded) == sorted(before):
            return StepProgress(done=True, note="its restart cannot be undone")
        return self._done(commands.exclude(step.job, before, str(found.get("comment", ""))))

    def _unsubmit(self, key: str) -> StepProgress:
        made = _marked(read_jobs(self._line.run(commands.SHOW_JOBS)), key)
        if made is None:
            return StepProgress(done=True, note="no such job is there")
        if _job(self.observe(), made).phase in ("done", "failed", "ending"):
            return StepProgress(done=True, note=f"job {made} has ended")
        return self._done(commands.cancel(made))

    # Saying what it would do

    def preview(self, step: EngineStep, key: str) -> Preview:
        return _PREVIEWS[type(step)](step, key)


def _write(path: Path, text: str) -> None:
    """A file whole or not at all, whatever was there: what a controller wrote before it was killed."""
    part = path.with_name(f".{path.name}")
    try:
        part.write_text(text)
        part.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from None


def _job(state: ClusterState, name: str) -> EngineJob:
    job = state.jobs.get(name)
    if job is None:
        raise RefusedStepError(f"job {name}: Slurm knows none of this number, or no longer")
    return job


def _marked(rows: list[dict[str, Any]], key: str, other_than: str = "") -> str | None:
    """The job that carries the action's mark."""
    for row in rows:
        if mark(key) in str(row.get("comment") or "").split() and job_name(row) != other_than:
            return job_name(row)
    return None


def _preview_drain(step: Drain, key: str) -> Preview:
    return Preview(
        commands=(commands.drain(step.node, step.reason, key),),
        changes=f"no new job starts on {step.node}; what runs there goes on",
        undo=" ".join(commands.resume(step.node)),
        rights=OPERATOR,
    )


def _preview_resume(step: Resume, key: str) -> Preview:
    return Preview(
        commands=(commands.resume(step.node),),
        changes=f"jobs start on {step.node} again",
        undo=f"drain {step.node} again",
        rights=OPERATOR,
    )


def _preview_requeue(step: Requeue, key: str) -> Preview:
    return Preview(
        commands=(
            commands.requeue_held(step.job),
            commands.exclude(step.job, step.exclude, mark(key)),
            commands.release(step.job),
        ),
        changes=f"job {step.job} stops, and starts again from its checkpoint"
        + (f" on other nodes than {', '.join(step.exclude)}" if step.exclude else ""),
        undo="",
        rights=OWNER,
    )


def _preview_resubmit(step: Resubmit, key: str) -> Preview:
    again = ("sbatch", f"--comment={mark(key)}", f"--exclude={','.join(step.exclude)}", "SCRIPT")
    return Preview(
        commands=(commands.kill(step.job), commands.cancel(step.job), again),
        changes=f"job {step.job} ends; its script is submitted as a new job",
        undo="the new job is cancelled",
        rights=SUBMITTER,
    )


def _preview_submit(step: Submit, key: str) -> Preview:
    return Preview(
        commands=(commands.submit(step, key),),
        changes=f"a new job on {step.nodes} nodes",
        undo="the job is cancelled",
        rights="any user",
    )


def _preview_release(step: Release, key: str) -> Preview:
    placed = (commands.place(step.job, step.nodes),) if step.nodes else ()
    return Preview(
        commands=(*placed, commands.release(step.job)),
        changes=f"job {step.job} may start",
        undo="",
        rights=OWNER,
    )


def _preview_shrink(step: Shrink, key: str) -> Preview:
    return Preview(
        commands=(commands.shrink(step.job, step.keep),),
        changes=f"job {step.job} gives back all nodes but {', '.join(step.keep)}",
        undo="",
        rights=OWNER,
    )


def _preview_signal(step: Signal, key: str) -> Preview:
    return Preview(
        commands=(commands.send_signal(step.job, step.signal),),
        changes=f"all processes of job {step.job} get SIG{step.signal}",
        undo="",
        rights=OWNER,
    )


_PREVIEWS: Mapping[type[Any], Callable[[Any, str], Preview]] = {
    Drain: _preview_drain,
    Resume: _preview_resume,
    Requeue: _preview_requeue,
    Resubmit: _preview_resubmit,
    Submit: _preview_submit,
    Release: _preview_release,
    Shrink: _preview_shrink,
    Signal: _preview_signal,
}
