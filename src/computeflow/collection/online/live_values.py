"""What a collector knows of a run at this moment: `LiveFinding`, `LiveRun`, `LiveNode`.

They are what the store keeps, what `/metrics`, alerts, webhooks and `top` show, and JSON field for
field. Times are Unix seconds.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from computeflow.ledger import Evidence, Finding, PeakFlops, RankSeconds, Remedy
from computeflow.telemetry.run_folders.run_facts import PlannedStep

RunState = Literal["running", "stuck", "silent", "ended"]
POWER_READINGS = ("DCGM_FI_DEV_POWER_USAGE", "gpu_package_power", "gpu_average_package_power")
TEMPERATURE_READINGS = ("DCGM_FI_DEV_GPU_TEMP", "gpu_junction_temperature")
GPU_READINGS = frozenset(POWER_READINGS + TEMPERATURE_READINGS)
"""What is kept of each GPU; of all other readings a node keeps the largest."""


def finding_key(run: str, rule: str, account: str, ranks: tuple[int, ...], onset: float) -> str:
    """A short name that stays the same from the onset of a finding to its end."""
    text = f"{run}\0{rule}\0{account}\0{ranks}\0{onset:.3f}"
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFinding:
    key: str
    run: str
    """"" for a finding on a node that has no run."""
    rule: str
    title: str
    account: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    share: float
    """Share of the run's GPU-seconds, while it lasts."""
    gpu_seconds: float
    """Since its onset."""
    usd_per_hour: float | None
    usd: float | None
    """Since its onset."""
    confidence: float
    evidence: tuple[Evidence, ...]
    """With what the nodes said of themselves meanwhile."""
    remedy: Remedy | None
    onset: float
    """When its cause began, as far as the records show."""
    opened: float
    """When it was first reported."""
    seen: float
    """When the rule last saw it."""
    closed: float | None = None
    why_closed: str = ""
    silenced_until: float | None = None
    """Until then it is kept and not reported."""

    @property
    def is_open(self) -> bool:
        return self.closed is None


def open_finding(
    finding: Finding,
    key: str,
    run: str,
    *,
    ranks: tuple[int, ...] = (),
    nodes: tuple[str, ...] = (),
    share: float = 0.0,
    onset: float,
    now: float,
) -> LiveFinding:
    """What a rule found as a finding that is reported now; nothing of it is priced yet."""
    return LiveFinding(
        key=key,
        run=run,
        rule=finding.rule,
        title=finding.title,
        account=finding.account,
        ranks=ranks,
        nodes=nodes,
        share=share,
        gpu_seconds=0.0,
        usd_per_hour=None,
        usd=None,
        confidence=finding.confidence,
        evidence=finding.evidence,
        remedy=finding.remedy,
        onset=onset,
        opened=now,
        seen=now,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRank:
    rank: int
    node: str
    step: int
    step_seconds: float | None
    own_seconds: float | None
    """Median time of a step without waits; None where waits are unknown."""
    late_seconds: float | None
    """Median seconds that it comes to collectives after the median of its peers."""
    last_seen: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a run stepped with so many ranks: read from older stores, and used no more."""

    world: int
    kept_steps: int
    steps: int
    step_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BookState:
    """From what the books of a run go on after a restart of the collector."""

    booked: dict[str, float]
    """GPU-seconds by account, up to the last step."""
    until: float
    attempt: int
    """The one that is booked; a later one may have begun."""
    done: int
    """Highest optimizer step that an earlier attempt reached; -1 where none did."""
    seen: int
    """Highest optimizer step that was counted."""
    paces: tuple[Pace, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    run: str
    name: str
    command: str
    state: RunState
    world: int
    ranks: int
    """Ranks that were heard of."""
    nodes: tuple[str, ...]
    device: str
    gpu: str
    started: float
    updated: float
    attempt: int
    step: int
    step_seconds: float | None
    """Median of the last 16 steps of up to 64 ranks."""
    tokens_per_second: float | None
    mfu: float | None
    """That of the last window."""
    peak: PeakFlops | None = None
    """What it is a share of; None in stores of before it was kept."""
    accounts: dict[str, float]
    """Shares of the last window by account; they add up to 1."""
    window_seconds: float = 0.0
    """How long the last window is, without start-up."""
    window_ranks: int = 0
    """Ranks that were looked at in it: all, or of a large run those of the first nodes and the late."""
    ranks_by_account: dict[str, tuple[RankSeconds, ...]] = field(default_factory=dict)
    """The ranks with most of each account of the last window, at most 16."""
    goodput: float | None
    """Share of all that is booked that passed in kept steps: `ledger.goodput_of`."""
    usd_per_gpu_hour: float | None
    slowest: tuple[LiveRank, ...]
    """The ranks that others wait for, first; at most 16."""
    dropped: int = 0
    """Records that recorders dropped."""
    notes: tuple[str, ...] = ()
    job: str = ""
    """The scheduler's number of the job that runs it; "" where none is known."""
    run_folder: str = ""
    total_steps: int | None = None
    """What `record --total-steps` said; None where it did not."""
    checkpoints: str = ""
    """The folder that it saves to, by `record --checkpoints`."""
    booked: dict[str, float] = field(default_factory=dict)
    """GPU-seconds by account since it began, as far as it was watched; with what passed since the
    last step, where that is long."""
    booked_until: float = 0.0
    kept_steps: int = 0
    """Steps that were not done again later."""
    planned: PlannedStep | None = None
    """The step that it was started for, by `record --expect`."""
    books: BookState | None = None
    """None in stores of before it was kept."""

    @property
    def mfu_palm(self) -> float | None:
        """The MFU by the PaLM convention, which counts attention without its causal mask."""
        ratio = None if self.peak is None else self.peak.palm_ratio
        return None if self.mfu is None or ratio is None else self.mfu * ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGpu:
    """A GPU of a node, by its number there."""

    gpu: int
    readings: dict[str, float] = field(default_factory=dict)
    """The latest of those in `GPU_READINGS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveNode:
    node: str
    agent: str
    last_seen: float
    gpus: int
    readings: dict[str, float] = field(default_factory=dict)
    """The latest of each, summed up by name: the largest over its GPUs."""
    by_gpu: tuple[LiveGpu, ...] = ()
    """In the order of their numbers; GPUs that no reading numbers are not among them."""
    missing: dict[str, str] = field(default_factory=dict)
    signals: tuple[str, ...] = ()
    """What it said of itself in the last 15 minutes, at most 8."""
