"""The kind "metrics": files of samples to one `Observed`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from computeflow.telemetry.metrics.answers import looks_like_answer, read_answer
from computeflow.telemetry.metrics.book import book
from computeflow.telemetry.metrics.facts import MetricsFacts
from computeflow.telemetry.metrics.happenings import happenings
from computeflow.telemetry.metrics.measure import gpu_figures, node_figures, timelines
from computeflow.telemetry.metrics.monitor import looks_like_monitor, read_monitor
from computeflow.telemetry.metrics.others import is_counters, is_summary, named
from computeflow.telemetry.metrics.samples import Fleet
from computeflow.telemetry.metrics.text import read_text
from computeflow.telemetry.observed import Asked, Observed
from computeflow.telemetry.opening import head_of

KIND = "metrics"
_TYPE = re.compile(
    rb"^# TYPE \S+ (gauge|counter|untyped|unknown|summary|histogram|info|stateset|gaugehistogram)\s*$",
    re.M,
)
_SAMPLE = re.compile(rb"^(DCGM_(FI|EXP)_\w+|(amd_)?gpu_\w+|node_\w+)\{[^\n]*\} [-+.0-9eENn]+", re.M)
_MOST_NAMED = 8


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

    def observe(self, paths: Sequence[Path], asked: Asked) -> list[Observed]:
        fleet = new_fleet(asked)
        left_out: list[str] = []
        for path in paths:
            head = head_of(path)
            if looks_like_monitor(head):
                left_out += read_monitor(path, fleet)
            elif looks_like_answer(head):
                left_out += read_answer(path, fleet)
            elif _is_text(head) or not (is_counters(head) or is_summary(head)):
                left_out += read_text(path, fleet)
            else:
                left_out.append(named(path, head))
        return [observed(fleet, [str(path) for path in paths], asked, left_out=left_out)]


def _is_text(head: bytes) -> bool:
    return bool(_TYPE.search(head) or _SAMPLE.search(head))


def new_fleet(asked: Asked) -> Fleet:
    return Fleet(
        start=float("-inf") if asked.start is None else asked.start,
        end=float("inf") if asked.end is None else asked.end,
    )


def observed(
    fleet: Fleet,
    sources: Sequence[str],
    asked: Asked,
    *,
    left_out: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Observed:
    """What a filled fleet says."""
    lines = timelines(fleet)
    by_device = {id(line.device): line for line in lines}
    ledger, reason = book(lines) if fleet.gpus else (None, "no samples of GPUs")
    happened, more_left_out = happenings(fleet, lines)
    times = [(line.times[0], line.times[-1]) for line in lines if line.timed]
    steps = [line.step for line in lines if line.timed]
    gpus = sorted(
        (
            gpu_figures(fleet, device, by_device.get(id(device)), asked.catalog)
            for device in fleet.gpus.values()
        ),
        key=lambda one: (one.node, len(one.gpu), one.gpu, one.uuid),
    )
    return Observed(
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


def _left_out(fleet: Fleet) -> list[str]:
    words = []
    if fleet.outside:
        words.append(f"{fleet.outside:,} samples outside the times asked for")
    if fleet.beyond:
        words.append(f"{fleet.beyond:,} samples or series beyond what is kept")
    if fleet.partitions:
        words.append(f"{fleet.partitions:,} series of MIG instances, which are parts of GPUs")
    if fleet.blanks:
        names = ", ".join(f"{name} ({count:,})" for name, count in fleet.blanks.most_common(8))
        words.append(f"values that mean not supported or not found: {names}")
    if fleet.others:
        names = ", ".join(sorted(fleet.others)[:_MOST_NAMED])
        more = len(fleet.others) - _MOST_NAMED
        words.append(
            f"metrics that are not read: {names}"
            + (f" and {'at least ' * fleet.more_others}{more:,} more" if more > 0 else "")
        )
    return words
