"""The recordings of an audit: `read_recordings` sorts files and addresses to their sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from computeflow.auditing.audit_request import AuditRequest
from computeflow.auditing.equal_work import WorkDone, compare_ledgers, work_of_log, work_of_traces
from computeflow.diagnosis import Diagnosis, diagnose_source
from computeflow.errors import InputError
from computeflow.ledger import Gap, Ledger
from computeflow.telemetry.correlation import CorrelatedEvents, correlate
from computeflow.telemetry.fleet import join_fleet, why_not_joined
from computeflow.telemetry.source_registry import observe, sort_files
from computeflow.telemetry.source_reports import SourceReport
from computeflow.telemetry.trace_audit import TraceSettings, audit_files
from computeflow.telemetry.traces.job_ledgers import TracedJob

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """Everything read for one audit, or for one side of a comparison."""

    traces: TracedJob | None
    observed: tuple[SourceReport, ...]
    """Reports of sources other than traces; a fleet that some of them make up comes first."""
    diagnoses: tuple[Diagnosis, ...]
    """One diagnosis for each of these."""
    left_out: tuple[str, ...]
    joined: tuple[bool, ...] = ()
    """Whether each report is part of a fleet, which has its findings and its ledger."""
    apart: tuple[str, ...] = ()
    """Sources that could belong to the accounting's fleet and do not, and why."""

    @property
    def files(self) -> list[Path]:
        ranks = () if self.traces is None else self.traces.ranks
        others = dict.fromkeys(path for each in self.observed for path in each.sources)
        return [Path(path) for path in (*(rank.source for rank in ranks), *others)]

    @property
    def ledgers(self) -> list[Ledger]:
        """Traces first, then the sources in their order; parts of a fleet are in its ledger."""
        traced = [] if self.traces is None else [self.traces.job.ledger]
        return traced + [
            each.ledger
            for each, joined in zip_longest(self.observed, self.joined)
            if each.ledger is not None and not joined
        ]

    @property
    def ledger(self) -> Ledger:
        if not self.ledgers:
            reasons = "; ".join(each.ledger_reason for each in self.observed)
            raise InputError(f"no ledger to compare: {reasons}")
        return self.ledgers[0]

    def work(self, request: AuditRequest) -> WorkDone:
        """The useful work behind the ledger."""
        if self.traces is not None:
            return work_of_traces(self.traces, request)
        booked = [each for each in self.observed if each.ledger is not None]
        return work_of_log(booked[0], request) if booked else WorkDone()

    @property
    def correlated(self) -> list[CorrelatedEvents]:
        return correlate(self.observed)


def read_recordings(
    request: AuditRequest, paths: Sequence[str], say: Say | None = None
) -> Recordings:
    addresses = [path for path in paths if path.startswith(("http://", "https://"))]
    files = [Path(path) for path in paths if path not in addresses]
    found = sort_files(files) if files else None
    kinds = {*(found.files if found else ()), *(["metrics"] if addresses else [])}
    request.refuse_unused(kinds | {file.kind for file in (found.traces if found else ())})
    observed, failed = observe(found.files if found else {}, addresses, request.asked)
    left_out = [*(found.left_out if found else ()), *failed]
    traces = None
    if found and found.traces:
        traces = audit_files(found.traces, request.catalog, _settings(request, say), left_out)
        left_out = []
    elif not observed:
        raise InputError("; ".join(left_out))
    observed, joined, apart = _with_fleet(observed)
    diagnoses = [
        Diagnosis(findings=(), abstained=()) if ours else diagnose_source(each)
        for each, ours in zip(observed, joined, strict=True)
    ]
    noted = [
        replace(each, notes=(*each.notes, *found.notes))
        for each, found in zip(observed, diagnoses, strict=True)
    ]
    return Recordings(
        traces=traces,
        observed=tuple(noted),
        diagnoses=tuple(diagnoses),
        left_out=tuple(left_out),
        joined=joined,
        apart=apart,
    )


def _with_fleet(
    observed: list[SourceReport],
) -> tuple[list[SourceReport], tuple[bool, ...], tuple[str, ...]]:
    """The reports, before them the fleet that some make up; which those are; which are apart."""
    fleet = join_fleet(observed)
    if fleet is None:
        return observed, (False,) * len(observed), why_not_joined(observed)
    return [fleet.report, *observed], (False, *fleet.joined), fleet.report.facts.apart


def _settings(request: AuditRequest, say: Say | None) -> TraceSettings:
    return TraceSettings(
        options=request.trace,
        engine=request.engine,
        work=request.work,
        cache=request.cache,
        accelerator=request.accelerator,
        progress=None if say is None else lambda done, of: say(f"{done:,} of {of:,} traces read"),
    )


def compare_recordings(
    request: AuditRequest, one: Recordings, other: Recordings
) -> tuple[list[Gap], str]:
    """Gaps line by line, and what is equal on both sides."""
    return compare_ledgers(one.ledger, one.work(request), other.ledger, other.work(request))
