"""Findings with remedies: `diagnose` for traces, `diagnose_source` for every other source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from computeflow.catalog import Catalog
from computeflow.cluster.machine import usual_cluster
from computeflow.diagnosis.diagnosis import Diagnosis, Expected, SkippedRule
from computeflow.diagnosis.expectation import derive, expected_lines
from computeflow.diagnosis.figures import confidence
from computeflow.diagnosis.model_from_shapes import NotInferredError, infer
from computeflow.diagnosis.predicted_gains import PredictedRun, replay
from computeflow.diagnosis.remedies import framework_of
from computeflow.diagnosis.rule import NO_DEVICE, Missing, Outcome
from computeflow.diagnosis.rules import RULES
from computeflow.diagnosis.settle import lines_without_expectation, settle
from computeflow.diagnosis.trace_case import TraceCase
from computeflow.errors import ComputeFlowError
from computeflow.ledger import Finding, Gap, gaps
from computeflow.telemetry.source_reports import SourceReport
from computeflow.telemetry.traces.job_ledgers import TracedJob

_MUCH = 0.1
"""Share of the window from which unexplained waiting is noted."""
WAITING = ("host", "input", "checkpoint", "copy", "unexplained")


def diagnose(
    audit: TracedJob,
    catalog: Catalog,
    *,
    expected: Expected | None = None,
    observed: Sequence[SourceReport] = (),
) -> Diagnosis:
    """Findings in traces. `expected`: of a plan; else derived where the predictor knows the job."""
    case = make_case(audit, catalog, observed)
    findings, abstained = _sign(
        (rule.id, confidence(rule.id), rule.trace(case)) for rule in RULES if rule.trace
    )
    against = expected
    if against is None and case.replay is not None:
        against = derive(case)
    lines = _lines(case, against, given=expected is not None)
    settled = settle(findings, lines)
    notes = _dropped(findings, settled, given=expected is not None)
    notes += _unexplained(case, settled)
    if expected is not None and expected.ledger.gpus != case.ledger.gpus:
        notes.append(
            f"{expected.source} is for {expected.ledger.gpus} GPUs, this recording has "
            f"{case.ledger.gpus}"
        )
    return Diagnosis(
        findings=tuple(settled),
        abstained=abstained,
        expected=against,
        expected_reason="" if against else case.why_not,
        gaps=tuple(lines) if against else (),
        combined_gain=_combined(settled),
        notes=tuple(notes),
    )


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
        settled = settle(findings, lines_without_expectation(observed.ledger))
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
    audit: TracedJob, catalog: Catalog, observed: Sequence[SourceReport] = ()
) -> TraceCase:
    run, why_not = _replay(audit, catalog)
    return TraceCase(
        audit=audit,
        replay=run,
        why_not=why_not,
        framework=framework_of(audit.ranks),
        observed=tuple(observed),
    )


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
        return gaps(case.ledger, expected.ledger)
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
    total, notes = case.ledger.gpu_seconds, []
    for name in WAITING:
        claimed = sum(
            claim.gpu_seconds
            for finding in settled
            for claim in finding.claims
            if claim.account == name
        )
        left = case.ledger.booked(name) - claimed
        if left >= _MUCH * total and claimed < left:
            notes.append(
                f"{name}: {100 * left / total:.0f} % of the window, not explained by any rule"
            )
    return notes


def _combined(findings: Sequence[Finding]) -> float | None:
    """The gain of all remedies together: claims do not overlap, so gains add up."""
    gains = [f.remedy.gain_gpu_seconds for f in findings if f.remedy and f.remedy.gain_gpu_seconds]
    return sum(gains) if gains else None
