"""Rules on the host's calls in a replayed step: launches, waits, passes and allocations.

As in `host_line`, each names a cause by its mechanism and the edit that removes it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from computeflow.diagnosis.remedies import command
from computeflow.diagnosis.rule import Outcome, draft, seconds_evidence
from computeflow.diagnosis.rules.host import MIN_KERNELS, TOO_SHORT
from computeflow.diagnosis.rules.step_regions import (
    in_long_runs,
    passes_of,
    places_of,
    reading_runs,
    within_passes,
)
from computeflow.diagnosis.trace_case import TraceCase
from computeflow.ledger import Evidence, Remedy
from computeflow.prediction.device_time import step_parts
from computeflow.replay.edits import (
    Rows,
    all_of,
    with_device_times,
    with_host_times,
    without_calls,
    without_waits,
)
from computeflow.replay.saving import saving_calls
from computeflow.telemetry.traces.event_names import ALLOCATOR, Call
from computeflow.telemetry.traces.step_graph import StepGraph

COMPILED_HOST = (0.8, 0.48, 0.2)
"""Host time of a compiled step over that of an eager one, least gain first: 0.55 to 0.81 where blocks
are compiled (benchmarks/reports/calibration.md), 0.43 where a whole model is (the Trainer's step fell
to 0.52), 0.30 with CUDA graphs (benchmarks/foreign/truth.csv, `gpt2_tiny`), 0.22 where a loop of small
operators became one (benchmarks/foreign_new_hands/truth-fit.csv, `gnn_relation-loop`)."""
GRAPHED_HOST = (0.7, 0.4, 0.2)
"""The same for a compiled step that is launched as CUDA graphs: assumed, from the two above."""
DECIDES = 0.5
"""Part of what the host gains that the step must gain with it for the host to be its limit: nearly all
where it is (0.75 to 1 in launch-bound recordings, and in one of anomaly mode), at most 0.4 in others,
at the low end of the profiler's cost."""
MAX_BUSY = 0.42
"""Most of a step in which the device of a launch-bound one works: 0.16 to 0.39 in ten recordings with
such a mistake. Ordinary eager code whose host is a little too slow has 0.48 and more."""
COMPILED = 0.5
"""Share of compiled kernels from which a step counts as compiled."""
MANY_PLACES = 3
"""Places within passes at which the host waits in a step from which they are the user's own: ordinary
recordings have at most one (a matching on the host, a count of tokens)."""
_FLOOR_NS = 2_000.0
"""Time that a kernel takes however little it does: the shortest of our recordings on an H200 take 1 to
2 us."""


def host_sync(case: TraceCase) -> Outcome:
    graph = case.graph
    waiting = (graph.line.call == Call.SYNC) & (graph.line.waits_for >= 0) & ~_for_uploads(graph)
    waiting = (waiting | reading_copies(graph)) & ~saving_calls(graph)
    if not waiting.any():
        return []
    mine = _own_waits(graph, waiting)
    gone = mine if mine.any() else waiting
    edit = all_of((without_waits(gone), without_calls(reading_runs(graph, gone))))
    reads = case.first.signals.reads
    named = [f"{name} {count / case.steps:.0f} times" for name, count in reads.items() if name]
    count = float((waiting & (graph.line.call == Call.SYNC)).sum()) / graph.steps
    return draft(
        f"the host waits for the device {'once' if round(count) == 1 else f'{count:,.0f} times'} in a "
        "step, and then launches too late",
        ("host", "compute.kernel"),
        edit,
        [
            Evidence(
                what="waits in a step" + (f": {', '.join(named)}" if named else ""),
                where=case.where("synchronising calls"),
                value=count,
                unit="per step",
            )
        ],
        Remedy(
            change="do not read device values on the host during a step",
            command=command("sync", case.framework),
        ),
        own=bool(mine.any()),
    )


def _own_waits(graph: StepGraph, waiting: Rows) -> Rows:
    """Waits that are the user's: long runs of reads, or all where several places lie within the passes.
    What a framework reads by itself before and after them stays when long runs are gone.
    """
    within = within_passes(graph, waiting)
    if len(places_of(within)) >= MANY_PLACES * graph.steps:
        return waiting
    return in_long_runs(graph, waiting)


def _for_uploads(graph: StepGraph) -> Rows:
    """Calls that wait for a copy to the device: not reading, but copying without non_blocking."""
    down = np.array(["HtoD" in name for name in graph.names] or [False])
    target = graph.line.waits_for
    return np.asarray((target >= 0) & down[graph.device.name[np.maximum(target, 0)]])


