"""The expected ledger of a run: its own job as the predictor gives it, tuned (`derive`), or a plan's.

The derived expectation is the same model, batch and cluster at the speeds that the recording shows,
without anything that a rule has a remedy for: fused attention and optimizer, bf16, compiled blocks
where launches are late, no recomputation that memory does not require, micro-batches as large as pays
off. Where the run is better than that, the expectation is the measured value.
"""

from __future__ import annotations

import math
from dataclasses import replace

from computeflow.diagnosis.diagnosis import Expected
from computeflow.diagnosis.predicted_gains import Change, PredictedRun
from computeflow.diagnosis.rules.host import COMPILED_HOST, LAUNCH_SHARE
from computeflow.diagnosis.rules.kernels import (
    ROOM,
    best_larger_micro_batch,
    in_half_precision,
    updates_singly,
)
from computeflow.diagnosis.trace_case import TraceCase
from computeflow.ledger import Entry, Gap, Ledger, Window, gaps


def derive(case: TraceCase) -> Expected:
    """The expectation for the whole window; the case must have a replay."""
    run, changes = tune_prediction(case)
    predicted = run.predict(Change(compiled_host=_compiled_host(case, run)))
    scale = case.steps * len(case.ranks) / predicted.ledger.gpus
    window = case.ledger
    booked = {name: s * scale for name, s in predicted.ledger.accounts.items()}
    entries = tuple(Entry(account=name, gpu_seconds=s) for name, s in booked.items() if s > 0)
    return Expected(
        ledger=Ledger(
            gpus=window.gpus,
            wall_seconds=math.fsum(booked.values()) / window.gpus,
            entries=entries,
            basis="predicted",
            window=Window(label="the same steps, expected"),
            peak=predicted.ledger.peak,
            gpus_total=window.gpus_total,
        ),
        source=f"derived from the trace's shapes: {run.inferred.text}",
        is_plan=False,
        work_ratio=1.0,
        assumed=(
            *run.inferred.assumed,
            *changes,
            *(f"factor measured here: {text}" for text in run.factors.seen),
        ),
    )


def tune_prediction(case: TraceCase) -> tuple[PredictedRun, tuple[str, ...]]:
    """The replay with every remedy applied, and the list of these."""
    run = case.replay
    assert run is not None
    changes: list[str] = []
    if run.inferred.job.precision in ("fp32", "tf32"):
        changes.append(f"bf16 instead of {run.inferred.job.precision}")
        run = in_half_precision(run)
    if run.inferred.stack.attention == "unfused":
        changes.append("fused attention")
        stack = replace(run.inferred.stack, attention="latest")
        run = replace(
            run,
            inferred=replace(run.inferred, stack=stack),
            factors=replace(run.factors, attention=1.0),
        )
    if updates_singly(case.first):
        changes.append("fused optimizer")
        run = replace(run, factors=replace(run.factors, optimizer=1.0))
    if run.inferred.layout.recompute != "none":
        layout = replace(run.inferred.layout, recompute="none")
        without = run.predict(Change(layout=layout))
        if without.memory_bytes <= ROOM * without.memory_limit_bytes:
            changes.append("no recomputation")
            run = replace(run, inferred=replace(run.inferred, layout=layout))
    if (best := best_larger_micro_batch(replace(case, replay=run))) is not None:
        if best[1] < run.predict().step_seconds:
            changes.append(f"micro-batches of {best[0]}")
            layout = replace(run.inferred.layout, micro_batch=best[0])
            run = replace(run, inferred=replace(run.inferred, layout=layout))
    elif _late_share(case) >= LAUNCH_SHARE and run.inferred.stack.kernels == "eager":
        changes.append("compiled blocks")
        stack = replace(run.inferred.stack, kernels="compiled")
        run = replace(run, inferred=replace(run.inferred, stack=stack))
    return run, tuple(changes)


def _late_share(case: TraceCase) -> float:
    return case.set_back("launch") / case.ledger.gpu_seconds


def _compiled_host(case: TraceCase, run: PredictedRun) -> float | None:
    """Host time of compiled blocks where only the expectation has them, as measured on our hosts."""
    seen = case.replay.inferred.stack.kernels if case.replay else "eager"
    changed = run.inferred.stack.kernels == "compiled" and seen == "eager"
    return COMPILED_HOST if changed else None


def expected_lines(case: TraceCase, expected: Expected) -> list[Gap]:
    """Gaps for the same steps; where the run is faster than expected, the expectation is lowered to it.

    Only host lateness without another cause can be expected.
    """
    lines = gaps(case.ledger, expected.ledger, work_ratio=1.0)
    plain = case.total(
        lambda rank: (
            rank.signals.setbacks.get("launch", 0.0)
            + rank.host.get("queued", 0.0)
            - (rank.signals.optimizer_queued if updates_singly(rank) else 0.0)
        )
    )
    return [
        replace(
            line,
            expected=min(
                line.expected, line.measured, plain if "host" in line.accounts else math.inf
            ),
        )
        for line in lines
    ]
