"""Parts of a step graph that rules look for: uploads, reading of values, passes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from computeflow.replay.edits import Rows
from computeflow.replay.saving import rows_named
from computeflow.telemetry.traces.step_graph import BACKWARD, OPTIMIZER, StepGraph

_SMALL_BYTES = 1 << 16
"""A smaller copy to the host is a value that is read, not data that is moved."""
_BEGINNING = 0.05
"""Share of a pass's calls in which frameworks still prepare it: the Trainer and Accelerate count tokens
in the first 2 %."""
_NEAR = 12
"""Most calls between two values that are read for the reads to be one run."""
_MIN_READS = 8
"""Fewest reads of a run whose computation is for them alone."""


def uploads(graph: StepGraph) -> Rows:
    """Device rows of blocking copies from pageable memory, without small values."""
    line, device = graph.line, graph.device
    rows = rows_named(graph, "HtoD", "ageable") & (device.call >= 0)
    rows &= device.bytes >= _SMALL_BYTES
    return np.asarray(rows & line.waited[np.maximum(device.call, 0)])


def reading_runs(graph: StepGraph, waiting: Rows) -> Rows:
    """Calls inside of long runs of values that are read one after the other: what is computed there is
    computed to be read.
    """
    calls = np.zeros(len(graph.line), bool)
    for run in places_of(waiting):
        if len(run) >= _MIN_READS:
            calls[run[0] + 1 : run[-1] + 1] = True
    return calls & ~np.isin(graph.line.phase, (OPTIMIZER, BACKWARD))


def places_of(calls: Rows) -> list[NDArray[np.int64]]:
    """Calls that lie near each other, as one place each."""
    rows = np.flatnonzero(calls)
    if not len(rows):
        return []
    return np.split(rows, np.flatnonzero(np.diff(rows) > _NEAR) + 1)


def in_long_runs(graph: StepGraph, calls: Rows) -> Rows:
    """Those of the calls that are one of many at their place."""
    found = np.zeros(len(graph.line), bool)
    for run in places_of(calls):
        found[run] = len(run) >= _MIN_READS
    return found


def frozen_passes(graph: StepGraph, calls: Rows) -> Rows:
    """Those of the calls of forward passes without autograd that lie before the backward pass of their
    step, in most steps: a teacher or a reference model, whose output the loss needs. Evaluation comes
    after the optimizer, or in few steps.
    """
    line = graph.line
    found = np.zeros(len(line), bool)
    steps = set()
    for step in range(graph.steps):
        rows = np.flatnonzero(line.step == step)
        back = rows[line.phase[rows] == BACKWARD]
        updated = rows[line.phase[rows] == OPTIMIZER]
        before = rows[calls[rows] & (rows < back.max(initial=-1))]
        before = before[before < updated.min(initial=len(line))]
        found[before] = True
        steps |= {step} if len(before) else set()
    return found if 2 * len(steps) > graph.steps else np.zeros_like(found)


def within_passes(graph: StepGraph, calls: Rows) -> Rows:
    """Those of the calls that lie within a pass, not at its beginning."""
    passes = passes_of(graph)
    found = np.zeros(len(graph.line), bool)
    for step in range(graph.steps):
        for number in range(int(passes.max(initial=-1)) + 1):
            rows = np.flatnonzero((graph.line.step == step) & (passes == number))
            found[rows[int(_BEGINNING * len(rows)) :]] = True
    return found & calls


def passes_of(graph: StepGraph) -> NDArray[np.int32]:
    """The pass within its step that each call belongs to: a forward pass and the backward pass after
    it; -1 for the optimizer and for what comes after the last backward pass.
    """
    line = graph.line
    back = line.phase == BACKWARD
    number = np.full(len(line), -1, np.int32)
    for step in range(graph.steps):
        rows = np.flatnonzero(line.step == step)
        mine = back[rows]
        if not mine.any():
            continue
        begins = mine & ~np.concatenate([[False], mine[:-1]])
        runs = np.flatnonzero(begins)
        runs = runs[_long_apart(runs, mine)]
        ends = np.array([_run_end(mine, run) for run in runs.tolist()])
        number[rows] = np.searchsorted(ends, np.arange(len(rows)), side="left")
        number[rows[number[rows] >= len(ends)]] = -1
    number[line.phase == OPTIMIZER] = -1
    return number


def _long_apart(runs: NDArray[np.int64], back: Rows) -> Rows:
    """Backward passes with a forward pass before them: as many calls as a third of the longest."""
    before = np.concatenate([[runs[0]], np.diff(runs)])
    other = np.array(
        [
            int((~back[start - length : start]).sum())
            for start, length in zip(runs.tolist(), before.tolist(), strict=True)
        ]
    )
    return np.asarray(other >= max(other.max() // 3, 1))


def _run_end(back: Rows, start: int) -> int:
    """Last call of a backward pass, which may be interrupted shortly."""
    rest = np.flatnonzero(~back[start:])
    return int(start + (rest[0] if len(rest) else len(back) - start) - 1)
