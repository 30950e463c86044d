"""The step without its profiler in words: `step_sentence` for a headline, `step_text` for a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from computeflow.units import format_seconds

if TYPE_CHECKING:
    from computeflow.diagnosis.as_it_runs import AsItRuns
    from computeflow.diagnosis.diagnosis import Diagnosis

_SAME = 0.005
"""Relative difference of two step times that is within what a replay is off (`UNDERSTOOD`)."""


def is_slowed(step: AsItRuns) -> bool:
    """Whether the profiler made the step longer."""
    return step.is_measured or step.step_seconds < (1 - _SAME) * step.step_seconds_profiled


def step_sentence(step: AsItRuns) -> str:
    recorded, why = format_seconds(step.step_seconds_recorded), _queue(step)
    if is_slowed(step):
        why = f" ({why})" if why else ""
        return f"A step takes {step_text(step)}, {recorded} while recorded{why}."
    text = f"A step takes {format_seconds(step.step_seconds)}; the profiler does not slow it down"
    return f"{text}. It took {recorded} while recorded ({why})." if why else f"{text}."


def _queue(step: AsItRuns) -> str:
    """Why recorded steps took another time than the same steps take once more, where that hides what
    the profiler costs; "" else.
    """
    ratio = step.step_seconds_recorded / step.step_seconds_profiled
    shorter = step.step_seconds < (1 - _SAME) * step.step_seconds_recorded
    if abs(ratio - 1) <= _SAME or (is_slowed(step) and shorter):
        return ""
    return f"the device's queue {'filled up' if ratio > 1 else 'ran down'}"


def step_text(step: AsItRuns) -> str:
    """`91.2 ms as it runs (78.1 to 130 ms)`."""
    text = f"{format_seconds(step.step_seconds)} as it runs"
    if step.is_measured:
        return f"{text} (set by --step-seconds)"
    if step.step_seconds_high <= (1 + _SAME) * step.step_seconds_low:
        return text
    return f"{text} ({between(step.step_seconds_low, step.step_seconds_high)})"


def between(low: float, high: float) -> str:
    """Both ends, the unit once where they share it."""
    first, last = format_seconds(low), format_seconds(high)
    number, _, unit = first.partition(" ")
    return f"{number if last.endswith(f' {unit}') else first} to {last}"


def replay_notes(diagnosis: Diagnosis) -> list[str]:
    """What `as it runs` means beside a recorded ledger, or why it is not known."""
    if (step := diagnosis.as_it_runs) is not None:
        notes = ["as it runs: the same steps without the profiler's cost, from a replay"]
        return [*notes, *_other_steps(step)]
    reason = diagnosis.not_replayed
    return [f"as it runs: unknown, {reason}"] if reason else []


def _other_steps(step: AsItRuns) -> list[str]:
    """A note where the ledger is of other steps than the step's time."""
    if step.steps in (0, step.steps_replayed):
        return []
    return [
        f"the first {step.steps_replayed} of {step.steps} steps are replayed: times of a step are of "
        "these, the ledger is of all, as much shorter as they are"
    ]
