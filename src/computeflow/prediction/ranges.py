"""How far a run may lie from its prediction: 80 % ranges by kind of job, wider for unknowns.

The published runs of a kind were predicted, and the range goes from the 8th to the
92nd percentile of measured over predicted time: a source that was left out lies farther out than those
that set the range, so the middle 80 % would hold 72 % of it. Then the runs were predicted again with
one thing hidden (the stack taken for today's practice, the network for the usual node's, the device's
best matmul for an unknown family's). `make proofs` measures all of it anew (docs/accuracy.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from computeflow.cluster import Cluster
from computeflow.prediction.step_inputs import LOW_PRECISIONS, generation_of
from computeflow.workload import Job, Layout

LONG = 16384
"""Tokens in a sequence from which a context is long."""
KNOWN = {
    "dense": (0.90, 1.22),
    "long context": (0.94, 1.15),
    "low precision": (0.88, 1.13),
    "experts": (0.88, 1.55),
}
"""Range over predicted time, by kind of job, with stack, network and device known."""
UNKNOWN = {
    "stack": (0.91, 1.60),
    "network": (0.91, 1.23),
    "hardware": (0.70, 1.20),
    "untested": (0.70, 1.60),
}
"""The range over all dense runs with stack, network or device hidden. `untested` (offload, low-rank
training, schedules and exchanges that no published run here has): as wide as all, a judgement."""


def range_kind(job: Job) -> str:
    """The kind that a job's range belongs to; what is harder to predict comes first."""
    if any(block.experts for block in job.model.blocks):
        return "experts"
    if job.precision in LOW_PRECISIONS:
        return "low precision"
    return "long context" if job.seq_len >= LONG else "dense"


def time_range(kind: str, unknown: Sequence[str] = ()) -> tuple[float, float]:
    """Low and high, as shares of the predicted time; the widest of what applies."""
    ranges = [KNOWN[kind], *(UNKNOWN[name] for name in unknown)]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def unknowns(job: Job, cluster: Cluster, layout: Layout, *, stack_stated: bool) -> tuple[str, ...]:
    """Assumptions of the prediction that widen its range."""
    usual = layout.schedule == "1f1b" and layout.offload == "none" and layout.context == "ring"
    assumed = {
        "stack": not stack_stated,
        "network": bool(cluster.assumed) and layout.gpus > cluster.domain,
        "hardware": generation_of(cluster.accelerator.name) in ("other", "tpu"),
        "untested": not usual or job.training != "full",
    }
    return tuple(name for name, hidden in assumed.items() if hidden)
