"""Rules on the host's time in a replayed step: stalls, loading, uploads and saving.

Each names a cause and the edit that removes it; its gain is what the edit gains in the replay. A cause
is known by its mechanism (copies, stretches without any event), not by an annotation; annotations only
give it a better name. Rules on launches and waits are in `host_calls`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from computeflow.diagnosis.remedies import command
from computeflow.diagnosis.rule import Draft, Missing, Outcome, draft, seconds_evidence
from computeflow.diagnosis.rules.host import DATA_REMEDIES, MIN_KERNELS, STAGES, TOO_SHORT
from computeflow.diagnosis.rules.step_regions import (
    uploads,
)
from computeflow.diagnosis.trace_case import TraceCase
from computeflow.ledger import Evidence, Remedy
from computeflow.replay.edits import (
    Edit,
    Rows,
    all_of,
    with_device_times,
    without_calls,
    without_host_time,
    without_waits,
)
from computeflow.replay.saving import saving_calls, saving_gaps
from computeflow.telemetry.traces.event_names import Call
from computeflow.telemetry.traces.host_stalls import HostStall
from computeflow.telemetry.traces.step_graph import BACKWARD, OPTIMIZER, StepGraph
from computeflow.units import format_count

PINNED_BYTES_PER_SECOND = 50e9
"""Copies from pinned memory: 55 GB/s on our H200 over PCIe 5 (benchmarks/reports/h200.md), rounded
down."""
MIN_STALL_NS = 3e6
"""Shortest stall of a finding: torch's own Python over all parameters (clipping, zeroing) takes 1 to
2.6 ms in recordings of ordinary runs."""


def input_stall(case: TraceCase) -> Outcome:
    graph = case.graph
    loading = graph.line.loading.astype(np.float64)
    if "input" in case.first.missing:
        return Missing(case.first.missing["input"])
    stages = case.first.signals.loading
    most = max(stages, key=lambda name: stages[name], default="read and decode")
    return draft(
        f"the step waits for data: {STAGES[most]}",
        ("input", "host"),
        without_host_time(loading),
        [
            seconds_evidence(
                "host time in the data loader in a step",
                case.where("host"),
                float(loading.sum()) / 1e9 / graph.steps,
            )
        ],
        Remedy(
            change=DATA_REMEDIES[most],
            command=command("workers", case.framework),
        ),
        own=False,
    )


def _stalls(case: TraceCase, marks: tuple[str, ...]) -> list[HostStall]:
    """Stalls with one of these marks, outside of saving."""
    graph = case.graph
    saving = saving_gaps(graph)
    return [
        stall
        for stall in graph.stalls
        if stall.mark in marks and not (stall.call < len(saving) and saving[stall.call])
    ]


def _without(graph: StepGraph, stalls: list[HostStall]) -> Edit:
    removed = np.zeros(len(graph.line))
    tail = 0.0
    for stall in stalls:
        if stall.call < len(removed):
            removed[stall.call] += stall.length
        else:
            tail += stall.length
    return all_of((without_host_time(removed), _shorter_tail(tail)))


def _shorter_tail(length: float) -> Edit:
    return lambda graph, now: replace(now, tail=max(now.tail - length, 0.0))


def gc_pause(case: TraceCase) -> Outcome:
    if not case.first.signals.collections:
        return Missing(
            "marks of Python's garbage collection: gc.callbacks with record_function('gc')"
        )
    stalls = _stalls(case, ("gc",))
    if not stalls:
        return []
    graph = case.graph
    return draft(
        f"Python collects garbage {len(stalls)} times in {format_count(graph.steps, 'step')}",
        ("host",),
        _without(graph, stalls),
        [seconds_evidence("host time in garbage collections", case.where("host"), _total(stalls))],
        Remedy(
            change="collect rarely, at a fixed step, and create fewer reference cycles",
            command=command("gc", case.framework),
            risk="memory held by cycles is freed only at the next collection",
        ),
    )


def _total(stalls: list[HostStall]) -> float:
    return sum(stall.length for stall in stalls) / 1e9


def host_stall(case: TraceCase) -> Outcome:
    """Host time in which nothing that torch knows ran, however it is caused."""
    graph = case.graph
    if len(graph.device) < MIN_KERNELS:
        return TOO_SHORT
    stalls = _stalls(case, ("",))
    least = max(0.01 * graph.window / graph.steps, MIN_STALL_NS)
    places: dict[str, list[HostStall]] = {}
    for stall in stalls:
        if stall.is_regular and stall.length >= least:
            places.setdefault(_place(graph, stall), []).append(stall)
    if not places:
        return []
    where = max(places, key=lambda place: _total(places[place]))
    chosen = [stall for some in places.values() for stall in some]
    mine = places[where]
    seen = {stall.step for stall in mine}
    functions = Counter(stall.function for stall in chosen if stall.function)
    operators = Counter(stall.operator for stall in mine if stall.operator)
    lengths = [stall.length / 1e6 for stall in mine]
    often = (
        "in every step" if len(seen) == graph.steps else f"in {len(seen)} of {graph.steps} steps"
    )
    return draft(
        f"the host {_doing(operators)}, {where}, {often}",
        ("host",),
        _without(graph, chosen),
        [
            seconds_evidence(
                f"host time without any operator or call, {where}", case.where("host"), _total(mine)
            ),
            Evidence(
                what=f"shortest and longest: {min(lengths):.0f} and {max(lengths):.0f} ms; between "
                f"{mine[0].before or 'the start'} and {mine[0].after or 'the end of the step'}",
                where=case.where("host"),
            ),
            *(
                Evidence(what=f"most of it in {name}", where=case.where("Python functions"))
                for name, _ in functions.most_common(1)
            ),
        ],
        _after_stall(graph, known=bool(functions)),
        steady=2 * len({stall.step for stall in chosen}) > graph.steps,
    )


def _after_stall(graph: StepGraph, *, known: bool) -> Remedy:
    if known:
        return Remedy(change="move this work out of the step, or to another thread or process")
    change, command = _FIND_OUT.get(
        graph.profiler,
        (
            "record with_stack=True, or mark parts of the loop with torch.profiler.record_function",
            "torch.profiler.profile(..., with_stack=True)",
        ),
    )
    return Remedy(change=f"find out what it is: {change}", command=command)


def _doing(operators: Counter[str]) -> str:
    if operators:
        return f"runs {operators.most_common(1)[0][0]} for long"
    return "stalls outside any recorded operator or call"


def _place(graph: StepGraph, stall: HostStall) -> str:
    """Where in the step a stall lies, in words; after the last call comes the next step's first."""
    line = graph.line
    if graph.profiler == "xplane":
        return "before the next program is launched"
    row = stall.call % len(line)
    phase, before = int(line.phase[row]), int(line.phase[row - 1])
    if before == OPTIMIZER and phase != OPTIMIZER:
        return "between the optimizer and the forward pass"
    if phase == OPTIMIZER:
        inside = before == OPTIMIZER
        return "in the optimizer" if inside else "between the backward pass and the optimizer"
    if phase == BACKWARD:
        return "in the backward pass"
    mine = (line.step == line.step[row]) & (np.arange(len(line)) < row)
    if not (line.call[mine] == Call.LAUNCH).any():
        return "before the forward pass"
    return "in the forward pass"


