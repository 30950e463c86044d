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
    return step.is_measured or step.step_seconds < (1 - _SAME) * step.step_seconds_recorded


def step_sentence(step: AsItRuns) -> str:
    if not is_slowed(step):
        seconds = format_seconds(step.step_seconds)
        return f"A step takes {seconds}; the profiler does not slow it down."
    recorded = format_seconds(step.step_seconds_recorded)
    return f"A step takes {step_text(step)}, {recorded} while recorded."


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
    if diagnosis.as_it_runs is not None:
        return ["as it runs: the same steps without the profiler's cost, from a replay"]
    reason = diagnosis.not_replayed
    return [f"as it runs: unknown, {reason}"] if reason else []
