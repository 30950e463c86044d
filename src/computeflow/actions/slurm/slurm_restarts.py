"""Jobs that start again: the same one requeued, or its script submitted as a new one."""

from __future__ import annotations

import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from computeflow.actions.engine import EngineJob, Found, RefusedStepError, StepProgress
from computeflow.actions.slurm import slurm_commands as commands
from computeflow.actions.slurm.slurm_commands import mark
from computeflow.actions.slurm.slurm_session import (
    SlurmSession,
    find_job,
    marked_job,
    this_user,
)
from computeflow.actions.slurm.slurm_state import job_name
from computeflow.actions.steps import Requeue, Resubmit
from computeflow.collection.submissions import Submission, read_submission


def advance_requeue(session: SlurmSession, step: Requeue, key: str, found: Found) -> StepProgress:
    """Stopped and held; kept off nodes; let go: whichever comes next."""
    job = find_job(session.observe(), step.job)
    missing = [node for node in step.exclude if node not in job.excluded]
    requeued = job.restarts > int(found.get("restarts", 0))
    if job.phase in ("done", "failed") and not requeued:
        raise RefusedStepError(f"job {step.job} has ended: {job.state}")
    if not requeued:
        return session.wait(commands.requeue_held(step.job), note="requeued")
    if job.phase == "ending":
        return StepProgress(done=False, note="its processes end")
    if job.phase != "pending":
        return _running_again(session, job, step)
    if missing or mark(key) not in job.comment:
        everything = sorted({*job.excluded, *step.exclude})
        comment = f"{job.comment} {mark(key)}".strip()
        return session.wait(commands.exclude(step.job, everything, comment), note="excluded")
    if job.held:
        return session.done(commands.release(step.job), note="released")
    return StepProgress(done=True, note=f"job {step.job} waits for nodes")


def _running_again(session: SlurmSession, job: EngineJob, step: Requeue) -> StepProgress:
    """Slurm itself may have requeued it, after a node had failed."""
    on = [node for node in step.exclude if node in job.nodes]
    if on:
        note = f"again: it came back on {', '.join(on)}"
        return session.wait(commands.requeue_held(step.job), note=note)
    return StepProgress(done=True, note=f"job {step.job} runs on {', '.join(job.nodes)}")


def allow_again(session: SlurmSession, step: Requeue, found: Found) -> StepProgress:
    """Undo: the job goes on where it is; while it waits, the nodes are allowed to it again."""
    job = find_job(session.observe(), step.job)
    before = list(found.get("excluded", ()))
    if job.phase != "pending" or sorted(job.excluded) == sorted(before):
        return StepProgress(done=True, note="its restart cannot be undone")
    return session.done(commands.exclude(step.job, before, str(found.get("comment", ""))))


def advance_resubmit(session: SlurmSession, step: Resubmit, key: str) -> StepProgress:
    rows = session.rows()
    if (made := marked_job(rows, key, other_than=step.job)) is not None:
        return StepProgress(done=True, note=f"submitted as job {made}", result={"job": made})
    row = next((row for row in rows if job_name(row) == step.job), None)
    if row is None:
        raise RefusedStepError(f"job {step.job}: Slurm no longer knows it")
    if find_job(session.observe(), step.job).phase in ("pending", "running"):
        return session.wait(commands.kill(step.job), commands.cancel(step.job), note="ended")
    text = session.line.run(commands.batch_script(step.job))
    script = session.keep(f"job-{step.job}.sh", text)
    return _submit_again(session, step, key, row, str(script))


def _submit_again(
    session: SlurmSession, step: Resubmit, key: str, row: Mapping[str, Any], script: str
) -> StepProgress:
    """In the name of its user, with its own arguments and environment as far as they are known."""
    user = str(row.get("user_name") or "")
    before = _submission(step, user)
    words = commands.resubmit(
        row,
        script,
        step.exclude,
        key,
        user="" if user == this_user() else user,
        arguments=None if before is None else before.arguments,
    )
    if before is None:
        job, unknown = session.submit(words), "; its environment is not known"
    else:
        pairs = [f"{name}={value}" for name, value in before.environment.items()]
        data = "\0".join(pairs).encode(errors="surrogateescape")
        with session.secret(f"environment-{key}", data) as path:
            words = (words[0], f"--export-file={path}", *words[1:])
            job, unknown = session.submit(words), ""
    return StepProgress(
        done=True,
        commands=(words,),
        note=f"submitted as job {job}{unknown}",
        result={"job": job},
    )


def _submission(step: Resubmit, user: str) -> Submission | None:
    """What `record` kept of this job's submission."""
    if not step.folder:
        return None
    try:
        found = read_submission(Path(step.folder), pwd.getpwnam(user).pw_uid)
    except KeyError:
        return None
    return found if found is not None and found.job == step.job else None


def unsubmit(session: SlurmSession, key: str) -> StepProgress:
    """Undo: the job that was submitted is cancelled."""
    made = marked_job(session.rows(), key)
    if made is None:
        return StepProgress(done=True, note="no such job is there")
    if find_job(session.observe(), made).phase in ("done", "failed", "ending"):
        return StepProgress(done=True, note=f"job {made} has ended")
    return session.done(commands.cancel(made))
