"""The made runs on which online findings are judged: `faulty_cases`, `healthy_cases`, `judge_case`.

Noise sources and seeds are in two halves: one for whoever writes rules, one that only judges.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, product

from benchmarks.live_batches import deliveries
from benchmarks.live_fleet import NODE_RANKS, Fault, Fleet, Kind, faulty_ranks, make_run
from benchmarks.step_noise import StepNoise, load_noise
from computeflow.collection.online.live_values import LiveFinding
from computeflow.collection.online.watcher import Watcher, WatchOptions

RULES: dict[Kind, tuple[str, ...]] = {
    "slow-rank": ("straggler-rank",),
    "slow-node": ("straggler-rank", "straggler-node"),
    "slow-loader": ("input-stall",),
    "slow-loader-all": ("input-stall",),
    "gc": ("gc-pause",),
    "host-stall": ("host-stall",),
    "checkpoint": ("checkpoint-stall",),
    "evaluation": ("evaluation",),
    "hang": ("hang",),
    "killed": ("hang", "silent-rank"),
    "memory-pressure": ("memory-pressure",),
    "regression": ("regression",),
}
"""Rules that may name a fault."""
SEVERITIES: dict[Kind, tuple[float, ...]] = {
    "slow-rank": (1.05, 1.1, 1.2, 1.5, 2.0, 3.0),
    "slow-node": (1.1, 1.5, 2.0),
    "slow-loader": (1.1, 1.3, 2.0),
    "slow-loader-all": (1.1, 1.3, 2.0),
    "gc": (1.1, 1.3, 2.0),
    "host-stall": (1.1, 1.3, 2.0),
    "checkpoint": (1.1, 1.3),
    "evaluation": (1.1, 1.3),
    "hang": (30.0,),
    "killed": (1.0,),
    "memory-pressure": (1.0, 1.2),
    "regression": (1.1, 1.3, 1.6),
}
_LARGE: tuple[tuple[int, Kind, float], ...] = (
    (64, "slow-rank", 1.2), (64, "slow-rank", 1.5), (64, "slow-node", 1.1),
    (64, "slow-node", 1.5), (64, "slow-node", 2.0), (64, "slow-loader", 1.3), (64, "hang", 30.0),
    (64, "regression", 1.3), (1024, "slow-rank", 1.5), (1024, "slow-node", 1.5),
    (1024, "slow-loader", 1.5), (1024, "hang", 30.0),
)  # fmt: skip
LEVELS = (0.5, 1.0, 2.0)
_BEFORE_SECONDS, _FAULTY_SECONDS, _AFTER_SECONDS = 60.0, 60.0, 60.0
_SMALL_RANKS = 8
"""Runs of more have the noise of GPUs only: 64 ranks do not share two cores."""
_ALSO: dict[str, tuple[str, ...]] = {"memory-pressure": ("straggler-rank",)}
"""What a fault causes on its own rank: neither right nor wrong."""
_GRACE_SECONDS = 15.0
"""Seconds after the last faulty step in which a finding on it still counts as right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineCase:
    noise: str
    level: float
    ranks: int
    steps: int
    step_seconds: float
    seed: int
    fault: Fault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """What was found in a case; seconds from the end of the first or last faulty step."""

    case: OnlineCase
    opened_seconds: float | None = None
    opened_steps: int | None = None
    closed_seconds: float | None = None
    right: int = 0
    wrong: tuple[str, ...] = ()
    cpu_seconds: float = 0.0
    ticks: int = 0

    @property
    def found(self) -> bool:
        return self.opened_seconds is not None


def noise_sources(judging: bool) -> list[StepNoise]:
    return [noise for noise in load_noise().values() if noise.judging == judging]


def faulty_cases(judging: bool) -> Iterator[OnlineCase]:
    """Kinds x severities x noise levels at 2 and 8 ranks; some of them at 64 and 1,024."""
    small = noise_sources(judging)
    large = [noise for noise in small if noise.ranks == 1 or noise.name.startswith("production")]
    number = count(50_000 if judging else 0)
    for kind, severities in SEVERITIES.items():
        ranks = (2, _SMALL_RANKS) if kind != "slow-node" else ()
        for severity, world, level in product(severities, ranks, LEVELS):
            for _ in range(2 if kind == "slow-rank" else 1):
                seed = next(number)
                yield _case(kind, severity, world, level, _one_of(small, seed), seed)
    for world, kind, severity in _LARGE:
        seed = next(number)
        yield _case(kind, severity, world, 1.0, _one_of(large, seed), seed)


def _one_of(sources: Sequence[StepNoise], seed: int) -> StepNoise:
    return sources[random.Random(seed).randrange(len(sources))]


