"""Rules on op timelines, by the what-if study's figures: workers and stages that are always slower."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from computeflow.diagnosis.rule import Outcome, report, seconds_evidence
from computeflow.ledger import Evidence, Remedy
from computeflow.telemetry.observed import Observed
from computeflow.telemetry.whatif.accounts import LEAST_SHARE, LEAST_SLOWDOWN, slow_workers

if TYPE_CHECKING:
    from computeflow.telemetry.whatif.slowdown import Contribution, Slowdown


def slow_worker(observed: Observed) -> Outcome:
    """One finding for all workers that slow the others down."""
    found: Slowdown = observed.facts.slowdown
    slow = slow_workers(found)
    if not slow:
        return []
    names = ", ".join(f"{w.rank} (replica {w.replica}, stage {w.stage})" for w in slow)
    claims = _claims(observed, found.of_slow, "straggler", "compute")
    return report(
        f"worker{'s' if len(slow) > 1 else ''} {names} slow down all: S_w {slow[0].slowdown:.2f}",
        claims,
        _evidence(observed, found.of_slow),
        _remedy("probe the node of the worker (clocks, heat, errors) and exchange it", claims),
        ranks=[worker.rank for worker in slow],
    )


def slow_stage(observed: Observed) -> Outcome:
    """A stage that always differs from the others, where no worker explains what is lost."""
    found: Slowdown = observed.facts.slowdown
    explains = min(found.uneven_stages_share, found.of_slowest_stage.removed) >= LEAST_SHARE
    if slow_workers(found) or found.slowdown < LEAST_SLOWDOWN or not explains:
        return []
    stage = found.slowest_stage
    parts = _claims(observed, found.of_slowest_stage, "imbalance", "compute")
    claims = [("straggler", 0.0), *(part for part in parts if part[1] > 0)]
    return report(
        f"stage {stage} is always slower than the others: S {found.by_stage[stage]:.2f} by it alone",
        claims,
        _evidence(observed, found.of_slowest_stage),
        _remedy("cut the layers anew: fewer for this stage, which often has the loss too", claims),
        ranks=sorted(worker.rank for worker in found.workers if worker.stage == stage),
    )


def _claims(
    observed: Observed, part: Contribution, own: str, other: str
) -> list[tuple[str, float]]:
    """The gap to the what-if, over all steps and GPUs, as far as the two accounts hold it."""
    found: Slowdown = observed.facts.slowdown
    assert observed.ledger is not None
    steps = len(found.steps) * observed.ledger.gpus
    gap = max(found.step_seconds - part.removed_seconds, 0.0) * steps
    first = min(gap, observed.ledger.booked(own))
    rest = min(gap - first, observed.ledger.booked(other))
    return [(own, first), *([(other, rest)] if rest > 0 else [])]


def _evidence(observed: Observed, part: Contribution) -> list[Evidence]:
    found: Slowdown = observed.facts.slowdown
    (where,) = observed.sources
    return [
        seconds_evidence(
            "step with usual durations there", where, part.removed_seconds, found.ideal_seconds
        ),
        Evidence(what="part of the lost time that goes with them", where=where, value=part.removed),
        Evidence(what="slowdown S of the job", where=where, value=found.slowdown, expected=1.0),
    ]


def _remedy(change: str, claims: list[tuple[str, float]]) -> Remedy:
    return Remedy(change=change, gain_gpu_seconds=math.fsum(seconds for _, seconds in claims))
