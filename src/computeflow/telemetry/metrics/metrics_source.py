"""The source "metrics": files of samples as one `SourceReport`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from computeflow.files.limits import METRIC_DEVICES, METRIC_SERIES
from computeflow.telemetry.metrics.gpu_activity import gpu_figures, node_figures, timelines
from computeflow.telemetry.metrics.gpu_events import happenings
from computeflow.telemetry.metrics.gpu_facts import MetricsFacts
from computeflow.telemetry.metrics.lookalikes import describe_lookalike, is_counters, is_summary
from computeflow.telemetry.metrics.metrics_ledger import book
from computeflow.telemetry.metrics.prometheus_json import looks_like_answer, read_answer
from computeflow.telemetry.metrics.prometheus_text import read_prometheus_text
from computeflow.telemetry.metrics.samples import SampledFleet
from computeflow.telemetry.metrics.superbench import looks_like_monitor, read_monitor
from computeflow.telemetry.opening import head_of
from computeflow.telemetry.source_reports import SourceReport, SourceRequest

KIND = "metrics"
_TYPE = re.compile(
    rb"^# TYPE \S+ (gauge|counter|untyped|unknown|summary|histogram|info|stateset|gaugehistogram)\s*$",
    re.M,
)
_SAMPLE = re.compile(rb"^(DCGM_(FI|EXP)_\w+|(amd_)?gpu_\w+|node_\w+)\{[^\n]*\} [-+.0-9eENn]+", re.M)
_MAX_NAMED = 8


class MetricsSource:
    kind = KIND

    def recognises(self, path: Path, head: bytes) -> bool:
        return (
            looks_like_monitor(head)
            or looks_like_answer(head)
            or is_counters(head)
            or is_summary(head)
            or _is_text(head)
        )

    def observe(self, paths: Sequence[Path], request: SourceRequest) -> list[SourceReport]:
        fleet = new_fleet(request)
        left_out: list[str] = []
        for path in paths:
            head = head_of(path)
            if looks_like_monitor(head):
                left_out += read_monitor(path, fleet)
            elif looks_like_answer(head):
                left_out += read_answer(path, fleet)
            elif _is_text(head) or not (is_counters(head) or is_summary(head)):
                left_out += read_prometheus_text(path, fleet)
            else:
                left_out.append(describe_lookalike(path, head))
        return [observe_metrics(fleet, [str(path) for path in paths], request, left_out=left_out)]


def _is_text(head: bytes) -> bool:
    return bool(_TYPE.search(head) or _SAMPLE.search(head))


def new_fleet(request: SourceRequest) -> SampledFleet:
    return SampledFleet(
        start=float("-inf") if request.start is None else request.start,
        end=float("inf") if request.end is None else request.end,
    )


def observe_metrics(
    fleet: SampledFleet,
    sources: Sequence[str],
    request: SourceRequest,
    *,
    left_out: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> SourceReport:
    """The report on a filled fleet."""
    lines = timelines(fleet)
    by_device = {id(line.device): line for line in lines}
    ledger, reason = book(lines) if fleet.gpus else (None, "no samples of GPUs")
    happened, more_left_out = happenings(fleet, lines)
    times = [(line.times[0], line.times[-1]) for line in lines if line.timed]
    steps = [line.step for line in lines if line.timed]
    gpus = sorted(
        (
            gpu_figures(fleet, device, by_device.get(id(device)), request.catalog)
            for device in fleet.gpus.values()
        ),
        key=lambda figures: (figures.node, len(figures.gpu), figures.gpu, figures.uuid),
    )
    return SourceReport(
        kind=KIND,
        sources=tuple(sources),
        facts=MetricsFacts(
            start=float(min(first for first, _ in times)) if times else None,
            end=float(max(last for _, last in times)) if times else None,
            step_seconds=float(np.median(steps)) if steps else None,
            samples=fleet.samples,
            gpus=tuple(gpus),
            nodes=node_figures(fleet),
        ),
        ledger=ledger,
        ledger_reason=reason,
        happenings=tuple(happened),
        left_out=(*left_out, *_left_out(fleet), *more_left_out),
        notes=tuple(notes),
    )


def _left_out(fleet: SampledFleet) -> list[str]:
    words = []
    if fleet.outside:
        words.append(f"{fleet.outside:,} samples outside the requested times")
    if fleet.series_beyond:
        words.append(
            f"{fleet.series_beyond:,} series beyond the limits: at most {METRIC_DEVICES:,} GPUs and "
            f"nodes, and {METRIC_SERIES:,} series, are read"
        )
    if fleet.samples_beyond:
        words.append(f"{fleet.samples_beyond:,} samples beyond the limits")
    if fleet.partitions:
        words.append(f"{fleet.partitions:,} series of MIG instances, which are parts of GPUs")
    if fleet.blanks:
        names = ", ".join(f"{name} ({count:,})" for name, count in fleet.blanks.most_common(8))
        words.append(f"values that mean not supported or not found: {names}")
    if fleet.others:
        names = ", ".join(sorted(fleet.others)[:_MAX_NAMED])
        more = len(fleet.others) - _MAX_NAMED
        words.append(
            f"metrics that are not read: {names}"
            + (f" and {'at least ' * fleet.more_others}{more:,} more" if more > 0 else "")
        )
    return words