def reading_copies(graph: StepGraph) -> Rows:
    """Copies to the host that block it: values that are read."""
    line, device = graph.line, graph.device
    upward = np.array(["DtoH" in name for name in graph.names] or [False])
    rows = np.zeros(len(line), bool)
    mine = device.call[(device.call >= 0) & upward[device.name]]
    rows[mine] = True
    return rows & line.waited


def launch_bound(case: TraceCase) -> Outcome:
    graph = case.graph
    if len(graph.device) < MIN_KERNELS:
        return TOO_SHORT
    compiled = case.first.signals.compiled >= COMPILED
    calls = np.ones(len(graph.line), bool)
    factors = GRAPHED_HOST if compiled else COMPILED_HOST
    edits = tuple(with_host_times(calls, factor) for factor in factors)
    kernels = case.first.signals.kernels / case.steps
    return draft(
        "the device waits for the host to launch its kernels",
        ("host",),
        edits[1],
        [
            Evidence(
                what=f"kernels {case.per}",
                where=case.where("kernels"),
                value=kernels,
                unit="per step",
            ),
            seconds_evidence(
                "host time of a step, without waits", case.where("host"), case.replayed.host_seconds
            ),
        ],
        Remedy(
            change="launch the step as CUDA graphs"
            if compiled
            else "launch fewer and larger kernels: compile the model, or use CUDA graphs",
            command="torch.compile(model, mode='reduce-overhead')"
            if compiled
            else command("compile", case.framework),
            risk="the first step takes longer; new shapes compile again",
        ),
        bounds=(edits[0], edits[2]),
        least_share=DECIDES * (1 - factors[0]),
        max_busy=MAX_BUSY,
    )


def small_micro_batch(case: TraceCase) -> Outcome:
    """Several passes in a step whose host time is the limit: fewer and larger ones."""
    graph = case.graph
    passes = passes_of(graph)
    count = int(passes.max()) + 1 if len(passes) else 1
    if count < 2:
        return []
    later = passes > 0
    launched = graph.device.call
    mine = (launched >= 0) & (passes[np.maximum(launched, 0)] == 0)
    times = count * _merged_share(case, count)
    edit = all_of((without_calls(later), with_device_times(mine, times, _FLOOR_NS)))
    slower = all_of((without_calls(later), with_device_times(mine, float(count), _FLOOR_NS)))
    return draft(
        f"{count} passes in a step are too small for the device: the host's time is the limit",
        ("host", "compute.kernel"),
        edit,
        [
            Evidence(
                what="passes before each optimizer step",
                where=case.where("backward passes"),
                value=float(count),
                unit="per step",
            )
        ],
        Remedy(
            change=f"use micro-batches up to {count} times as large, at the same global batch",
            command=f"micro-batch x {count}, accumulation / {count}",
            risk="activations take more memory",
        ),
        bounds=(slower, edit),
        own=False,
    )


def _merged_share(case: TraceCase, count: int) -> float:
    """Device time of one large pass over that of all small ones; 1 where the predictor does not know
    the model: then it gains host time alone.
    """
    run = case.replay
    if run is None:
        return 1.0
    seen = run.inferred
    wider = replace(seen.layout, micro_batch=seen.layout.micro_batch * count)
    now, merged = (
        step_parts(seen.job, run.cluster, layout, seen.stack) for layout in (seen.layout, wider)
    )
    before = now.matmul + now.attention + now.other + now.loss
    return min((merged.matmul + merged.attention + merged.other + merged.loss) / before, 1.0)


def memory_pressure(case: TraceCase) -> Outcome:
    graph = case.graph
    calls = np.isin(graph.line.call, ALLOCATOR) & ~graph.line.growing & ~saving_calls(graph)
    steps = len(set(graph.line.step[calls].tolist()))
    if not calls.any() or 2 * steps <= graph.steps:
        return []
    return draft(
        f"device memory is allocated and freed {calls.sum() / graph.steps:,.0f} times in a step",
        ("host",),
        without_waits(calls),
        [
            Evidence(
                what="allocator calls in a step",
                where=case.where("cudaMalloc, cudaFree"),
                value=float(calls.sum()) / graph.steps,
                unit="per step",
            )
        ],
        Remedy(
            change="keep freed memory: no empty_cache() in the loop; let the allocator's segments "
            "grow; use a smaller micro-batch if it still frees and retries",
            command=command("allocator", case.framework),
        ),
    )