def _case(
    kind: Kind, severity: float, ranks: int, level: float, noise: StepNoise, seed: int
) -> OnlineCase:
    step = 1.0 if ranks > 64 else _step_seconds(noise, (0.2, 0.5)[seed // 3 % 2])
    begin, lasts = (round(seconds / step) for seconds in (_BEFORE_SECONDS, _FAULTY_SECONDS))
    after = round(_AFTER_SECONDS / step)
    if ranks > 64:
        begin, lasts, after = 30, 30, 20
    if kind == "regression":
        lasts, after = 2 * lasts, 0
    end = begin + 1 if kind == "hang" else begin + lasts
    rank = (seed * 7 + 1) % ranks
    return OnlineCase(
        noise=noise.name,
        level=level,
        ranks=ranks,
        steps=begin + lasts + after,
        step_seconds=step,
        seed=seed,
        fault=Fault(kind=kind, severity=severity, rank=rank, begin=begin, end=end),
    )


def _step_seconds(noise: StepNoise, on_gpu: float) -> float:
    """Steps about as long as the source's: noise that a scheduler makes does not grow with them."""
    if noise.ranks == 1 or noise.name.startswith("production"):
        return on_gpu
    return min(max(noise.step_seconds, 0.05), 0.2)


def healthy_cases(judging: bool, runs: int, steps: int = 10_000) -> Iterator[OnlineCase]:
    """Long runs without a fault at the noise as it was measured, two and four ranks in turn."""
    sources = noise_sources(judging)
    for number in range(runs):
        noise = sources[number % len(sources)]
        yield OnlineCase(
            noise=noise.name,
            level=1.0,
            ranks=(2, 4)[number // len(sources) % 2],
            steps=steps,
            step_seconds=min(_step_seconds(noise, 0.1), 0.1),
            seed=(70_000 if judging else 20_000) + number,
        )


def judge_case(case: OnlineCase) -> CaseResult:
    """Watch a case from its beginning to its end, a tick a second."""
    fleet = Fleet(
        run="made",
        ranks=case.ranks,
        steps=case.steps,
        step_seconds=case.step_seconds,
        noise=load_noise()[case.noise],
        level=case.level,
        seed=case.seed,
        faults=() if case.fault is None else (case.fault,),
    )
    run = make_run(fleet)
    watcher = Watcher(WatchOptions(price_usd_per_gpu_hour=2.5))
    opened: list[LiveFinding] = []
    closed: dict[str, float] = {}
    spent, ticks, due = 0.0, 0, 0.0
    for received, batch in deliveries(run):
        began = time.process_time()
        due = due or received + 1.0
        while received >= due:
            changes = watcher.tick(due)
            opened += changes.opened
            closed |= {finding.key: due for finding in changes.closed}
            due, ticks = due + 1.0, ticks + 1
        watcher.take(batch, received)
        spent += time.process_time() - began
    base = CaseResult(case=case, cpu_seconds=spent, ticks=ticks)
    if case.fault is None:
        return replace(base, wrong=tuple(_worded(finding, fleet.start) for finding in opened))
    first, last = run.faulty_seconds(case.fault)
    if case.fault.kind in ("hang", "killed"):  # it shows from its beginning on
        first = float(run.begin[:, case.fault.begin].max() / 1e6) + fleet.step_seconds
    right = [
        finding
        for finding in opened
        if _is_right(finding, case) and first - 1 <= finding.opened <= last + _GRACE_SECONDS
    ]
    wrong = [
        finding
        for finding in opened
        if finding not in right and not _follows(finding, case, first - 1)
    ]
    base = replace(
        base, right=len(right), wrong=tuple(_worded(finding, fleet.start) for finding in wrong)
    )
    if not right:
        return base
    at = right[0].opened
    ends = run.end.max(axis=0) / 1e6
    over = closed.get(right[-1].key)
    return replace(
        base,
        opened_seconds=at - first,
        opened_steps=int(((ends > first) & (ends <= at)).sum()),
        closed_seconds=None if over is None or case.fault.kind == "killed" else over - last,
    )


def _is_right(finding: LiveFinding, case: OnlineCase) -> bool:
    """Whether the finding has the rule and exactly the ranks of the fault."""
    fault = case.fault
    if fault is None or finding.rule not in RULES[fault.kind]:
        return False
    ranks = faulty_ranks(fault, case.ranks)
    if fault.kind == "slow-node":
        node = f"node{fault.rank // NODE_RANKS:04d}"
        return finding.nodes == (node,) and len(finding.ranks) > NODE_RANKS // 2
    return finding.ranks == ranks


def _follows(finding: LiveFinding, case: OnlineCase, since: float) -> bool:
    """Whether a finding is what the fault causes on its own rank, or that it still lasts."""
    fault = case.fault
    if fault is None or finding.opened < since:
        return False
    return finding.rule in _ALSO.get(fault.kind, ()) and finding.ranks == (fault.rank,)


def _worded(finding: LiveFinding, start: float) -> str:
    return f"{finding.rule} {finding.ranks} at {finding.opened - start:.0f} s: {finding.title}"
