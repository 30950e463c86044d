"""Times of steps with the fault on and off, then a profiled stretch with it on: `Meter`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.ranks.cases import Case
from benchmarks.ranks.faults import Fault

WARM_STEPS, PAIRS, SETTLE_STEPS = 4, 3, 2
"""The first step of each block, where both states mix, is run but not counted."""

FILE_NAMES = {
    "ddp": "rank{rank}.trace.json.gz",
    "fsdp2": "trace_rank_{rank}.json.gz",
    "hsdp": "rank-{rank}.pt.trace.json.gz",
    "pipeline": "pp_rank{rank}.json.gz",
    "tensor": "tp-rank{rank}.trace.json.gz",
}


def switch_plan(pairs: int, block_steps: int) -> list[bool]:
    """Whether the fault is on, for each step before the profiled ones."""
    blocks = [on for _ in range(pairs) for on in (True, False)]
    plan = [False] * WARM_STEPS + [on for on in blocks for _ in range(block_steps + 1)]
    return plan + [True] * SETTLE_STEPS


class Meter:
    """Called by a script at the end of each step; ends the run by `done`."""

    def __init__(self, case: Case, fault: Fault, folder: Path, block_steps: int) -> None:
        self.case, self.fault, self.folder = case, fault, folder
        self.plan = switch_plan(PAIRS, block_steps)
        self.block_steps = block_steps
        self.ends: list[float] = []
        self.profiler: profile | None = None
        self.done = False
        skipped = 2 if case.marked else 0  # one step of waiting, one of warming up
        self.total = len(self.plan) + skipped + case.profiled_steps

    def end_step(self) -> None:
        self.ends.append(time.perf_counter())
        step = len(self.ends)
        if self.profiler is not None and self.case.marked:
            self.profiler.step()
        if step == len(self.plan):
            self._start_profiler()
        if step == self.total:
            self._stop_profiler()
            self.done = True
        self.fault.step = step
        self.fault.on = step >= len(self.plan) or self.plan[step]

    def _start_profiler(self) -> None:
        marks = schedule(wait=1, warmup=1, active=self.case.profiled_steps, repeat=1)
        self.profiler = profile(
            activities=[ProfilerActivity.CPU],
            schedule=marks if self.case.marked else None,
            record_shapes=self.case.shapes,
            on_trace_ready=self._export,
        )
        self.profiler.start()

    def _export(self, profiler: profile) -> None:
        family = self.case.script.split("_")[0]
        pattern = FILE_NAMES.get(family, "host_rank{rank}.1763287200.pt.trace.json.gz")
        profiler.export_chrome_trace(str(self.folder / pattern.format(rank=self.fault.rank)))

    def _stop_profiler(self) -> None:
        assert self.profiler is not None
        self.profiler.stop()

    def write(self, path: Path) -> None:
        times = {"ends": self.ends, "block_steps": self.block_steps, "torch": torch.__version__}
        path.write_text(json.dumps(times))
