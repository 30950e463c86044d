"""What the run should take: its own job through the predictor, tuned; `derive`, or a plan's ledger.

The derived expectation is the same model, batch and cluster at the speeds that the recording shows,
with nothing that a rule knows a remedy for: fused attention and optimizer, bf16, compiled blocks where
launches are late, no recomputation that memory does not ask for, micro-batches as large as they gain.
Where the run is better than that, the expectation is what the run shows.
"""

from __future__ import annotations

import math
from dataclasses import replace

from computeflow.diagnosis.case import Case
from computeflow.diagnosis.rules.host import COMPILED_HOST, LAUNCH_SHARE
from computeflow.diagnosis.rules.kernels import ROOM, in_half_precision, merged, updates_singly
from computeflow.diagnosis.values import Expected
from computeflow.diagnosis.whatif import Change, Replay
from computeflow.ledger import Entry, Gap, Ledger, Window, gaps


def derive(case: Case) -> Expected:
    """Of the whole window; the case must have a replay."""
    run, changes = tuned(case)
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
        assumed=(
            *run.inferred.assumed,
            *changes,
            *(f"factor measured here: {text}" for text in run.factors.seen),
        ),
    )


def tuned(case: Case) -> tuple[Replay, tuple[str, ...]]:
    """The replay with every remedy, and what these are."""
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
    if (best := merged(replace(case, replay=run))) is not None:
        if best[1] < run.predict().step_seconds:
            changes.append(f"micro-batches of {best[0]}")
            layout = replace(run.inferred.layout, micro_batch=best[0])
            run = replace(run, inferred=replace(run.inferred, layout=layout))
    elif _late_share(case) >= LAUNCH_SHARE and run.inferred.stack.kernels == "eager":
        changes.append("compiled blocks")
        stack = replace(run.inferred.stack, kernels="compiled")
        run = replace(run, inferred=replace(run.inferred, stack=stack))
    return run, tuple(changes)


def _late_share(case: Case) -> float:
    return case.set_back("launch") / case.ledger.gpu_seconds


def _compiled_host(case: Case, run: Replay) -> float | None:
    """Where blocks are compiled in the expectation only: what our hosts show of that."""
    seen = case.replay.inferred.stack.kernels if case.replay else "eager"
    changed = run.inferred.stack.kernels == "compiled" and seen == "eager"
    return COMPILED_HOST if changed else None


def expected_lines(case: Case, expected: Expected) -> list[Gap]:
    """Line by line for the same steps; an expectation that the run itself beats is corrected.

    Of the host's lateness, only what has no other root can be expected.
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
