"""Rules on op timelines, from the what-if study: workers and stages that are always slower."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from computeflow.diagnosis.rule import Outcome, report, seconds_evidence
from computeflow.ledger import Evidence, Remedy
from computeflow.telemetry.op_timelines.worker_ledgers import MIN_SHARE, MIN_SLOWDOWN, slow_workers
from computeflow.telemetry.source_reports import SourceReport

if TYPE_CHECKING:
    from computeflow.telemetry.op_timelines.slowdown import Contribution, Slowdown


def slow_worker(observed: SourceReport) -> Outcome:
    """One finding for all workers that slow the others down."""
    slowdown: Slowdown = observed.facts.slowdown
    slow = slow_workers(slowdown)
    if not slow:
        return []
    names = ", ".join(f"{w.rank} (replica {w.replica}, stage {w.stage})" for w in slow)
    claims = _claims(observed, slowdown.of_slow, "straggler", "compute")
    return report(
        f"slow worker{'s' if len(slow) > 1 else ''} {names}: S_w {slow[0].slowdown:.2f}",
        claims,
        _evidence(observed, slowdown.of_slow),
        _remedy("probe the worker's node (clocks, heat, errors) and replace it", claims),
        ranks=[worker.rank for worker in slow],
    )


def slow_stage(observed: SourceReport) -> Outcome:
    """A stage that is always slower, where no worker explains the lost time."""
    slowdown: Slowdown = observed.facts.slowdown
    explains = min(slowdown.uneven_stages_share, slowdown.of_slowest_stage.removed) >= MIN_SHARE
    if slow_workers(slowdown) or slowdown.slowdown < MIN_SLOWDOWN or not explains:
        return []
    stage = slowdown.slowest_stage
    parts = _claims(observed, slowdown.of_slowest_stage, "imbalance", "compute")
    claims = [("straggler", 0.0), *(part for part in parts if part[1] > 0)]
    return report(
        f"stage {stage} is always slower than the others: S {slowdown.by_stage[stage]:.2f} by itself",
        claims,
        _evidence(observed, slowdown.of_slowest_stage),
        _remedy(
            "rebalance the layers: fewer on this stage, which often computes the loss too", claims
        ),
        ranks=sorted(worker.rank for worker in slowdown.workers if worker.stage == stage),
    )


def _claims(
    observed: SourceReport, part: Contribution, own: str, other: str
) -> list[tuple[str, float]]:
    """The gap to the what-if step over all steps and GPUs, limited to what the two accounts hold."""
    slowdown: Slowdown = observed.facts.slowdown
    assert observed.ledger is not None
    steps = len(slowdown.steps) * observed.ledger.gpus
    gap = max(slowdown.step_seconds - part.removed_seconds, 0.0) * steps
    first = min(gap, observed.ledger.booked(own))
    rest = min(gap - first, observed.ledger.booked(other))
    return [(own, first), *([(other, rest)] if rest > 0 else [])]


def _evidence(observed: SourceReport, part: Contribution) -> list[Evidence]:
    slowdown: Slowdown = observed.facts.slowdown
    (where,) = observed.sources
    return [
        seconds_evidence(
            "step time with usual durations there",
            where,
            part.removed_seconds,
            slowdown.ideal_seconds,
        ),
        Evidence(what="share of the lost time explained", where=where, value=part.removed),
        Evidence(
            what="slowdown S of the whole job", where=where, value=slowdown.slowdown, expected=1.0
        ),
    ]


def _remedy(change: str, claims: list[tuple[str, float]]) -> Remedy:
    return Remedy(change=change, gain_gpu_seconds=math.fsum(seconds for _, seconds in claims))
