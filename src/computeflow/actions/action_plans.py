"""From a priced option to the steps that carry it out: `plan_steps`."""

from __future__ import annotations

from collections.abc import Sequence

from computeflow.actions.job_states import LiveJob
from computeflow.actions.steps import (
    CheckpointNow,
    CheckSaved,
    Drain,
    Requeue,
    Resubmit,
    SetInterval,
    Shrink,
    Step,
)
from computeflow.scheduling import PricedOption

_RESTARTS = ("restart-on-spare", "restart-after-checkpoint")


def plan_steps(option: PricedOption, live: LiveJob, why: str) -> tuple[Step, ...]:
    """The steps in their order; none where no engine can do it, and a person has to."""
    if option.action in _RESTARTS:
        return (
            *_saving(option, live),
            *(Drain(node=node, reason=why) for node in option.nodes_out),
            _restart(option, live),
        )
    if option.action == "checkpoint-now":
        return _save_now(live)
    if option.action == "checkpoint-interval" and option.new_interval_seconds:
        seconds = live.state.step_seconds or live.state.healthy_step_seconds or 0.0
        if seconds and live.run.run_folder:
            steps = max(1, round(option.new_interval_seconds / seconds))
            return (SetInterval(folder=live.run.run_folder, steps=steps),)
    if option.action == "shrink":
        keep = tuple(node for node in live.job.nodes if node not in option.nodes_out)
        drains = (Drain(node=node, reason=why) for node in option.nodes_out)
        return (*drains, Shrink(job=live.job.job, keep=keep))
    return ()


def _saving(option: PricedOption, live: LiveJob) -> tuple[Step, ...]:
    """What comes before a stop: a save on request, the next one, or a look at the last."""
    if not live.run.checkpoints:
        return ()
    if is_dead(live):
        return (CheckSaved(folder=live.run.checkpoints),) if live.saved is not None else ()
    if option.action == "restart-after-checkpoint":
        return (CheckSaved(folder=live.run.checkpoints, since=live.state.now),)
    if live.state.can_checkpoint:
        return _save_now(live)
    return (CheckSaved(folder=live.run.checkpoints),)


def _save_now(live: LiveJob) -> tuple[Step, ...]:
    asked: Sequence[Step] = (CheckpointNow(folder=live.run.run_folder),)
    if not live.run.checkpoints:
        return tuple(asked)
    return (*asked, CheckSaved(folder=live.run.checkpoints, since=live.state.now))


def _restart(option: PricedOption, live: LiveJob) -> Step:
    held = [row.node for row in live.state.excluded if row.holds(live.state.now)]
    exclude = tuple(dict.fromkeys([*option.nodes_out, *held]))
    if live.job.can_requeue and live.job.phase == "running":
        return Requeue(job=live.job.job, exclude=exclude)
    return Resubmit(job=live.job.job, exclude=exclude, folder=live.run.run_folder)


def is_dead(live: LiveJob) -> bool:
    return any(trouble.is_dead for trouble in live.troubles)