_FIND_OUT = {
    "xplane": ("mark parts of the loop", "with jax.profiler.TraceAnnotation('...'): ..."),
    "nsys": ("mark parts of the loop with NVTX ranges", "with torch.cuda.nvtx.range('...'): ..."),
}
"""How to learn more of a stall, by profiler: the change and the command."""


def pageable_copy(case: TraceCase) -> Outcome:
    graph = case.graph
    rows = uploads(graph)
    if not rows.any():
        return []
    device = graph.device
    size = np.maximum(device.bytes, 0)
    calls = np.zeros(len(graph.line), bool)
    calls[device.call[rows]] = True
    pinned = size / PINNED_BYTES_PER_SECOND * 1e9
    faster = np.minimum(pinned / np.maximum(device.seconds * 1e9, 1.0), 1.0)
    around = _around(graph, calls, _stalls(case, ("",)))
    edit = all_of((without_waits(calls), with_device_times(rows, faster), _without(graph, around)))
    return draft(
        f"{format_count(rows.sum() / graph.steps, 'copy', 'copies')} in a step from pageable memory, "
        "which blocks the host",
        ("copy", "host"),
        edit,
        [
            Evidence(
                what="bytes copied in a step",
                where=case.where("Memcpy HtoD (Pageable)"),
                value=float(size[rows].sum()) / graph.steps,
                unit="B/step",
            )
        ],
        Remedy(
            change="pin host memory and copy without blocking, ahead of the step",
            command=command("pin", case.framework),
            risk="pinned memory cannot be swapped: limit it to the batches in flight",
        ),
        least_seconds=_pinning_seconds(graph, calls),
    )


