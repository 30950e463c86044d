"""Writer of a trace with a track for every account, for Perfetto or any other viewer of Chrome's
format.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import BinaryIO

from computeflow.telemetry.kineto.chunks import FileReading, pieces
from computeflow.telemetry.traces.event_names import Call
from computeflow.telemetry.traces.rank import cut_rank
from computeflow.telemetry.traces.rank_measurements import MAX_NAME, TraceOptions
from computeflow.telemetry.traces.trace import Marks, Trace

MADE = "computeflow.accounts"
"""A key that marks files we wrote."""
_PROCESS = 1_000_000_007
"""A process id that no trace has; those after it hold the columns of other formats."""
_LINES = 1000
Spans = Iterable[tuple[str, int, int, int]]
"""Name, track, start and end."""


def perfetto_writer(trace: Trace, options: TraceOptions, ending: str) -> Callable[[BinaryIO], None]:
    """A function that writes the trace with its accounts. Events of a PyTorch trace are copied in
    pieces; for other formats, the columns are written. The ending ".gz" compresses.
    """

    def write(file: BinaryIO) -> None:
        if ending != ".gz":
            _write(file, trace, options)
            return
        with gzip.GzipFile(
            fileobj=file, mode="wb", compresslevel=3, mtime=0, filename=""
        ) as packed:
            _write(packed, trace, options)

    return write


def _write(file: BinaryIO | gzip.GzipFile, trace: Trace, options: TraceOptions) -> None:
    kept = {name: value for name, value in trace.header.items() if name and name != "traceEvents"}
    header = {MADE: True} | kept
    opening = json.dumps(header, allow_nan=True)[:-1]
    file.write(opening.encode() + (b", " if header else b"") + b'"traceEvents": [\n')

    if trace.origin.kind == "kineto":
        for _ in pieces(FileReading(trace.path, raw=lambda text: _put(file, text))):
            pass
    else:
        for line in _column_events(trace):
            _put(file, line.encode())
    lines = _account_events(trace, options)
    file.write(next(lines).encode())
    for line in lines:
        file.write(b",\n" + line.encode())
    file.write(b"\n]}\n")


def _put(file: BinaryIO | gzip.GzipFile, text: bytes) -> None:
    file.write(text + b",\n")


def _column_events(trace: Trace) -> Iterator[str]:
    """The device's work by stream; calls, operators and annotations of the host by thread."""
    device, calls = trace.device, trace.calls
    works = zip(
        device.name.tolist(),
        device.stream.tolist(),
        device.start.tolist(),
        device.end.tolist(),
        strict=True,
    )
    called = zip(
        calls.call.tolist(),
        calls.thread.tolist(),
        calls.start.tolist(),
        calls.end.tolist(),
        strict=True,
    )
    yield from _process(trace, 1, "the device: streams", ((trace.names[n], *r) for n, *r in works))
    named = ((Call(code).name.lower(), *rest) for code, *rest in called)
    yield from _process(trace, 2, "the host: calls", named)
    yield from _process(trace, 3, "the host: operators", _marked(trace, trace.operators))
    yield from _process(trace, 4, "the host: annotations", _marked(trace, trace.marks))


def _marked(trace: Trace, marks: Marks) -> Spans:
    columns = marks.name, marks.thread, marks.start, marks.end
    for name, *rest in zip(*(column.tolist() for column in columns), strict=True):
        yield trace.names[name], *rest


def _process(trace: Trace, number: int, title: str, spans: Spans) -> Iterator[str]:
    spans = iter(spans)
    first = next(spans, None)
    if first is None:
        return
    yield _event("process_name", "M", 0, _PROCESS + number, args={"name": title})
    for name, track, start, end in chain((first,), spans):
        times = {"ts": trace.base + start / 1e3, "dur": (end - start) / 1e3}
        yield _event(name[:MAX_NAME], "X", track, _PROCESS + number, **times)


def _account_events(trace: Trace, options: TraceOptions) -> Iterator[str]:
    """Metadata and intervals of the accounts as JSON objects, many to a string."""
    parts = cut_rank(trace, options)
    yield _event("process_name", "M", 0, args={"name": "ComputeFlow: accounts"})
    tracks = {
        **parts.accounts,
        **{f"host: {name}": intervals for name, intervals in parts.host.items()},
    }
    for track, (name, intervals) in enumerate(tracks.items(), start=1):
        if not len(intervals):
            continue
        yield _event("thread_name", "M", track, args={"name": name})
        for first in range(0, len(intervals), _LINES):
            yield ",\n".join(
                _event(name, "X", track, ts=trace.base + start / 1e3, dur=(end - start) / 1e3)
                for start, end in zip(
                    intervals.start[first : first + _LINES].tolist(),
                    intervals.end[first : first + _LINES].tolist(),
                    strict=True,
                )
            )


def _event(name: str, phase: str, track: int, process: int = _PROCESS, **more: object) -> str:
    return json.dumps(
        {"ph": phase, "cat": "computeflow", "name": name, "pid": process, "tid": track, **more}
    )
