"""`clock-throttle` on a fleet: slow GPUs in a job, and what the job's other GPUs wait for them.

The wait is claimed where a log of the job shows it: its median step while the GPU was slowed, against
its steps at other times. It cannot be more than what the clock lacks. The worst GPU of a job has the
wait of all others that are not slow themselves. Without such a log the wait is not claimed, and this is
said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from computeflow.diagnosis.rule import Draft, Missing, Outcome, report
from computeflow.diagnosis.rules.fleet import SlowGpu, find_slow, slow_evidence, throttle_remedy
from computeflow.diagnosis.rules.joined_fleet import METRICS, amount
from computeflow.ledger import Evidence
from computeflow.telemetry.fleet.held_idle import busy_under_holders
from computeflow.telemetry.source_reports import SourceReport

if TYPE_CHECKING:
    from computeflow.telemetry.fleet.fleet_facts import FleetFacts, SlowedGpu
    from computeflow.telemetry.metrics.gpu_facts import GpuFigures


def clock_throttle(observed: SourceReport) -> Outcome:
    facts: FleetFacts = observed.facts
    if not observed.columns:
        return METRICS
    where = ", ".join(path for each in observed.columns for path in each.sources[:3])
    gpus = [part for each in observed.columns for gpu in each.facts.gpus for part in _by_job(gpu)]
    found = find_slow(gpus)
    if isinstance(found, Missing):
        return found
    slow, unknown = found
    by_job: dict[str, list[SlowGpu]] = {}
    for one in slow:
        by_job.setdefault(_job(one), []).append(one)
    drafts = [
        draft
        for group in by_job.values()
        for place, one in enumerate(sorted(group, key=lambda one: -one.lower))
        for draft in _draft(one, facts, where, len(group) if place == 0 else 0)
    ]
    return [*drafts, *unknown]


def _by_job(gpu: GpuFigures) -> Iterator[GpuFigures]:
    """The GPU in each job that held it."""
    for holder, busy in busy_under_holders(gpu):
        assert gpu.activity is not None
        yield replace(
            gpu,
            workloads=(holder,) if holder else gpu.workloads,
            activity=replace(gpu.activity, busy=busy),
        )


def _job(slow: SlowGpu) -> str:
    workloads: Sequence[str] = slow.clocked.gpu.workloads
    return workloads[0] if len(workloads) == 1 else ""


def _draft(slow: SlowGpu, facts: FleetFacts, where: str, slow_gpus: int) -> list[Draft]:
    """`slow_gpus`: slow GPUs of the job, which do not wait for this one; 0: others wait for another."""
    gpu = slow.clocked.gpu
    rows = [r for r in facts.slowed if (r.node, r.gpu) == (gpu.node, gpu.gpu or gpu.uuid)]
    row = next((r for r in rows if r.job == _job(slow) or not _job(slow)), None)
    own, wait, text = slow.lost_seconds, 0.0, ""
    if row is not None:
        own *= min(row.seconds / row.all_seconds, 1.0) if row.all_seconds else 1.0
        wait, text = _wait(slow, row, slow_gpus)
    if not own:
        return []  # the work of its job is booked as lost
    claims = [("compute.clock", own), *([("compute", wait)] if wait else [])]
    waits = f"; the other GPUs of job {row.job} wait for it" if row is not None and wait else ""
    evidence = [*slow_evidence(slow, where), *([Evidence(what=text, where=where)] if text else [])]
    return report(
        slow.title + waits, claims, evidence, throttle_remedy(slow, own + wait, facts.scheduler)
    )


def _wait(slow: SlowGpu, row: SlowedGpu, slow_gpus: int) -> tuple[float, str]:
    """GPU-seconds that others of the job wait, and how that is known or why it is not."""
    others = row.job_gpus - slow_gpus
    if not slow_gpus or others <= 0:
        return 0.0, ""
    deep = min(slow.lost_seconds / row.all_seconds, 1.0) if row.all_seconds else slow.lower
    most = row.seconds * deep * others
    if row.step_seconds is None or row.usual_step_seconds is None:
        return 0.0, (
            f"not included: what the other {others:,.0f} GPUs of job {row.job} wait for it, at most "
            f"{amount(most)}; a log of the job with steps before and after would show it"
        )
    longer = max(1 - row.usual_step_seconds / row.step_seconds, 0.0)
    return row.seconds * min(longer, deep) * others, (
        f"a step of job {row.job} takes {row.step_seconds:.3g} s while it is slowed, "
        f"{row.usual_step_seconds:.3g} s at other times, on {row.job_gpus:,.0f} GPUs"
    )
