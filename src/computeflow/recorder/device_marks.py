"""Where the device is when the host ends a span: events in a ring, read when they are done.

Nothing waits for the device. An event's time on the device is that of the base event plus what lies
between them; the host's clock is its own. The device never comes before the host that sent it, so the
least difference ever seen is that of an idle device, and what an event has more is the device's lead
behind the host.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from computeflow.recorder.frames import Record
from computeflow.recorder.process_recorder import Recorder
from computeflow.recorder.steps import Span, Step

_MAX_PENDING = 64
"""Steps whose events are waited for; older ones go without."""
_BASE_SECONDS = 600.0
"""A base event is used so long: single precision keeps a microsecond of ten minutes."""
_MEMORY_SECONDS = 5.0
_RISE_PER_SECOND = 2e-6
"""How fast the two clocks may drift apart."""


def install(torch: Any, recorder: Recorder) -> None:
    recorder.on_start.append(lambda first: _describe(torch, recorder, first))


def _describe(torch: Any, recorder: Recorder, first: Record) -> None:
    """The device of this rank, and marks on it, once CUDA is in use."""
    first["device"] = "cpu"
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        at = torch.cuda.current_device()
        properties = torch.cuda.get_device_properties(at)
        first["device"] = "cuda"
        first["gpu"] = properties.name
        first["gpu_uuid"] = str(getattr(properties, "uuid", ""))
        marks = DeviceMarks(torch, recorder)
        recorder.watch.mark = marks.mark
        recorder.on_step.append(marks.step_ended)
        recorder.on_close.append(marks.left)
        recorder.on_idle.append(_Memory(torch, recorder, at).read)


class DeviceMarks:
    def __init__(self, torch: Any, recorder: Recorder) -> None:
        self._torch, self._recorder = torch, recorder
        self._capturing = torch.cuda.is_current_stream_capturing
        self._event = torch.cuda.Event
        self._free: list[Any] = []
        self._marks: list[tuple[Span, Any, int]] = []
        self._pending: deque[tuple[Step, list[tuple[Span, Any, int]]]] = deque()
        self._base: tuple[Any, int] | None = None
        self._offset: float | None = None
        self._offset_at = 0

    def mark(self, span: Span) -> None:
        """Record an event at the end of a span of the training thread; where it was resumed, anew."""
        resumed = bool(self._marks) and self._marks[-1][0] is span
        if (len(self._marks) >= 12 and not resumed) or self._capturing():
            return
        if resumed:
            event = self._marks.pop()[1]
        else:
            event = self._free.pop() if self._free else self._event(enable_timing=True)
        event.record()
        self._marks.append((span, event, span[2]))

    def step_ended(self, step: Step) -> None:
        marks, self._marks = self._marks, []
        if marks:
            step.extra["pending"] = True
            self._pending.append((step, marks))
        self._resolve()

    def left(self) -> list[Record]:
        """At the end: steps whose events nobody will ask for again."""
        steps = [step for step, _ in self._pending]
        self._pending.clear()
        return [self._recorder.record_of(step) for step in steps]

    def _resolve(self) -> None:
        while self._pending:
            step, marks = self._pending[0]
            if not marks[-1][1].query():
                if len(self._pending) <= _MAX_PENDING:
                    return
                marks = []
            self._pending.popleft()
            leads = self._leads(step, marks) if marks else []
            if leads:
                step.extra["v"] = leads
            if self._recorder.tape is not None:
                self._recorder.tape.put(step)
            keep = None if self._base is None else self._base[0]
            self._free += [event for _, event, _ in marks if event is not keep]

    def _leads(self, step: Step, marks: list[tuple[Span, Any, int]]) -> list[int]:
        if self._base is None or marks[-1][2] - self._base[1] > _BASE_SECONDS * 1e9:
            self._base = (marks[-1][1], marks[-1][2])
            self._offset = None
            return []
        base, based = self._base
        leads = []
        for span, event, host in marks:
            behind = base.elapsed_time(event) * 1e6 - (host - based)
            if self._offset is not None:
                self._offset += _RISE_PER_SECOND * max(0, host - self._offset_at)
            self._offset_at = host
            self._offset = behind if self._offset is None else min(self._offset, behind)
            index = _index(step.spans, span)
            if index is not None:
                leads += [index, round((behind - self._offset) / 1000)]
        return leads


def _index(spans: list[Span], span: Span) -> int | None:
    return next((i for i, each in enumerate(spans) if each is span), None)


class _Memory:
    """The allocator's figures, read by the writer's thread."""

    def __init__(self, torch: Any, recorder: Recorder, device: int) -> None:
        self._torch, self._recorder, self._device = torch, recorder, device
        self._at = 0.0

    def read(self, now: float) -> list[Record]:
        if now - self._at < _MEMORY_SECONDS:
            return []
        self._at = now
        stats = self._torch._C._cuda_memoryStats(self._device)
        allocated, reserved = (stats[f"{each}_bytes"]["all"] for each in ("allocated", "reserved"))
        return [
            {
                "k": "m",
                "t": self._recorder.since_now(),
                "allocated": allocated["current"],
                "peak": allocated["peak"],
                "reserved": reserved["current"],
                "retries": stats["num_alloc_retries"],
                "ooms": stats["num_ooms"],
            }
        ]
