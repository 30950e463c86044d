"""`audit`: recordings read, compared, diagnosed and priced into one `AuditReport`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath

from computeflow.auditing.audit_request import AuditRequest
from computeflow.auditing.baselines import compare_baseline, read_baseline
from computeflow.auditing.recordings import (
    Recordings,
    Say,
    compare_recordings,
    read_recordings,
)
from computeflow.diagnosis import Diagnosis, Expected, diagnose
from computeflow.diagnosis.regression import regressions
from computeflow.economics import GpuPrice, GridEnergy, energy_of, find_price
from computeflow.errors import InputError
from computeflow.files.parsing import parse_json
from computeflow.files.reading import read_text
from computeflow.ledger import Gap, Ledger, gaps, ledger_from_data
from computeflow.replay.replayed_step import UNDERSTOOD
from computeflow.telemetry.accounting.fault_attribution import FaultAttribution, attribute_faults
from computeflow.telemetry.traces.job_ledgers import TracedJob
from computeflow.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditComparison:
    """Gaps of the recording against something else, line by line."""

    lines: tuple[Gap, ...]
    at: str
    """What is equal in the comparison: tokens, steps, FLOPs, ..."""
    source: str
    earlier: bool
    """It is against an earlier recording of the job: growth is a regression."""
    other: Recordings | None = None

    @property
    def name(self) -> str:
        """The source without its folders."""
        return PurePath(self.source).name or self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    request: AuditRequest
    recordings: Recordings
    diagnosis: Diagnosis | None
    """The findings in the traces; None without traces."""
    compared: AuditComparison | None = None
    baseline_note: str = ""
    price: GpuPrice | None = None
    energy: GridEnergy | None = None
    blame: FaultAttribution | None = None
    """Failed jobs attributed to faults of their nodes, where both are known."""

    @property
    def traces(self) -> TracedJob | None:
        return self.recordings.traces

    @property
    def shown_ledger(self) -> Ledger | None:
        """The first ledger; of the steps as they run, where that is known."""
        if self.diagnosis is not None and self.diagnosis.as_it_runs is not None:
            return self.diagnosis.as_it_runs.ledger
        return self.recordings.ledgers[0] if self.recordings.ledgers else None

    @property
    def files(self) -> tuple[Path, ...]:
        """All files read, also those inside named folders."""
        other = (
            () if self.compared is None or self.compared.other is None else (self.compared.other,)
        )
        read: tuple[Recordings, ...] = (self.recordings, *other)
        return tuple(path for some in read for path in some.files)

    @property
    def hangs(self) -> bool:
        """Whether dumps show that the job hangs, whichever rank is to blame."""
        return any(
            finding.rule == "hang"
            for diagnosis in self.recordings.diagnoses
            for finding in diagnosis.findings
        )

    @property
    def claimed_share(self) -> float:
        """The largest share of a ledger that its steady findings claim together."""
        pairs = zip(self.recordings.observed, self.recordings.diagnoses, strict=True)
        parts = [(each.ledger, diagnosis) for each, diagnosis in pairs]
        if self.traces is not None and self.diagnosis is not None:
            parts.append((self.traces.job.ledger, self.diagnosis))
        return max(
            (_claimed(ledger, diagnosis) for ledger, diagnosis in parts if ledger), default=0.0
        )


def _claimed(ledger: Ledger, diagnosis: Diagnosis) -> float:
    return (
        sum(finding.gpu_seconds for finding in diagnosis.findings if finding.steady)
        / ledger.gpu_seconds
    )


def audit(request: AuditRequest, say: Say | None = None) -> AuditReport:
    recordings = read_recordings(request, request.paths, say)
    expected = None if request.expect is None else read_expected(request.expect)
    compared, note = _compare(request, recordings, expected, say)
    grid = request.grid
    return AuditReport(
        request=request,
        recordings=recordings,
        diagnosis=_diagnose(request, recordings, expected, compared),
        compared=compared,
        baseline_note=note,
        price=_price(request, recordings),
        energy=None if grid is None else energy_of(_joules(recordings), grid),
        blame=_blame(recordings),
    )


def read_expected(path: Path) -> Ledger:
    """The ledger in a file: its own, that of `predict -o json`, or the first of `plan -o json`."""
    data = parse_json(read_text(path), str(path))
    if isinstance(data, dict) and isinstance(data.get("plans"), list) and data["plans"]:
        data = data["plans"][0]
    if isinstance(data, dict) and isinstance(data.get("ledger"), dict):
        data = data["ledger"]
    return ledger_from_data(data, str(path))


def _compare(
    request: AuditRequest, recordings: Recordings, expected: Ledger | None, say: Say | None
) -> tuple[AuditComparison | None, str]:
    """The comparison with a plan, an earlier recording or the baseline; and a note on the baseline."""
    if expected is not None:
        return _compare_expected(request, recordings.ledger, expected), ""
    if request.against is not None:
        other = read_recordings(request, (request.against,), say)
        lines, at = compare_recordings(request, recordings, other)
        return AuditComparison(
            lines=tuple(lines), at=at, source=request.against, earlier=True, other=other
        ), ""
    if request.baseline is not None and recordings.traces is not None:
        return _compare_kept(request, request.baseline, recordings.traces)
    return None, ""


def _compare_expected(request: AuditRequest, measured: Ledger, expected: Ledger) -> AuditComparison:
    ratio = request.work_ratio
    if ratio is None and None in (measured.mfu, expected.mfu):
        raise InputError(
            "--expect compares at equal work, and model FLOPs are not known of both: state them with "
            "--model, --global-batch, --seq-len and --on, or give --work-ratio"
        )
    return AuditComparison(
        lines=tuple(gaps(measured, expected, work_ratio=ratio)),
        at="equal model FLOPs" if ratio is None else f"a work ratio of {ratio:g}",
        source=str(request.expect),
        earlier=False,
    )


def _compare_kept(
    request: AuditRequest, name: str, traces: TracedJob
) -> tuple[AuditComparison | None, str]:
    try:
        kept = read_baseline(name)
    except InputError:
        if not request.keep:
            raise
        return None, f"baseline {name}: what was kept could not be read, and is replaced"
    if kept is None:
        return None, f"baseline {name}: there was none, this recording is it now"
    lines, at = compare_baseline(request, traces, kept)
    compared = AuditComparison(
        lines=tuple(lines), at=at, source=f"the baseline {name}", earlier=True
    )
    return compared, f"baseline {name}: compared" + (
        ", and replaced by this recording" * request.keep
    )


def _diagnose(
    request: AuditRequest,
    recordings: Recordings,
    expected: Ledger | None,
    compared: AuditComparison | None,
) -> Diagnosis | None:
    """Findings in the traces, with regressions against an earlier recording."""
    traces = recordings.traces
    if traces is None:
        return None
    plan = None
    if expected is not None:
        ratio = request.work_ratio
        plan = Expected(ledger=expected, source=str(request.expect), work_ratio=ratio)
    earlier = compared is not None and compared.earlier
    judge = partial(
        diagnose,
        traces,
        request.catalog,
        expected=plan,
        observed=recordings.observed,
        compared=earlier,
    )
    found = judge(step_seconds=request.step_seconds)
    if not request.trace.replay:
        found = replace(found, not_replayed="--no-replay was given")
    unused = _unused_step(request.step_seconds, found, traces)
    if unused:
        found = found if found.as_it_runs is None else judge()
        found = replace(found, notes=(*found.notes, unused))
    if compared is None or not compared.earlier:
        return found
    grown = regressions(traces.job.ledger, compared.lines, found.findings, compared.source)
    findings = sorted((*found.findings, *grown), key=lambda finding: -finding.gpu_seconds)
    gain = (found.combined_gain or 0.0) + sum(finding.gpu_seconds for finding in grown)
    return replace(found, findings=tuple(findings), combined_gain=gain or None)


def _unused_step(measured: float | None, found: Diagnosis, traces: TracedJob) -> str:
    """Why the user's own step time is not used: the recorded step cannot take it; "" where it can."""
    step = found.as_it_runs
    if measured is None or (step and abs(step.step_seconds / measured - 1) <= UNDERSTOOD):
        return ""
    if step is None:
        reason = found.not_replayed
    elif measured < step.step_seconds:
        least = format_seconds(step.step_seconds)
        reason = f"the recorded step takes at least {least} without the profiler"
    elif (graph := traces.ranks[0].graph) is not None and graph.has_workers:
        beyond = format_seconds(measured - step.step_seconds)
        reason = (
            f"at least {beyond} of it lie outside of the window, in waits for data that its steps do "
            "not show; record more of them"
        )
    else:
        most = format_seconds(step.step_seconds_profiled)
        reason = (
            f"the recorded step takes {most} even with the profiler: the value is in seconds, or the "
            "run was slower then"
        )
    return f"--step-seconds {measured:g} is not used: {reason}"


def _price(request: AuditRequest, recordings: Recordings) -> GpuPrice | None:
    if request.price is None:
        return None
    known = recordings.traces.accelerator if recordings.traces is not None else None
    device = known or request.accelerator
    return find_price(request.price, request.catalog, None if device is None else device.name)


def _joules(recordings: Recordings) -> float | None:
    """Energy of the devices where a ledger has it, without the facility's overhead."""
    known = [ledger.joules for ledger in recordings.ledgers if ledger.joules]
    return sum(known) if known else None


def _blame(recordings: Recordings) -> FaultAttribution | None:
    accounts = [each for each in recordings.observed if each.kind == "accounting"]
    others = [each for each in recordings.observed if each.kind != "accounting"]
    jobs = [job for each in accounts for job in each.facts.failed]
    faults = [happening for each in others for happening in each.happenings]
    return attribute_faults(jobs, faults) if jobs and faults else None
