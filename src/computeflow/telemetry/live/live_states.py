"""What a collector knows of a node and of a job at one moment: `LiveNodeState`, `LiveJobState`.

They are facts for the rule book, as those of a file are; nobody reads them from a file.
"""

from __future__ import annotations

from dataclasses import dataclass

NODE, JOB = "node", "job"
"""Kinds of source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFault:
    """A kernel message that says what to do."""

    what: str
    detail: str
    gpu: str
    at: float
    """Unix time."""
    meaning: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowedGpuClock:
    """A GPU whose own reasons for lower clocks lasted."""

    gpu: str
    reasons: tuple[str, ...]
    seconds: float
    """For how long all readings have shown one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterGrowth:
    """What a counter of one device grew by in the last minute."""

    name: str
    device: str
    grown: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveNodeState:
    node: str
    ranks: int
    """Ranks of jobs that go on, on this node."""
    jobs: tuple[str, ...]
    faults: tuple[ToldFault, ...] = ()
    slowed: tuple[SlowedGpuClock, ...] = ()
    grown: tuple[CounterGrowth, ...] = ()
    silent_seconds: float = 0.0
    """Since its agent was heard, where it tells of itself; 0 where it is heard."""
    trains: bool = False
    """Whether ranks on other nodes have gone on since, so that its own ranks must live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJobState:
    run: str
    ranks: int
    device: str
    nodes: tuple[str, ...]
    steps: int
    """Steps that it has done."""
    stepless_seconds: float
    """Since its last step, or since its processes began where it has none; they live."""
    inactive_seconds: float | None
    """For how long no GPU of its nodes was active; None where no reading tells."""
