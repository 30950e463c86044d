"""What an action gained, measured on the run's own steps: `measure`, beside what was predicted.

    gain = (step before - step after) x remaining steps - seconds spent on the move

The move lasts from the end of the last step that was kept to the steps after the restart, beyond what
those steps take themselves: it holds the save, the stop, the wait, the restart, the warm-up and the
steps that were done again.
"""

from __future__ import annotations

from collections.abc import Sequence

from computeflow.actions.journal import ActionOutcome, ActionRecord
from computeflow.actions.recorded_steps import WARM_STEPS, AttemptSteps, RecordedStep

MEASURED_STEPS = 20
"""Steps after the warm-up that the new step time is the median of."""
_BEFORE_SECONDS = 60.0


def measure(
    action: ActionRecord, attempts: Sequence[AttemptSteps], now: float
) -> ActionOutcome | None:
    """The outcome of a restart; None while there are too few steps to tell."""
    old = [each for each in attempts if each.attempt == action.attempt and each.steps]
    new = [each for each in attempts if each.attempt > action.attempt and each.steps]
    if not old or not new or len(new[0].steps) < WARM_STEPS + MEASURED_STEPS:
        return None
    before, after = old[-1], new[0]
    began = action.acted_at or action.at
    slow = before.usual_seconds(began - _BEFORE_SECONDS, before.steps[-1].end, most=MEASURED_STEPS)
    slow = action.step_seconds if slow is None else slow
    fast = after.usual_seconds(0.0, after.steps[-1].end, most=MEASURED_STEPS * 10)
    lost, restart = _downtime(before, after)
    if lost is None:  # steps that are done again are not done with yet
        return None
    kept = _last_kept(before, after)
    move = None if kept is None or fast is None else _move_seconds(kept, after, fast)
    remaining = _remaining(action, kept)
    gain = _gain(slow, fast, remaining, move, dead=action.step_seconds is None)
    return ActionOutcome(
        at=now,
        step_seconds_before=slow,
        step_seconds_after=fast,
        remaining_steps=remaining,
        move_seconds=move,
        lost_seconds=lost,
        restart_seconds=restart,
        measured_gain_seconds=gain,
    )


def _remaining(action: ActionRecord, kept: RecordedStep | None) -> int | None:
    """Steps that were left when the move began: those until then were slow in any case."""
    if action.remaining_steps is None or action.inputs is None or kept is None or kept.own is None:
        return action.remaining_steps
    return max(action.remaining_steps - max(kept.own - action.inputs.state.done_steps, 0), 0)


def _gain(
    slow: float | None,
    fast: float | None,
    remaining: int | None,
    move: float | None,
    *,
    dead: bool,
) -> float | None:
    if dead or slow is None or fast is None or remaining is None or move is None:
        return None
    return (slow - fast) * remaining - move


def _last_kept(before: AttemptSteps, after: AttemptSteps) -> RecordedStep | None:
    """The last step of the old attempt that the new one did not do again."""
    first = after.steps[0].own
    if first is None:
        return before.steps[-1]
    kept = [step for step in before.steps if step.own is not None and step.own < first]
    return kept[-1] if kept else None


def _move_seconds(kept: RecordedStep, after: AttemptSteps, usual: float) -> float:
    place = min(WARM_STEPS, len(after.steps) - 1)
    return max(after.steps[place].end - kept.end - (place + 1) * usual, 0.0)


def _downtime(before: AttemptSteps, after: AttemptSteps) -> tuple[float | None, float]:
    """Seconds of steps done again, None while they go on; and from the last step to the first."""
    last, first = before.steps[-1], after.steps[0]
    restart = max(first.end - last.end, 0.0)
    if first.own is None or last.own is None:
        return 0.0, restart
    again = [step for step in after.steps if step.own is not None and step.own <= last.own]
    if again and len(again) == len(after.steps):
        return None, restart
    return (again[-1].end - first.end if again else 0.0), restart
