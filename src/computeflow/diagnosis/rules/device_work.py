"""Rules on the device's work in a replayed step: kernels that could be fewer or faster.

Which kernels they are is known by mechanism (`telemetry.traces.kernel_roles`); how fast they would be
otherwise is measured on recordings of other code (benchmarks/foreign), or the ratio of peaks.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np

from computeflow.diagnosis.predicted_gains import Change
from computeflow.diagnosis.remedies import command
from computeflow.diagnosis.rule import Outcome, draft
from computeflow.diagnosis.rules.kernels import ROOM
from computeflow.diagnosis.rules.step_regions import frozen_passes
from computeflow.diagnosis.trace_case import TraceCase
from computeflow.ledger import Evidence, Remedy
from computeflow.replay.edits import (
    Edit,
    Rows,
    all_of,
    with_device_times,
    with_merged_work,
    without_calls,
    without_host_time,
)
from computeflow.telemetry.traces.event_names import WorkKind
from computeflow.telemetry.traces.kernel_precision import has_pattern
from computeflow.telemetry.traces.own_updates import ROOT
from computeflow.telemetry.traces.step_graph import BACKWARD, Role, StepGraph

FUSED_ATTENTION = (1.2, 0.6, 0.43)
"""Time of a fused attention kernel over that of the batched products it replaces, least gain first:
0.39 to 0.62 in six pairs of causal runs on an H200 (benchmarks/reports/kernel_times.md, as the other
factors here). Causal kernels skip half of the scores: 1.2, twice the middle, is assumed where every
score counts."""
BF16_TF32 = 0.4
"""Time of products in bf16 over TF32."""
BF16_ATTENTION = 0.1
"""Time of attention kernels in bf16 over float32: 0.13 where fused, 0.05 to 0.09 where written out."""
BF16_OTHERS = (1.2, 1.0, 0.7)
"""Time of the other kernels in bf16 over float32: 1.18 and 1.24 with autocast, whose casts are kernels
too; 0.70 without it."""
UNALIGNED = 0.17
"""Products in bf16 over float32 where a large one has a side that is no multiple of 8 (`gpt2`, a
vocabulary of 50,257); 0.07, the ratio of peaks, where none has (`llama`)."""
_BETWEEN = 2
"""Most calls between two that are known to be recomputed that are so, too: kernels that the forward
pass has under another name."""
USUAL_UPDATE = 8
"""Kernels for each tensor of torch's Adam with one tensor at a time: seven, and one for the decay of
weights. An update written out in more of them passes memory more often, a fused one as before."""
FUSED_UPDATE = (0.57, 0.37, 0.22)
"""Time of a fused optimizer's kernels over that of one tensor at a time: 0.22 and 0.37 for `bert` and
`gpt2`, 0.51 to 0.57 for our own trainer."""


def _calls_of(graph: StepGraph, rows: Rows) -> Rows:
    """Calls all of whose work is among these rows."""
    device = graph.device
    known = device.call >= 0
    count = len(graph.line)
    mine = np.bincount(device.call[known & rows], minlength=count)
    whole = np.bincount(device.call[known], minlength=count)
    return np.asarray((mine > 0) & (mine == whole))


def _share(graph: StepGraph, rows: Rows) -> float:
    known = graph.device.call >= 0
    return float(graph.device.seconds[rows & known].sum()) / graph.steps


def _evidence(case: TraceCase, what: str, seconds: float, where: str = "kernels") -> Evidence:
    return Evidence(what=what, where=case.where(where), value=seconds, unit="s")


def _is_full_precision(graph: StepGraph) -> bool:
    device = graph.device
    full = _share(graph, device.has(Role.FP32_PRODUCT) | device.has(Role.TF32_PRODUCT))
    return full > 0 and bool(device.has(Role.FP32_OTHER).any())


def unfused_attention(case: TraceCase) -> Outcome:
    graph = case.graph
    device = graph.device
    rows = device.has(Role.ATTENTION) & ~device.has(Role.EVALUATION)
    if not rows.any() or _is_full_precision(graph):
        return []
    products = rows & device.has(Role.ATTENTION_PRODUCT)
    around = _calls_of(graph, rows & ~products)
    edits = [
        all_of((with_device_times(products, factor), without_calls(around)))
        for factor in FUSED_ATTENTION
    ]
    return draft(
        "attention writes its scores to memory; a fused kernel would not",
        ("compute.kernel",),
        edits[1],
        [
            _evidence(
                case, "kernels of attention that is written out, in a step", _share(graph, rows)
            ),
            _evidence(case, "of these, matrix products", _share(graph, products)),
        ],
        Remedy(change="use a fused attention kernel", command=command("attention", case.framework)),
        bounds=(edits[0], edits[2]),
    )


def matmul_precision(case: TraceCase) -> Outcome:
    graph = case.graph
    device = graph.device
    accelerator = case.audit.accelerator
    if not _is_full_precision(graph) or accelerator is None:
        return []
    peaks = accelerator.dense_flops
    if "bf16" not in peaks or "fp32" not in peaks:
        return []
    full, tf32 = device.has(Role.FP32_PRODUCT), device.has(Role.TF32_PRODUCT)
    ratio = peaks["fp32"] / peaks["bf16"]
    edits = [
        all_of(
            (
                with_device_times(full, products),
                with_device_times(tf32, BF16_TF32),
                with_device_times(device.has(Role.FP32_ATTENTION), BF16_ATTENTION),
                with_device_times(device.has(Role.FP32_OTHER), others),
            )
        )
        for products, others in zip((max(UNALIGNED, ratio), ratio, ratio), BF16_OTHERS, strict=True)
    ]
    fused = _with_fused_attention(graph, edits[2])
    kind = "float32" if _share(graph, full) >= _share(graph, tf32) else "TF32"
    return draft(
        f"matrix products run in {kind}, not in bf16",
        ("compute.kernel", "compute.model"),
        edits[1],
        [_evidence(case, f"products in {kind} in a step", _share(graph, full | tf32))],
        Remedy(
            change="use bf16 with fp32 master weights",
            command=command("precision", case.framework),
            risk="check the loss curve; keep reductions and the optimizer's state in fp32",
        ),
        bounds=(edits[0], fused),
    )


def _with_fused_attention(graph: StepGraph, edit: Edit) -> Edit:
    """In bf16, torch's attention is fused where in float32 it may be written out."""
    device = graph.device
    products = device.has(Role.ATTENTION_PRODUCT)
    around = _calls_of(graph, device.has(Role.ATTENTION) & ~products)
    return all_of((edit, with_device_times(products, FUSED_ATTENTION[1]), without_calls(around)))


