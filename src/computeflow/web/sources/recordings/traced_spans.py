"""`traced_spans`: one step of a profiler's traces along time, rank by rank.

An audit keeps sums of a trace and not its events: those of the ranks that are drawn are read again, one
after the other, which takes about as long as the audit took for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from computeflow.errors import InputError
from computeflow.telemetry.traces.job_ledgers import TracedJob
from computeflow.telemetry.traces.rank_measurements import RankMeasurement, TraceOptions
from computeflow.telemetry.traces.step_timelines import StepTimeline, step_timeline
from computeflow.telemetry.traces.trace import Trace
from computeflow.web.sources.step_spans import RankSpans, StepSpans, make_span

MAX_EVENTS = 1_000_000
"""Events that are read for one drawing: three seconds, at 300,000 events a second."""
_MAX_SEGMENTS, _MIN_SEGMENTS = 6_000, 60
"""Segments of a drawing, and of one of its ranks."""
_NAME = 80
"""Characters of a kernel's name that are shown."""
_Found = tuple[int, RankMeasurement, int]
"""A rank's place in the job, the rank, and the place of the step in it."""


def traced_spans(
    job: TracedJob,
    options: TraceOptions,
    step: int,
    most: int,
    read: Callable[[RankMeasurement], Trace],
) -> StepSpans | None:
    """The step of this number; None where no rank has it. Of many ranks or large traces, those in
    which it takes longest.
    """
    found = [
        (place, rank, rank.steps.index(step))
        for place, rank in enumerate(job.ranks)
        if step in rank.steps
    ]
    if not found:
        return None
    begins = {place: _begin(job, each) for each in found for place in (each[0],)}
    first = min(begins.values())
    shown = _longest(found, most)
    segments = max(_MAX_SEGMENTS // len(shown), _MIN_SEGMENTS)
    lines = []
    for place, rank, _ in shown:
        with suppress(InputError):  # its file is gone, or nothing ran in this step
            timeline = step_timeline(read(rank), options, rank.rank, step=step, most=segments)
            lines.append(_line(rank, timeline, (begins[place] - first) / 1e9))
    if not lines:
        return None
    ends = [(begins[place] - first) / 1e9 + rank.step_seconds[at] for place, rank, at in found]
    return StepSpans(
        step=step,
        attempt=0,
        began=first / 1e9,
        seconds=max(ends),
        ranks=tuple(sorted(lines, key=lambda line: line.rank)),
        ranks_total=len(found),
    )


def _begin(job: TracedJob, found: _Found) -> int:
    """Nanoseconds at which a rank's step begins, by the first rank's clock."""
    place, rank, at = found
    offsets = job.job.waits.offsets
    ahead = offsets[place] if place < len(offsets) else 0
    return rank.window_start + round(1e9 * sum(rank.step_seconds[:at])) - ahead


def _longest(found: Sequence[_Found], most: int) -> list[_Found]:
    """At most so many, and of so many events; always one."""
    kept: list[_Found] = []
    events = 0
    for each in sorted(found, key=lambda each: -each[1].step_seconds[each[2]])[:most]:
        events += each[1].events
        if kept and events > MAX_EVENTS:
            break
        kept.append(each)
    return kept


def _line(rank: RankMeasurement, timeline: StepTimeline, begin: float) -> RankSpans:
    return RankSpans(
        rank=rank.rank,
        node=rank.host_name,
        start_seconds=begin,
        seconds=timeline.step_seconds,
        spans=tuple(
            make_span(
                segment.account,
                segment.account,
                begin + segment.start_seconds,
                segment.seconds,
                segment.name[:_NAME],
                length=(
                    segment.end_seconds - segment.start_seconds if segment.pieces > 1 else None
                ),
            )
            for segment in sorted(timeline.segments, key=lambda each: each.start_seconds)
        ),
    )
