"""An audit as the JSON of `audit -o json`: `report_data`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from computeflow import codec
from computeflow.auditing.audit_report import AuditReport
from computeflow.auditing.recordings import Recordings
from computeflow.diagnosis import Diagnosis
from computeflow.economics import finding_usd_per_hour, usd_of
from computeflow.ledger import Finding, Ledger, ledger_to_data
from computeflow.telemetry.source_reports import SourceReport
from computeflow.telemetry.traces.job_ledgers import TracedJob
from computeflow.telemetry.traces.rank_measurements import RankMeasurement

SCHEMA = "computeflow.audit/1"


def report_data(report: AuditReport) -> dict[str, Any]:
    data = _recordings_data(report.recordings)
    compared, traces = report.compared, report.traces
    if compared is not None:
        data["basis"] = compared.at
        data["gaps"] = [codec.encode(line) for line in compared.lines]
        if compared.other is not None:
            data["against"] = _recordings_data(compared.other)
    if report.baseline_note:
        data["notes"].append(report.baseline_note)
    if report.blame is not None:
        data["blame"] = codec.encode(report.blame)
    if traces is not None and report.diagnosis is not None:
        data |= _diagnosis_data(report.diagnosis, traces) | {"price": None}
    data |= _replay_data(report.diagnosis)
    if report.price is not None:
        data["price"] = codec.encode(report.price)
    data["findings"] = _findings(report)
    data["abstained"] = [
        codec.encode(rule)
        for found in (report.diagnosis, *report.recordings.diagnoses)
        if found is not None
        for rule in found.abstained
    ]
    if report.energy is not None:
        data["energy"] = codec.encode(report.energy)
    return data


def _recordings_data(recordings: Recordings) -> dict[str, Any]:
    """The recordings alone, without findings and comparison."""
    traces = recordings.traces
    data = _sources_data(recordings) if traces is None else _traces_data(traces)
    data["observed"] = [*map(_source_data, recordings.observed, recordings.diagnoses)]
    data["together"] = [codec.encode(each) for each in recordings.correlated]
    return data


def _source_data(observed: SourceReport, found: Diagnosis) -> dict[str, Any]:
    data: dict[str, Any] = codec.encode(replace(observed, columns=None))
    del data["columns"]
    if observed.kind == "metrics":
        data["facts"]["abstained"] = codec.encode(found.abstained)
    return data | {"findings": codec.encode(found.findings)}


def _traces_data(traces: TracedJob) -> dict[str, Any]:
    job = traces.job
    return {
        "schema": SCHEMA,
        "window": codec.encode(job.ledger.window),
        "ledger": ledger_to_data(job.ledger),
        "per_rank": [
            {
                "rank": part.rank,
                "source": part.source,
                "ledger": ledger_to_data(part.ledger),
                "came_last": part.came_last,
                "waited_for_seconds": part.waited_for_seconds,
                "clock_offset_seconds": offset,
                **_rank_data(rank),
            }
            for part, rank, offset in zip(
                job.ranks, traces.ranks, job.clock_offsets_seconds, strict=True
            )
        ],
        "clock_spread_seconds": job.clock_spread_seconds,
        "shared_collectives": job.shared_collectives,
        "counters": [codec.encode(row) for row in traces.counters],
        "findings": [],
        "abstained": [],
        "sources": [
            {
                "path": rank.source,
                "kind": rank.origin.kind,
                "rank": rank.rank,
                "rank_from": rank.rank_from,
                "events": rank.events,
            }
            for rank in traces.ranks
        ],
        "left_out": list(traces.left_out),
        "notes": [*traces.notes, *job.notes],
    }


def _sources_data(recordings: Recordings) -> dict[str, Any]:
    """JSON without traces: the ledger is that of the first source that has one."""
    observed = recordings.observed
    ledger = recordings.ledgers[0] if recordings.ledgers else None
    reasons = "; ".join(each.ledger_reason for each in observed)
    return {
        "schema": SCHEMA,
        "window": None if ledger is None else codec.encode(ledger.window),
        "ledger": None if ledger is None else ledger_to_data(ledger),
        "ledger_reason": "" if ledger else reasons,
        "per_rank": [],
        "findings": [],
        "abstained": [],
        "sources": [
            {"path": path, "kind": each.kind} for each in observed for path in each.sources
        ],
        "left_out": [*recordings.left_out, *(text for each in observed for text in each.left_out)],
        "notes": [note for each in observed for note in each.notes],
    }


def _diagnosis_data(found: Diagnosis, traces: TracedJob) -> dict[str, Any]:
    expected, gain = found.expected, found.combined_gain
    step = found.step_seconds(traces.step_seconds)
    return {
        "expected": None
        if expected is None
        else {
            "source": expected.source,
            "assumed": list(expected.assumed),
            "ledger": ledger_to_data(expected.ledger),
        },
        "expected_reason": found.expected_reason,
        "combined_gain_gpu_seconds": gain,
        "combined_gain_seconds_per_step": None
        if gain is None or step is None
        else gain / traces.job.ledger.gpu_seconds * step,
        "diagnosis_notes": list(found.notes),
    }


def _replay_data(found: Diagnosis | None) -> dict[str, Any]:
    """The step without its profiler; null, with the reason, where it is not known."""
    step = None if found is None else found.as_it_runs
    if step is None:
        return {
            "step_seconds_recorded": None,
            "step_seconds_profiled": None,
            "step_seconds_unprofiled": None,
            "step_seconds_unprofiled_range": None,
            "ledger_unprofiled": None,
            "not_replayed": "there is no trace" if found is None else found.not_replayed,
        }
    data: dict[str, Any] = codec.encode(
        {
            "step_seconds_recorded": step.step_seconds_recorded,
            "step_seconds_profiled": step.step_seconds_profiled,
            "step_seconds_unprofiled": step.step_seconds,
            "step_seconds_unprofiled_range": [step.step_seconds_low, step.step_seconds_high],
            "ledger_unprofiled": ledger_to_data(step.ledger),
            "not_replayed": "",
        }
    )
    return data


def _findings(report: AuditReport) -> list[dict[str, Any]]:
    """The findings of all sources: a hang first, then the most expensive."""
    usd = None if report.price is None else report.price.usd
    traces, diagnosis = report.traces, report.diagnosis
    rows = []
    if traces is not None and diagnosis is not None:
        kind = traces.kind
        ledger = traces.job.ledger
        step = diagnosis.step_seconds(traces.step_seconds)
        rows += [_finding_data(finding, ledger, kind, usd, step) for finding in diagnosis.findings]
    for each, found in zip(report.recordings.observed, report.recordings.diagnoses, strict=True):
        rows += [_finding_data(finding, each.ledger, each.kind, usd) for finding in found.findings]
    return sorted(rows, key=lambda row: (row["rule"] != "hang", -row["gpu_seconds"]))


def _finding_data(
    finding: Finding,
    ledger: Ledger | None,
    kind: str,
    usd_per_gpu_hour: float | None,
    step_seconds: float | None = None,
) -> dict[str, Any]:
    """`kind`: the kind of source of the finding; `step_seconds`: the step that gains are shares of."""
    share = None if ledger is None else finding.gpu_seconds / ledger.gpu_seconds
    joules = None if ledger is None or ledger.joules is None else ledger.joules * (share or 0.0)
    return {
        **codec.encode(finding),
        "gpu_seconds": finding.gpu_seconds,
        "share": share,
        **_gains(finding, ledger, step_seconds),
        "usd_per_hour": finding_usd_per_hour(finding, ledger, usd_per_gpu_hour),
        "usd": None if usd_per_gpu_hour is None else usd_of(finding.gpu_seconds, usd_per_gpu_hour),
        "joules": joules,
        "source": kind,
    }


def _gains(
    finding: Finding, ledger: Ledger | None, step_seconds: float | None
) -> dict[str, float | None]:
    """The gain of the remedy as shares of the window and as seconds of a step."""
    remedy = finding.remedy
    ends = {
        "": None if remedy is None else remedy.gain_gpu_seconds,
        "_low": None if remedy is None else remedy.gain_low,
        "_high": None if remedy is None else remedy.gain_high,
    }
    shares = {
        end: None if ledger is None or gain is None else float(gain / ledger.gpu_seconds)
        for end, gain in ends.items()
    }
    return {f"gain_share{end}": share for end, share in shares.items()} | {
        f"gain_seconds_per_step{end}": None
        if share is None or step_seconds is None
        else share * step_seconds
        for end, share in shares.items()
    }


def _rank_data(rank: RankMeasurement) -> dict[str, Any]:
    memory_bound = None
    if rank.flops and rank.kernel_seconds:
        memory_bound = 1 - rank.product_seconds / rank.kernel_seconds
    return {
        "device": rank.device,
        "steps": [
            {
                "step": number,
                "seconds": rank.step_seconds[index],
                "accounts": {name: values[index] for name, values in rank.by_step.items()},
            }
            for index, number in enumerate(rank.steps)
        ],
        "host": rank.host,
        "flops": rank.flops,
        "kernels": [codec.encode(row) for row in rank.kernels],
        "operators": [codec.encode(row) for row in rank.operators],
        "gaps": [codec.encode(row) for row in rank.gaps],
        "queue": {"mean": rank.queue_mean, "most": rank.queue_most, "empty": rank.queue_empty},
        "memory_bound_share": memory_bound,
        "hta": None if rank.hta is None else codec.encode(rank.hta),
        "activity": codec.encode(rank.activity),
        "origin": codec.encode(rank.origin),
    }
