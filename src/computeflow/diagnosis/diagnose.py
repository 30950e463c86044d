"""Findings with remedies: `diagnose` for traces, `diagnose_source` for every other source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from computeflow.catalog import Catalog
from computeflow.cluster.machine import usual_cluster
from computeflow.diagnosis.as_it_runs import AsItRuns, as_it_runs
from computeflow.diagnosis.diagnosis import Diagnosis, Expected, SkippedRule
from computeflow.diagnosis.expectation import derive, expected_lines
from computeflow.diagnosis.figures import confidence
from computeflow.diagnosis.marginal_gains import price
from computeflow.diagnosis.model_from_shapes import NotInferredError, infer
from computeflow.diagnosis.predicted_gains import PredictedRun, replay
from computeflow.diagnosis.remedies import framework_of
from computeflow.diagnosis.rule import NO_DEVICE, Draft, Missing, Outcome
from computeflow.diagnosis.rules import RULES
from computeflow.diagnosis.settle import lines_without_expectation, settle
from computeflow.diagnosis.slow_ranks import replay_together
from computeflow.diagnosis.trace_case import TraceCase
from computeflow.errors import ComputeFlowError
from computeflow.ledger import Finding, Gap, Ledger, gaps
from computeflow.replay.replayed_step import ReplayedStep, replay_step
from computeflow.telemetry.source_reports import SourceReport
from computeflow.telemetry.traces.job_ledgers import TracedJob
from computeflow.units import format_count

_MUCH = 0.1
"""Share of the window from which unexplained waiting is noted."""
_MUCH_OF_STEP = 0.05
"""The same of a replayed step: what the profiler added is not in it."""
UNTIMED = ("failed-rank", "failing-node", "memory-pressure", "silent-rank")
"""Rules that name what ended a job, or will, also where they claim no time of it."""
LEFT_BY_OTHERS = "launch-bound"
"""The rule of a host that is slow for no cause that has another name."""
READY = 8
"""Batches that four workers keep ready (torch's prefetch_factor is 2): a window of fewer steps may be
served from them."""
_MOSTLY = 0.6
"""Share of all waits from which they are said to be for one rank."""
WAITING = ("host", "input", "checkpoint", "copy", "unexplained")


def diagnose(
    audit: TracedJob,
    catalog: Catalog,
    *,
    expected: Expected | None = None,
    observed: Sequence[SourceReport] = (),
    step_seconds: float | None = None,
    compared: bool = False,
) -> Diagnosis:
    """Findings in traces. `expected`: of a plan; else derived where the predictor knows the job.
    `step_seconds`: the step as the user measured it without a profiler. `compared`: the recorded ledger
    is compared with an earlier one, so that claims must be of it; they are where a plan is given.
    """
    case = make_case(audit, catalog, observed, step_seconds)
    books = case.ledger if compared or expected is not None else _books(case)
    findings, priced, abstained = _judge(case, books)
    against = expected
    if against is None and case.replay is not None:
        against = derive(case)
    lines = _lines(case, against, given=expected is not None)
    if expected is not None:  # what a plan expects is no finding
        findings, priced = [*findings, *priced], []
    settled = settle(findings, _left(lines, priced))
    notes = _dropped(findings, settled, given=expected is not None)
    settled = sorted([*settled, *priced], key=_rank)
    notes += _unexplained(case, settled)
    if step_seconds is None:
        notes += _unseen_waits(case, settled)
    if case.not_together and case.audit.job.shared_collectives:
        notes.append(f"ranks were not replayed together: {case.not_together}")
    if expected is not None and expected.ledger.gpus != case.ledger.gpus:
        notes.append(
            f"{expected.name} is for {expected.ledger.gpus} GPUs, this recording has "
            f"{case.ledger.gpus}"
        )
    return Diagnosis(
        findings=tuple(settled),
        abstained=abstained,
        as_it_runs=_as_it_runs(case, is_measured=step_seconds is not None),
        not_replayed=case.not_replayed,
        expected=against,
        expected_reason="" if against else case.why_not,
        gaps=tuple(lines) if against else (),
        combined_gain=_combined(settled),
        notes=tuple(notes),
    )


def _rank(finding: Finding) -> float:
    """The most expensive first; what other causes leave, by the least that it gains."""
    remedy = finding.remedy
    if finding.rule == LEFT_BY_OTHERS and remedy is not None and remedy.gain_low is not None:
        return -min(remedy.gain_low, finding.gpu_seconds)
    return -finding.gpu_seconds


def _left(lines: Sequence[Gap], taken: Sequence[Finding]) -> list[Gap]:
    """The lines without what findings of the replayed step have claimed."""
    claimed: dict[str, float] = {}
    for finding in taken:
        for claim in finding.claims:
            claimed[claim.account] = claimed.get(claim.account, 0.0) + claim.gpu_seconds
    return [
        replace(
            line, expected=line.expected + sum(claimed.get(name, 0.0) for name in line.accounts)
        )
        for line in lines
    ]


def _as_it_runs(case: TraceCase, *, is_measured: bool = False) -> AsItRuns | None:
    if case.step is None:
        return None
    steps = len(case.first.steps)
    return as_it_runs(case.step, case.ledger, steps=steps, is_measured=is_measured)


def _books(case: TraceCase) -> Ledger:
    """The ledger that findings of the replayed step claim of: as it runs, as long as recorded."""
    running = _as_it_runs(case)
    if running is None:
        return case.ledger
    return running.ledger.scale(case.ledger.gpu_seconds / running.ledger.gpu_seconds)


def _judge(
    case: TraceCase, books: Ledger
) -> tuple[list[Finding], list[Finding], tuple[SkippedRule, ...]]:
    """Findings that state their own claims, findings of the replayed step, and skipped rules."""
    outcomes: list[tuple[str, Outcome]] = []
    for rule in RULES:
        judge = rule.step if case.step is not None and rule.step is not None else rule.trace
        if judge is not None:
            outcomes.append((rule.id, judge(case)))
    plain = [(name, confidence(name), _without_edits(outcome)) for name, outcome in outcomes]
    findings, abstained = _sign(plain)
    priced: list[Finding] = []
    if case.step is not None:
        drafts = [
            (name, part)
            for name, outcome in outcomes
            if not isinstance(outcome, Missing)
            for part in outcome
            if isinstance(part, Draft) and part.edit is not None
        ]
        gained = price(case.step, drafts, books)
        priced = [part.sign(name, confidence(name)) for name, part in gained]
    return findings, priced, abstained


def _without_edits(outcome: Outcome) -> Outcome:
    if isinstance(outcome, Missing):
        return outcome
    return [part for part in outcome if isinstance(part, Missing) or part.edit is None]


def diagnose_source(observed: SourceReport) -> Diagnosis:
    """Findings in a source that is no trace.

    Claims are settled against its ledger. A source without one (a hang dump, a memory snapshot) has
    nothing to settle them against: they stay as their rules state them, and may overlap with those of
    other sources.
    """
    findings, abstained = _sign(
        (rule.id, look.confidence, look.judge(observed))
        for rule in RULES
        if (look := rule.sources.get(observed.kind)) is not None
    )
    settled = sorted(findings, key=lambda finding: -finding.gpu_seconds)
    if observed.ledger is not None:
        untimed = [f for f in findings if f.rule in UNTIMED and not f.gpu_seconds]
        timed = [f for f in findings if f.rule not in UNTIMED or f.gpu_seconds]
        settled = [*untimed, *settle(timed, lines_without_expectation(observed.ledger))]
    return Diagnosis(
        findings=tuple(settled),
        abstained=abstained,
        combined_gain=_combined(settled),
        notes=(
            *_dropped(findings, settled, given=False),
            *(f"{skipped.rule} was skipped, it needs {skipped.missing}" for skipped in abstained),
        ),
    )


def _sign(
    outcomes: Iterable[tuple[str, float, Outcome]],
) -> tuple[list[Finding], tuple[SkippedRule, ...]]:
    """Findings and skipped rules, from the outcome of each rule and its confidence."""
    findings: list[Finding] = []
    abstained: list[SkippedRule] = []
    for rule, sure, outcome in outcomes:
        for part in [outcome] if isinstance(outcome, Missing) else outcome:
            if isinstance(part, Missing):
                abstained.append(SkippedRule(rule=rule, missing=part.signal))
            else:
                findings.append(part.sign(rule, sure))
    return findings, tuple(abstained)


def make_case(
    audit: TracedJob,
    catalog: Catalog,
    observed: Sequence[SourceReport] = (),
    step_seconds: float | None = None,
) -> TraceCase:
    run, why_not = _replay(audit, catalog)
    step, not_replayed = _replayed(audit, step_seconds)
    together, alone = None, ""
    if len(audit.ranks) > 1:
        together, alone = replay_together(audit.ranks, audit.job.waits)
    return TraceCase(
        audit=audit,
        replay=run,
        why_not=why_not,
        framework=framework_of(audit.ranks),
        step=step,
        not_replayed=not_replayed,
        observed=tuple(observed),
        together=together,
        not_together=alone,
    )


def _replayed(audit: TracedJob, step_seconds: float | None) -> tuple[ReplayedStep | None, str]:
    """The step of a run on one device, where its recording is understood; else why it is not."""
    graph = audit.ranks[0].graph
    if len(audit.ranks) > 1:
        return None, "what the profiler costs several ranks is not known"
    if graph is None:
        return None, "launches, or whole steps, are not recorded"
    step = replay_step(graph, step_seconds)
    if not min(step.ends) > 0:
        return None, "its steps take no time"
    if not step.is_understood:
        return None, (
            f"the unchanged replay is {100 * step.error:+.1f} % off the recording: it is not understood"
        )
    return step, ""


def _replay(audit: TracedJob, catalog: Catalog) -> tuple[PredictedRun | None, str]:
    if not audit.ranks[0].on_device:
        return None, NO_DEVICE.signal
    if audit.accelerator is None:
        return None, "the accelerator (--on): its name is not in the catalog"
    try:
        inferred = infer(audit.ranks)
        cluster = usual_cluster(audit.accelerator.name, inferred.layout.gpus, catalog)
        return replay(audit.ranks[0], inferred, cluster), ""
    except NotInferredError as error:
        return None, str(error)
    except ComputeFlowError as error:
        return None, f"a plan (--expect): {error}"


def _lines(case: TraceCase, expected: Expected | None, *, given: bool) -> list[Gap]:
    if expected is None:
        return lines_without_expectation(case.ledger)
    if given:
        return gaps(case.ledger, expected.ledger, work_ratio=expected.ratio(case.ledger))
    return expected_lines(case, expected)


def _dropped(found: Sequence[Finding], kept: Sequence[Finding], *, given: bool) -> list[str]:
    """Notes on findings that were dropped: others account for them, or the plan expects them."""
    named = {finding.rule for finding in kept}
    why = (
        "the plan expects it, or another finding accounts for it"
        if given
        else "another finding accounts for it"
    )
    return [f"{finding.rule}: seen, but {why}" for finding in found if finding.rule not in named]


def _unexplained(case: TraceCase, settled: Sequence[Finding]) -> list[str]:
    """Notes on waiting accounts that hold much of the window without a finding."""
    if (running := _as_it_runs(case)) is not None:
        return _unexplained_as_it_runs(case, running.ledger, settled)
    total, notes = case.ledger.gpu_seconds, _unexplained_waits(case, settled)
    for name in WAITING:
        claimed = _claimed(settled, name)
        left = case.ledger.booked(name) - claimed
        if left >= _MUCH * total and claimed < left:
            notes.append(
                f"{name}: {100 * left / total:.0f} % of the window, not explained by any rule"
            )
    return notes


def _unexplained_waits(case: TraceCase, settled: Sequence[Finding]) -> list[str]:
    """Notes on waits for ranks, and on transfers, that hold much of the window without a finding."""
    if len(case.ranks) < 2:
        return []
    total, notes = case.ledger.gpu_seconds, []
    whys = {
        "straggler": _most_waited_for(case),
        "comm": "transfers that nothing hides, which no finding explains",
    }
    for name, why in whys.items():
        left = (case.ledger.booked(name) - _claimed(settled, name)) / total
        if left >= _MUCH_OF_STEP:
            notes.append(f"{name}: {100 * left:.0f} % of the window: {why}")
    return notes


def _most_waited_for(case: TraceCase) -> str:
    """The rank that waits without a finding are for, if most of them are for one."""
    most = max(case.audit.job.ranks, key=lambda rank: rank.waited_for_seconds)
    total = sum(rank.waited_for_seconds for rank in case.audit.job.ranks)
    if most.waited_for_seconds < _MOSTLY * total:
        return "ranks wait for each other, no one of them stands out"
    share = 100 * most.waited_for_seconds / (total or 1.0)
    return (
        f"{share:.0f} % of all waits are for rank {most.rank}; what no finding claims is within what "
        "steps of this recording differ by, or has no cause that the replay can remove"
    )


def _unexplained_as_it_runs(
    case: TraceCase, running: Ledger, settled: Sequence[Finding]
) -> list[str]:
    """Notes on what the findings leave of waiting accounts of the step as it runs."""
    notes = []
    for name in WAITING:
        claimed = _claimed(settled, name) / case.ledger.gpu_seconds
        latency = _latency(case) if name == "host" else 0.0
        left = (running.booked(name) - latency) / running.gpu_seconds - claimed
        if left < _MUCH_OF_STEP:
            continue
        text = f"{name}: {100 * left:.0f} % of the step as it runs"
        if claimed > 0:
            notes.append(f"{text} is left after the remedies")
        else:
            more = "; record with_stack=True to see what the host does" * (name == "host")
            notes.append(f"{text} is not explained by a finding{more}")
    return notes


def _unseen_waits(case: TraceCase, settled: Sequence[Finding]) -> list[str]:
    """A note that a wait for data may lie outside of the window, where a few steps cannot show it."""
    if case.step is None or any(finding.rule == "input-stall" for finding in settled):
        return []
    if not case.graph.has_workers or case.graph.steps > READY:
        return []
    return [
        "workers of the data loader had batches ready when the recording began: in "
        f"{format_count(case.graph.steps, 'step')} a wait for them need not show; --step-seconds with "
        "the step that you measure without a profiler tells"
    ]


def _latency(case: TraceCase) -> float:
    """GPU-seconds in `host` between kernels that were queued in time: the device's own."""
    return sum(rank.host.get("queued", 0.0) for rank in case.audit.ranks)


def _claimed(settled: Sequence[Finding], account: str) -> float:
    return sum(
        claim.gpu_seconds
        for finding in settled
        for claim in finding.claims
        if claim.account == account
    )


def _combined(findings: Sequence[Finding]) -> float | None:
    """The gain of all remedies together: claims do not overlap, so gains add up."""
    gains = [f.remedy.gain_gpu_seconds for f in findings if f.remedy and f.remedy.gain_gpu_seconds]
    return sum(gains) if gains else None
