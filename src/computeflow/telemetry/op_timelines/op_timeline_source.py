"""Source of op timelines: slowdowns and a closed ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from computeflow.errors import InputError
from computeflow.telemetry.op_timelines.slowdown import Slowdown, replay
from computeflow.telemetry.op_timelines.timeline_file import (
    NEEDED,
    find_columns,
    mentions_columns,
    read_timeline,
)
from computeflow.telemetry.op_timelines.worker_ledgers import (
    MIN_SHARE,
    MIN_SLOWDOWN,
    WORK_VARIES,
    StepAccounts,
    worker_ledger,
)
from computeflow.telemetry.opening import tail_of
from computeflow.telemetry.source_reports import SourceReport, SourceRequest

_MAX_FOOTER = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimelineFacts:
    workers: int
    gpus: int
    replicas: int
    stages: int
    operations: int
    """Operations in one step of one replica."""
    slowdown: Slowdown
    steps: tuple[StepAccounts, ...]


class OpTimelines:
    kind = "op-timeline"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether a file has the needed columns; Parquet names them at its end."""
        if head[:4] == b"PAR1":
            return mentions_columns(_footer(path))
        first = head.split(b"\n", 1)[0].decode("utf-8", "replace").strip().split(",")
        return find_columns(first).keys() >= set(NEEDED)

    def observe(self, paths: Sequence[Path], request: SourceRequest) -> list[SourceReport]:
        reports, left_out = [], []
        for path in paths:
            try:
                reports.append(_observed(path))
            except InputError as error:
                if len(paths) == 1:
                    raise
                left_out.append(str(error))
        if not reports:
            raise InputError("; ".join(left_out) or "no op timeline to read")
        reports[0] = replace(reports[0], left_out=(*reports[0].left_out, *left_out))
        return reports


def _footer(path: Path) -> bytes:
    """The description in a Parquet file, whose length stands before the last four bytes."""
    length = int.from_bytes(tail_of(path, 8)[:4], "little")
    return tail_of(path, 8 + min(length, _MAX_FOOTER))


def _observed(path: Path) -> SourceReport:
    try:
        timeline = read_timeline(path)
        replayed = replay(timeline)
    except InputError as error:
        message = str(error)
        raise InputError(message if str(path) in message else f"{path}: {message}") from None
    slowdown = replayed.slowdown
    ledger, steps = worker_ledger(replayed)
    facts = OpTimelineFacts(
        workers=timeline.ranks.size,
        gpus=ledger.gpus,
        replicas=timeline.replicas,
        stages=timeline.pattern.stages,
        operations=len(timeline.pattern.optype),
        slowdown=slowdown,
        steps=steps,
    )
    return SourceReport(
        kind=OpTimelines.kind,
        sources=(str(path),),
        facts=facts,
        ledger=ledger,
        left_out=timeline.left_out,
        notes=(*timeline.notes, *_notes(slowdown)),
    )


def _notes(slowdown: Slowdown) -> list[str]:
    notes = []
    if slowdown.slowdown >= MIN_SLOWDOWN and slowdown.varying_share >= MIN_SHARE:
        why = "cause unknown"
        if slowdown.varies_with_work is not None:
            why = "jitter: forward and backward times do not rise together"
            if slowdown.varies_with_work >= WORK_VARIES:
                why = "unequal work: forward and backward times rise together"
        notes.append(
            f"{100 * slowdown.varying_share:.0f} % of the lost time varies from micro-batch to "
            f"micro-batch ({why}): no particular worker or stage"
        )
    if slowdown.varies_with_work is None:
        notes.append("no micro-batches matched: variation is booked as straggler")
    return notes