def _around(graph: StepGraph, calls: Rows, stalls: list[HostStall]) -> list[HostStall]:
    """Stalls right before or after an upload that are there for it: no longer than it (memory that is
    got and given back), or an operator on the host that puts together what is copied next.
    """
    line = graph.line
    kept = []
    for stall in stalls:
        near = np.arange(max(stall.call - 2, 0), min(stall.call + 1, len(line)))
        near = near[calls[near]]
        made = stall.call < len(line) and calls[stall.call] and stall.operator.startswith("aten::")
        if made or (len(near) and stall.length <= (line.end[near] - line.start[near]).max()):
            kept.append(stall)
    return kept


def _pinning_seconds(graph: StepGraph, calls: Rows) -> float:
    """Time that a loader's thread takes to pin a step's batches: as long as the copies take now."""
    if not graph.has_workers:
        return 0.0
    line = graph.line
    return float((line.end[calls] - line.start[calls]).sum()) / 1e9 / graph.steps


def checkpoint_stall(case: TraceCase) -> Outcome:
    graph = case.graph
    calls = saving_calls(graph)
    marked = [stall for stall in graph.stalls if stall.mark == "checkpoint"]
    if not calls.any() and not marked:
        return []
    saving = saving_gaps(graph)
    mine = [
        stall
        for stall in graph.stalls
        if stall.mark == "checkpoint"
        or (stall.call < len(calls) and saving[stall.call])
        or (stall.call >= len(calls) and len(calls) and calls[-1])
    ]
    edit = all_of((without_calls(calls), _without(graph, mine)))
    launched = graph.device.call
    copied = (launched >= 0) & calls[np.maximum(launched, 0)]
    steps = len(set(graph.line.step[calls].tolist()) | {stall.step for stall in marked})
    often = " in every step" if steps == graph.steps else f" in {steps} of {graph.steps} steps"
    drafts: list[Draft] = draft(
        f"training stops while a checkpoint is written{often}",
        ("checkpoint", "host", "copy"),
        edit,
        [
            Evidence(
                what="copied to the host for it",
                where=case.where("Memcpy DtoH (Pageable)"),
                value=float(np.maximum(graph.device.bytes[copied], 0).sum()),
                unit="B",
            ),
            seconds_evidence(
                "host time around these copies, without any operator",
                case.where("host"),
                _total(mine),
            ),
        ],
        Remedy(
            change="save less often, or in the background from a copy in host memory, which still "
            "has to be made",
            command=command("checkpoint", case.framework),
            risk="the window may hold more checkpoints than the rest of the run, whose share is "
            "then smaller",
        ),
        steady=2 * steps > graph.steps,
    )
    return drafts
