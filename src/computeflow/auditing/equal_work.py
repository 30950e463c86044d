"""Two ledgers at equal useful work: `compare_ledgers`.

Useful are tokens and steps. FLOPs are not: a run that computes something twice has more of them and is
no better for it. So recordings are compared at equal tokens where the user states them, else at equal
steps, and at equal FLOPs only where a step of one is not a step of the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from computeflow.auditing.audit_request import AuditRequest
from computeflow.errors import InputError
from computeflow.ledger import Gap, Ledger, gaps
from computeflow.telemetry.logs.log_facts import LoggedRun
from computeflow.telemetry.run_folders.run_facts import RecordedRun
from computeflow.telemetry.source_reports import SourceReport
from computeflow.telemetry.traces.job_ledgers import TracedJob

STEPS, TOKENS, FLOPS = "equal steps", "equal tokens", "equal FLOPs"
MODEL_FLOPS, GPU_SECONDS = "equal model FLOPs", "equal GPU-seconds"
RECORDINGS = "equal recordings (no steps are marked)"
_SAME_BATCH = 0.5
"""Share of the FLOPs whose products have the same shape in both recordings, at least, if the batch is
the same: products of weights, most of a step, have the batch in their shape, so the share is all or
nothing."""
_ALIKE = 0.01
"""Relative difference of two counts per step that is none: a window that ends within a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Matrix products of one shape, per step of a rank."""

    count: float
    flops: float

    def __post_init__(self) -> None:
        if not (0 < self.count < math.inf and 0 <= self.flops < math.inf):
            raise InputError(f"{self.count:g} products of {self.flops:g} FLOPs in a step")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    """What a recording did, as far as it says."""

    steps: float = 0.0
    """Steps of a trace, summed over ranks, 0 where they are not marked on every rank; of a log, steps
    of the job."""
    tokens: float = 0.0
    """Tokens as the user states them; 0 where unknown."""
    flops: float = 0.0
    """FLOPs of the operators' shapes; 0 where shapes are not recorded."""
    products: Mapping[str, Product] = field(default_factory=dict)
    """By rank, pass and shape."""
    traced: bool = False

    def __post_init__(self) -> None:
        if not all(0 <= size < math.inf for size in (self.steps, self.tokens, self.flops)):
            raise InputError(f"work of {self.steps:g} steps, {self.tokens:g} tokens")


def work_of_traces(traces: TracedJob, request: AuditRequest) -> WorkDone:
    ranks = traces.ranks
    steps = sum(len(rank.steps) for rank in ranks) if all(rank.steps for rank in ranks) else 0
    world = max([rank.world or 0 for rank in ranks] + [len(ranks)])
    return WorkDone(
        steps=steps,
        tokens=_stated(request) * steps / world,
        flops=sum(rank.flops for rank in ranks),
        products={
            f"{rank.rank} {row.phase} {row.name} {row.shape}": Product(
                count=row.count / len(rank.steps), flops=row.flops / len(rank.steps)
            )
            for rank in ranks
            for row in rank.signals.shapes
            if steps
        },
        traced=True,
    )


def work_of_log(log: SourceReport, request: AuditRequest) -> WorkDone:
    """Steps that were done again after a failure are counted once."""
    run = log.facts
    if isinstance(run, RecordedRun) and log.ledger is not None:
        kept = max(run.steps - run.redone_steps, 0)
        return WorkDone(steps=kept, tokens=(_stated(request) or run.tokens_per_step or 0) * kept)
    if log.ledger is None or not isinstance(run, LoggedRun) or run.unit != "steps":
        return WorkDone()
    steps = max(run.steps - sum(restart.lost_steps or 0 for restart in run.restarts), 0)
    tokens = _stated(request) or (run.batch or 0) * (run.sequence or 0)
    return WorkDone(steps=steps, tokens=tokens * steps)


def _stated(request: AuditRequest) -> int:
    """Tokens of a step of all ranks; 0 where the user does not state them."""
    return (request.global_batch or 0) * (request.seq_len or 0)


def compare_ledgers(
    one: Ledger, done: WorkDone, other: Ledger, done_other: WorkDone
) -> tuple[list[Gap], str]:
    """Gaps line by line, and what is equal on both sides."""
    traced = done.traced and done_other.traced
    if done.traced != done_other.traced:  # a log's step is one of all ranks, a trace's one of each
        done, done_other = replace(done, steps=0.0), replace(done_other, steps=0.0)
    known = _work_ratio(done, done_other)
    if known is None and one.mfu is not None and other.mfu is not None:
        return gaps(one, other), MODEL_FLOPS
    if known is None and traced:
        known = one.gpus / other.gpus, RECORDINGS
    ratio, equal = known or (one.gpu_seconds / other.gpu_seconds, GPU_SECONDS)
    return gaps(one, other, work_ratio=ratio), equal


def _work_ratio(one: WorkDone, other: WorkDone) -> tuple[float, str] | None:
    """The work of one over that of the other, and by what measure; None where nothing is known."""
    if one.tokens and other.tokens:
        return one.tokens / other.tokens, TOKENS
    steps = one.steps / other.steps if one.steps and other.steps else None
    batches = _batches(one, other)
    if steps is not None and batches is not None:
        return steps * batches, STEPS if batches == 1.0 else TOKENS
    if one.flops and other.flops:
        return one.flops / other.flops, FLOPS
    return None if steps is None else (steps, STEPS)


def _batches(one: WorkDone, other: WorkDone) -> float | None:
    """Batch of a step of one over that of the other; None where no shape says it.

    With another micro-batch no product has the same shape. With more micro-batches in a step every
    product is done more often, on every rank and by the same factor; whatever else is done more often
    is not more useful work. Neglected: extra work that repeats the whole step.
    """
    if not (one.products and other.products):
        return 1.0
    shared = one.products.keys() & other.products.keys()
    fewer = min(one.products, other.products, key=_flops)
    if sum(fewer[key].flops for key in shared) < _SAME_BATCH * _flops(fewer):
        return None
    ratios = [one.products[key].count / other.products[key].count for key in shared]
    least, most = min(ratios), max(ratios)
    if most > (1 + _ALIKE) * least or abs(most - 1) <= _ALIKE:
        return 1.0
    return sum(ratios) / len(ratios)


def _flops(products: Mapping[str, Product]) -> float:
    return sum(product.flops for product in products.values())
