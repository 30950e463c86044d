"""What each step would do to Slurm, in commands and words, and whose rights it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from computeflow.actions.engine import Preview
from computeflow.actions.slurm import slurm_commands as commands
from computeflow.actions.slurm.slurm_commands import mark
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

OPERATOR = "an operator of Slurm (AdminLevel=Operator)"
OWNER = "the job's user, or an operator of Slurm"
SUBMITTER = "the job's user; root for jobs of others"


def preview_step(step: EngineStep, key: str) -> Preview:
    return _PREVIEWS[type(step)](step, key)


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


def _preview_probe(step: ProbeNode, key: str) -> Preview:
    name = commands.reservation(key)
    return Preview(
        commands=(
            commands.reserve(step.node, name),
            commands.submit_probe(step.node, name, "SCRIPT", step.command, key),
            commands.resume(step.node),
            commands.unreserve(name),
        ),
        changes=f"{step.node} is reserved and probed; jobs start on it again if it is accepted",
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
    ProbeNode: _preview_probe,
    Requeue: _preview_requeue,
    Resubmit: _preview_resubmit,
    Submit: _preview_submit,
    Release: _preview_release,
    Shrink: _preview_shrink,
    Signal: _preview_signal,
}
