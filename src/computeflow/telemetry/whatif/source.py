"""Op timelines as a source: slowdowns and a closed ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from computeflow.errors import InputError
from computeflow.telemetry.observed import Asked, Observed
from computeflow.telemetry.opening import tail_of
from computeflow.telemetry.whatif.accounts import (
    LEAST_SHARE,
    LEAST_SLOWDOWN,
    WORK_VARIES,
    StepAccounts,
    ledger_of,
)
from computeflow.telemetry.whatif.slowdown import Slowdown, replay
from computeflow.telemetry.whatif.trace import NEEDED, mentions_columns, named, read_timeline

_MOST_FOOTER = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimeline:
    workers: int
    gpus: int
    replicas: int
    stages: int
    operations: int
    """Of one step and replica."""
    slowdown: Slowdown
    steps: tuple[StepAccounts, ...]


class OpTimelines:
    kind = "op-timeline"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Parquet names its columns at its end."""
        if head[:4] == b"PAR1":
            return mentions_columns(_footer(path))
        first = head.split(b"\n", 1)[0].decode("utf-8", "replace").strip().split(",")
        return named(first).keys() >= set(NEEDED)

    def observe(self, paths: Sequence[Path], asked: Asked) -> list[Observed]:
        found, left_out = [], []
        for path in paths:
            try:
                found.append(_observed(path))
            except InputError as error:
                if len(paths) == 1:
                    raise
                left_out.append(str(error))
        if not found:
            raise InputError("; ".join(left_out) or "no op timeline to read")
        found[0] = replace(found[0], left_out=(*found[0].left_out, *left_out))
        return found


def _footer(path: Path) -> bytes:
    """Of a Parquet file: its description, whose length stands before the last four bytes."""
    length = int.from_bytes(tail_of(path, 8)[:4], "little")
    return tail_of(path, 8 + min(length, _MOST_FOOTER))


def _observed(path: Path) -> Observed:
    try:
        timeline = read_timeline(path)
        replayed = replay(timeline)
    except InputError as error:
        message = str(error)
        raise InputError(message if str(path) in message else f"{path}: {message}") from None
    slowdown = replayed.slowdown
    ledger, steps = ledger_of(replayed)
    facts = OpTimeline(
        workers=timeline.ranks.size,
        gpus=ledger.gpus,
        replicas=timeline.replicas,
        stages=timeline.pattern.stages,
        operations=len(timeline.pattern.optype),
        slowdown=slowdown,
        steps=steps,
    )
    return Observed(
        kind=OpTimelines.kind,
        sources=(str(path),),
        facts=facts,
        ledger=ledger,
        left_out=timeline.left_out,
        notes=(*timeline.notes, *_notes(slowdown)),
    )


def _notes(found: Slowdown) -> list[str]:
    notes = []
    if found.slowdown >= LEAST_SLOWDOWN and found.varying_share >= LEAST_SHARE:
        why = "no signal tells why"
        if found.varies_with_work is not None:
            why = "jitter: forward and backward times do not rise together"
            if found.varies_with_work >= WORK_VARIES:
                why = "unequal work: forward and backward times rise together"
        notes.append(
            f"{found.varying_share:.0%} of the lost time varies from micro-batch to micro-batch "
            f"({why}): no worker and no stage in particular"
        )
    if found.varies_with_work is None:
        notes.append("no micro-batches matched: variation is booked as straggler")
    return notes
