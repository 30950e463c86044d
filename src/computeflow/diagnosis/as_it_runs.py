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
    """The steady step with the profiler, as the unchanged replay gives it."""
    step_seconds: float
    step_seconds_low: float
    step_seconds_high: float
    is_measured: bool
    """Whether the step's time is the user's own measurement."""
    replay_error: float
    """The unchanged replay of the window over the recorded window, less 1."""
    ledger: Ledger
    """The window's ledger without the profiler's cost."""


def as_it_runs(step: ReplayedStep, recorded: Ledger, *, is_measured: bool) -> AsItRuns:
    return AsItRuns(
        step_seconds_recorded=step.recorded_seconds,
        step_seconds=step.seconds.middle,
        step_seconds_low=step.seconds.low,
        step_seconds_high=step.seconds.high,
        is_measured=is_measured,
        replay_error=step.error,
        ledger=_ledger(
            recorded, recorded.wall_seconds * step.seconds.middle / step.recorded_seconds
        ),
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
        whole = sum(seconds.values())
        seconds = {name: s * (1 - over / whole) for name, s in seconds.items()}
    return replace(
        recorded,
        wall_seconds=sum(seconds.values()) / recorded.gpus,
        entries=tuple(Entry(account=name, gpu_seconds=s) for name, s in seconds.items() if s > 0),
        basis="simulated",
        window=replace(recorded.window, label=f"{recorded.window.label}, without the profiler"),
    )
