"""Short windows of PyTorch's profiler, on all ranks at the same step, when a command asks for one."""

from __future__ import annotations

import atexit
import os
import threading
from time import perf_counter_ns
from typing import Any

from computeflow.recorder.commands import Command
from computeflow.recorder.identity import rank_and_world
from computeflow.recorder.process_recorder import Recorder
from computeflow.recorder.steps import WINDOW, Step

_STEPS = 3
_MAX_STEPS = 50
_SILENT = "99"
"""The profiler's own log level: it would write to the run's stderr."""
_EXIT_SECONDS = 30.0
"""Most time that the end of a process waits for a trace that is being written."""


def install(torch: Any, recorder: Recorder) -> None:
    os.environ.setdefault("KINETO_LOG_LEVEL", _SILENT)
    windows = Windows(torch, recorder)
    recorder.on_command["window"] = windows.begin
    recorder.on_step.append(windows.step_ended)


class Windows:
    """One window at a time; its steps are marked, and what it costs is a span and an event."""

    def __init__(self, torch: Any, recorder: Recorder) -> None:
        self._torch, self._recorder = torch, recorder
        self._profiler: Any = None
        self._left = 0
        self._first = 0
        self._began = 0
        self._writer: threading.Thread | None = None

    def begin(self, command: Command) -> str:
        if self._profiler is not None:
            return "refused: a window is open"
        steps = command.get("steps", _STEPS)
        if not isinstance(steps, int) or not 1 <= steps <= _MAX_STEPS:
            return f"refused: a window has 1 to {_MAX_STEPS} steps"
        span = self._recorder.watch.begin(WINDOW)
        try:
            self._start()
        finally:
            self._recorder.watch.end(span)
        self._left, self._first = steps + 1, self._recorder.watch.steps + 2
        self._began = perf_counter_ns()
        self._recorder.watch.profiling = True
        return "started"

    def _start(self) -> None:
        from torch.profiler import ProfilerAction, ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self._torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        profiler = profile(  # with a schedule, its steps are marked in the trace
            activities=activities, record_shapes=True, schedule=lambda _: ProfilerAction.RECORD
        )
        profiler.start()
        self._profiler = profiler
        atexit.unregister(self._close)
        atexit.register(self._close)

    def _close(self) -> None:
        """An interpreter that ends under its profiler, or beside a writer, may crash."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            self._recorder.guarded("window", profiler.stop)
        if self._writer is not None:
            self._writer.join(_EXIT_SECONDS)

    def step_ended(self, _: Step) -> None:
        """The first step of a window warms it up: it began in the middle of a queue."""
        if self._profiler is None:
            return
        self._left -= 1
        if self._left > 0:
            self._profiler.step()
            return
        profiler, self._profiler = self._profiler, None
        span = self._recorder.watch.begin(WINDOW)
        try:
            profiler.stop()
        finally:
            self._recorder.watch.end(span)
        self._writer = threading.Thread(
            target=self._written, args=(profiler, self._first), daemon=True
        )
        self._writer.start()

    def _written(self, profiler: Any, first: int) -> None:
        """Write the trace beside training; steps until it is written are the window's too."""
        self._recorder.guarded("window", self._write, profiler, first)
        self._recorder.watch.profiling = self._profiler is not None

    def _write(self, profiler: Any, first: int) -> None:
        folder = self._recorder.folder / "kineto"
        folder.mkdir(exist_ok=True)
        rank, _, _ = rank_and_world()
        path = folder / f"rank-{rank:05d}.step-{first:06d}.json.gz"
        part = folder / f".{path.name}"
        profiler.export_chrome_trace(str(part))
        part.replace(path)
        self._recorder.event("window", self._began, perf_counter_ns(), text=path.name)
