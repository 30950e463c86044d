"""`AsItRuns`: a recorded step without its profiler, and its ledger."""

from __future__ import annotations

from dataclasses import dataclass, replace

from computeflow.ledger import Entry, Ledger
from computeflow.replay.replayed_step import ReplayedStep

_IDLE = ("host", "unexplained", "input", "copy", "checkpoint", "evaluation")
"""Accounts in which a device idles, in the order in which the profiler's cost is taken off them: the
profiler slows the host, and what the host delays is booked there first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsItRuns:
    step_seconds_recorded: float
    """The mean of the recorded steps: the recorded ledger over its steps. The steady step with the
    profiler where it is not of the replayed steps."""
    step_seconds_profiled: float
    """The steady step with the profiler: what the recorded steps take once more, by the unchanged
    replay. Another than the recorded one where the device's queue changed its length meanwhile."""
    step_seconds: float
    """The steady step without the profiler."""
    step_seconds_low: float
    step_seconds_high: float
    is_measured: bool
    """Whether the step's time is the user's own measurement."""
    replay_error: float
    """The unchanged replay of the window over the recorded window, less 1."""
    steps: int
    """Steps of the ledger's window; 0 where none are marked."""
    steps_replayed: int
    ledger: Ledger
    """The window's ledger without the profiler's cost: its steps take `step_seconds` each. Where other
    steps are replayed than it has, it is as much shorter as they are."""


def as_it_runs(step: ReplayedStep, recorded: Ledger, *, steps: int, is_measured: bool) -> AsItRuns:
    """`steps`: those of the recorded ledger's window; 0 where none are marked."""
    alike = steps == step.graph.steps
    before = recorded.wall_seconds / steps if alike else step.recorded_seconds
    return AsItRuns(
        step_seconds_recorded=before,
        step_seconds_profiled=step.recorded_seconds,
        step_seconds=step.seconds.middle,
        step_seconds_low=step.seconds.low,
        step_seconds_high=step.seconds.high,
        is_measured=is_measured,
        replay_error=step.error,
        steps=steps,
        steps_replayed=step.graph.steps,
        ledger=_ledger(recorded, recorded.wall_seconds * step.seconds.middle / before),
    )


def _ledger(recorded: Ledger, wall_seconds: float) -> Ledger:
    """The ledger of a window of another length: idle accounts give, or `host` takes."""
    seconds = {entry.account: 0.0 for entry in recorded.entries}
    for entry in recorded.entries:
        seconds[entry.account] += entry.gpu_seconds
    over = sum(seconds.values()) - recorded.gpus * wall_seconds
    if over < 0:
        seconds["host"] = seconds.get("host", 0.0) - over
    for account in _IDLE:
        taken = min(max(over, 0.0), seconds.get(account, 0.0))
        if taken:
            seconds[account] -= taken
            over -= taken
    if over > 0:  # more than the device idled: kernels themselves overlapped
        seconds = _shorter(seconds, over)
    return replace(
        recorded,
        wall_seconds=sum(seconds.values()) / recorded.gpus,
        entries=tuple(Entry(account=name, gpu_seconds=s) for name, s in seconds.items() if s > 0),
        basis="simulated",
        window=replace(recorded.window, label=f"{recorded.window.label}, without the profiler"),
    )


def _shorter(seconds: dict[str, float], over: float) -> dict[str, float]:
    """All accounts but the model's FLOPs give alike: their time at the peak stays what it is."""
    fixed = seconds.get("compute.model", 0.0)
    rest = sum(seconds.values()) - fixed
    if over >= rest:
        return {name: s * (fixed + rest - over) / (fixed + rest) for name, s in seconds.items()}
    return {
        name: s if name == "compute.model" else s * (1 - over / rest) for name, s in seconds.items()
    }