def recompute_excess(case: TraceCase) -> Outcome:
    graph = case.graph
    rows = graph.device.has(Role.RECOMPUTE)
    if not rows.any():
        return []
    memory, room = _memory_without(case)
    if not room:
        return []
    return draft(
        "activations are recomputed" + (" although memory has room for them" if memory else ""),
        ("compute.recompute", "host"),
        without_recomputation(graph, _calls_of(graph, rows)),
        [_evidence(case, "kernels that compute activations again, in a step", _share(graph, rows))],
        Remedy(
            change="keep the activations instead of recomputing them"
            + ("" if memory else ", if memory has room for them"),
            command=command("recompute", case.framework),
            risk=memory or "needs more memory; how much is not known from this recording",
        ),
    )


def without_recomputation(graph: StepGraph, calls: Rows) -> Edit:
    """Recomputed calls and the few between them are gone, and so is the host's time to begin a backward
    pass of its own after each run of them.
    """
    line = graph.line
    rows = np.flatnonzero(calls)
    calls = calls.copy()
    for before, after in pairwise(rows.tolist()):
        calls[before:after] |= after - before <= _BETWEEN + 1
    ends = np.flatnonzero(calls[:-1] & ~calls[1:]) + 1
    plain = (line.phase == BACKWARD) & ~calls
    usual = float(np.median(line.gap[plain])) if plain.any() else math.inf
    removed = np.zeros(len(line))
    removed[ends] = np.maximum(line.gap[ends] - usual, 0.0)
    return all_of((without_calls(calls), without_host_time(removed)))


def _memory_without(case: TraceCase) -> tuple[str, bool]:
    """The memory that a step without recomputation takes, in words, and whether it fits."""
    run = case.replay
    if run is None:
        return "", True
    without = run.predict(Change(layout=replace(run.inferred.layout, recompute="none")))
    text = (
        f"uses about {without.memory_bytes / 1e9:.0f} of {without.memory_limit_bytes / 1e9:.0f} GB"
    )
    return text, without.memory_bytes <= ROOM * without.memory_limit_bytes


def unfused_optimizer(case: TraceCase) -> Outcome:
    graph = case.graph
    rows = graph.device.has(Role.SINGLE_UPDATE) & (graph.device.call >= 0)
    if not rows.any():
        return []
    roots = np.array([has_pattern(ROOT, name) for name in graph.names] or [False])
    tensors = int((rows & roots[graph.device.name]).sum())
    more = max(rows.sum() / (USUAL_UPDATE * tensors), 1.0) if tensors else 1.0
    edits: list[Edit] = [with_merged_work(rows, factor / more) for factor in FUSED_UPDATE]
    return draft(
        "the optimizer updates one tensor at a time, in "
        f"{rows.sum() / graph.steps:,.0f} kernels a step",
        ("optimizer", "host"),
        edits[1],
        [_evidence(case, "optimizer kernels of one tensor each, in a step", _share(graph, rows))],
        Remedy(
            change="use a fused optimizer, which updates all tensors in a few kernels",
            command=command("optimizer", case.framework),
        ),
        bounds=(edits[0], edits[2]),
    )


def evaluation(case: TraceCase) -> Outcome:
    """Forward passes without autograd in the window: not training, and not in every step of a run."""
    graph = case.graph
    device = graph.device
    rows = device.has(Role.EVALUATION) & (device.work != WorkKind.COMM)
    if not rows.any():
        return []
    calls = _calls_of(graph, rows)
    calls &= ~frozen_passes(graph, calls)
    if not calls.any():
        return []
    rows &= calls[np.maximum(device.call, 0)]
    steps = len(set(graph.line.step[calls].tolist()))
    often = "in every step" if steps == graph.steps else f"in {steps} of {graph.steps} steps"
    return draft(
        f"forward passes without a backward pass run {often}: evaluation, or a frozen model",
        ("evaluation", "compute.kernel", "compute.model"),
        without_calls(calls),
        [_evidence(case, "their kernels, in a step", _share(graph, rows))],
        Remedy(
            change="evaluate less often, on fewer batches or elsewhere; record steps without it",
            risk="a teacher or reference model looks the same, and is part of the training",
        ),
        steady=2 * steps > graph.steps,
    )
