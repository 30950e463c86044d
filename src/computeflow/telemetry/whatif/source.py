"""Op timelines as a source: slowdowns, a closed ledger, and who holds the others up, if anybody."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from computeflow.errors import InputError
from computeflow.ledger import Claim, Evidence, Finding, Ledger, Remedy
from computeflow.telemetry.observed import Asked, Observed
from computeflow.telemetry.whatif.accounts import WORK_VARIES, StepAccounts, ledger_of
from computeflow.telemetry.whatif.slowdown import Contribution, Slowdown, Worker, replay
from computeflow.telemetry.whatif.trace import NEEDED, mentions_columns, named, read_timeline

LEAST_SLOWDOWN = 1.03
"""As the study's artifact: below, it looks no further."""
LEAST_SHARE = 0.5
"""Of the lost time, that one cause must explain to be named: the study's bound on M_W and M_S."""
CONFIDENCE = 0.95
"""At least: all of 82 findings on the published and the made timelines were right."""
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
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(end - 8, 0))
            length = int.from_bytes(file.read(4), "little")
            file.seek(max(end - 8 - min(length, _MOST_FOOTER), 0))
            return file.read(_MOST_FOOTER)
    except OSError:
        return b""


def _observed(path: Path) -> Observed:
    try:
        timeline = read_timeline(path)
        replayed = replay(timeline)
    except InputError as error:
        message = str(error)
        raise InputError(message if str(path) in message else f"{path}: {message}") from None
    slowdown = replayed.slowdown
    slow = slow_workers(slowdown)
    ledger, steps = ledger_of(replayed, slow[0].rank if len(slow) == 1 else None)
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
        findings=_findings(slowdown, slow, ledger, str(path)),
        left_out=timeline.left_out,
        notes=(*timeline.notes, *_notes(slowdown)),
    )


def slow_workers(found: Slowdown) -> tuple[Worker, ...]:
    """Workers that always differ from their stage and explain most of what is lost, or nobody."""
    if found.slowdown < LEAST_SLOWDOWN or found.uneven_workers_share < LEAST_SHARE:
        return ()
    if found.of_slow.removed < LEAST_SHARE:
        return ()
    return tuple(worker for worker in found.workers if worker.rank in found.slow)


def slow_stage(found: Slowdown) -> int | None:
    """A stage that always differs from the others and explains most of what is lost."""
    if found.slowdown < LEAST_SLOWDOWN or found.uneven_stages_share < LEAST_SHARE:
        return None
    return found.slowest_stage if found.of_slowest_stage.removed >= LEAST_SHARE else None


def _findings(
    found: Slowdown, slow: Sequence[Worker], ledger: Ledger, where: str
) -> tuple[Finding, ...]:
    stage = slow_stage(found)
    if slow:
        names = ", ".join(f"{w.rank} (replica {w.replica}, stage {w.stage})" for w in slow)
        plural = "s" if len(slow) > 1 else ""
        return (
            _finding("straggler-rank", f"worker{plural} {names} slow down all: S_w "
                     f"{slow[0].slowdown:.2f}", found, found.of_slow, ledger, where,
                     tuple(worker.rank for worker in slow),
                     "probe the node of the worker (clocks, heat, errors) and exchange it"),
        )  # fmt: skip
    if stage is not None:
        ranks = tuple(sorted(worker.rank for worker in found.workers if worker.stage == stage))
        return (
            _finding("straggler-stage", f"stage {stage} is always slower than the others: S "
                     f"{found.by_stage[stage]:.2f} by it alone", found, found.of_slowest_stage,
                     ledger, where, ranks,
                     "cut the layers anew: fewer for this stage, which often has the loss too"),
        )  # fmt: skip
    return ()


def _finding(
    rule: str, title: str, found: Slowdown, part: Contribution, ledger: Ledger, where: str,
    ranks: tuple[int, ...], change: str,
) -> Finding:  # fmt: skip
    """Its GPU-seconds are the gap to the what-if, over all steps and GPUs."""
    others = ("imbalance", "compute") if rule == "straggler-stage" else ("compute",)
    own = 0.0 if rule == "straggler-stage" else ledger.booked("straggler")
    gap = max(found.step_seconds - part.removed_seconds, 0.0) * len(found.steps) * ledger.gpus
    claims = [Claim(account="straggler", gpu_seconds=min(gap, own))]
    for account in others:
        left = gap - math.fsum(claim.gpu_seconds for claim in claims)
        taken = min(left, ledger.booked(account))
        claims += [Claim(account=account, gpu_seconds=taken)] if taken > 0 else []
    return Finding(
        rule=rule,
        title=title,
        account="straggler",
        claims=tuple(claims),
        evidence=(
            Evidence(what="step with usual durations there", where=where, unit="s",
                     value=part.removed_seconds, expected=found.ideal_seconds),
            Evidence(what="part of the lost time that goes with them", where=where,
                     value=part.removed),
            Evidence(what="slowdown S of the job", where=where, value=found.slowdown,
                     expected=1.0),
        ),
        confidence=CONFIDENCE,
        ranks=ranks,
        remedy=Remedy(change=change, gain_gpu_seconds=math.fsum(c.gpu_seconds for c in claims)),
    )  # fmt: skip


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
