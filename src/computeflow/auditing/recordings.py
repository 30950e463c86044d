"""What an audit is given, read: `read_recordings` sorts files and addresses to their sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from computeflow.auditing.request import AuditRequest
from computeflow.diagnosis import Diagnosis, diagnose_source
from computeflow.errors import InputError
from computeflow.ledger import Gap, Ledger, gaps
from computeflow.telemetry.audit import Settings, audit_files
from computeflow.telemetry.joining import Together, together
from computeflow.telemetry.observed import Observed
from computeflow.telemetry.registry import observe, sort_files
from computeflow.telemetry.traces.job import TracedJob

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """All that was read in one go."""

    traces: TracedJob | None
    observed: tuple[Observed, ...]
    """What sources other than traces say."""
    diagnoses: tuple[Diagnosis, ...]
    """What the rules say of each of these."""
    left_out: tuple[str, ...]

    @property
    def files(self) -> list[Path]:
        ranks = () if self.traces is None else self.traces.ranks
        others = [path for each in self.observed for path in each.sources]
        return [Path(path) for path in (*(rank.source for rank in ranks), *others)]

    @property
    def ledgers(self) -> list[Ledger]:
        """Traces first, then the sources in their order."""
        traced = [] if self.traces is None else [self.traces.job.ledger]
        return traced + [each.ledger for each in self.observed if each.ledger is not None]

    @property
    def ledger(self) -> Ledger:
        if not self.ledgers:
            reasons = "; ".join(each.ledger_reason for each in self.observed)
            raise InputError(f"no ledger to compare: {reasons}")
        return self.ledgers[0]

    @property
    def correlated(self) -> list[Together]:
        return together(self.observed)


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
    diagnoses = [diagnose_source(each) for each in observed]
    noted = [
        replace(each, notes=(*each.notes, *found.notes))
        for each, found in zip(observed, diagnoses, strict=True)
    ]
    return Recordings(
        traces=traces, observed=tuple(noted), diagnoses=tuple(diagnoses), left_out=tuple(left_out)
    )


def _settings(request: AuditRequest, say: Say | None) -> Settings:
    return Settings(
        options=request.trace,
        engine=request.engine,
        work=request.work,
        cache=request.cache,
        accelerator=request.accelerator,
        progress=None if say is None else lambda done, of: say(f"{done:,} of {of:,} traces read"),
    )


def steps_done(traces: TracedJob) -> int:
    """Steps of all ranks together."""
    return sum(max(len(rank.steps), 1) for rank in traces.ranks)


def compare_recordings(one: Recordings, other: Recordings) -> tuple[list[Gap], str]:
    """Line by line at equal model FLOPs, at equal FLOPs of the shapes, or at equal steps."""
    first, second = one.ledger, other.ledger
    if first.mfu is not None and second.mfu is not None:
        return gaps(first, second), "equal model FLOPs"
    if one.traces is None or other.traces is None:
        ratio = first.gpu_seconds / second.gpu_seconds
        return gaps(first, second, work_ratio=ratio), "equal GPU-seconds"
    counted = [sum(rank.flops for rank in traces.ranks) for traces in (one.traces, other.traces)]
    if all(counted):
        return gaps(first, second, work_ratio=counted[0] / counted[1]), "equal FLOPs"
    ratio = steps_done(one.traces) / steps_done(other.traces)
    return gaps(first, second, work_ratio=ratio), "equal steps"
