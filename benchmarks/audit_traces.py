"""Traces made from one recording, for prove_audit: copies of a rank, a slow rank, a very long run.

A recording is cut into its head (with the rank) and its events. A gzip file may have several members,
so copies share one compressed text of the events and differ in the head alone.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.intervals import Intervals, union
from computeflow.telemetry.kineto.chunks import FileReading, pieces
from computeflow.telemetry.kineto.kineto_events import KinetoEvent

SLOWER = 1.18
CLOCK = 7000
"""Difference between the clocks of neighbouring ranks, in microseconds."""
_RANK = re.compile(rb'"rank": \d+, "world_size": \d+')
_TIMES = re.compile(rb'"ts": (\d+)(?:, "dur": (\d+))?')
_NUMBERS = re.compile(rb'("ts": |"correlation": |"External id": |"id": |"ProfilerStep#)(\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    path: Path
    head: bytes
    """The text up to the opening bracket of the events."""
    events: bytes
    """The text from there to the end of the file."""

    def head_of(self, rank: int, world: int) -> bytes:
        head, count = _RANK.subn(b'"rank": %d, "world_size": %d' % (rank, world), self.head)
        if count != 1:
            raise ValueError(f"{self.path.name}: its rank is not where it was")
        return head


def read_recording(path: Path) -> Recording:
    text = gzip.decompress(path.read_bytes())
    at = text.index(b'"traceEvents": [') + len(b'"traceEvents": [')
    return Recording(path=path, head=text[:at], events=text[at:])


def write_copies(recording: Recording, folder: Path, ranks: int) -> Path:
    """Write one rank's trace many times, numbered as the ranks of one job."""
    folder.mkdir()
    events = gzip.compress(recording.events, 6, mtime=0)
    for rank in range(ranks):
        write_rank(folder, recording.head_of(rank, ranks), rank, events)
    return folder


def write_rank(folder: Path, head: bytes, rank: int, events: bytes) -> None:
    packed = gzip.compress(head, 6, mtime=0) + events
    (folder / f"rank-{rank}.json.gz").write_bytes(packed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    folder: Path
    rank: int
    waited_seconds: float
    """Seconds that each of the others waits, as built."""


def write_slow_rank(recording: Recording, folder: Path, ranks: int, slow: int) -> SlowRank:
    """Write a job in which one rank's kernels take longer by `SLOWER`.

    Its collectives begin later by the time it has lost since the last one, and end when those of the
    others do: those begin as before and last longer by as much. What follows moves along, on the host
    too. Every rank's clock is ahead of the one before by `CLOCK`.
    """
    folder.mkdir()
    busy, starts, ends = _device(recording.path)
    lost = np.rint((SLOWER - 1) * busy.before(starts)).astype(np.int64)
    lost = np.maximum.accumulate(lost)

    def late(times: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(times + np.rint((SLOWER - 1) * busy.before(times)).astype(np.int64))

    def held_up(times: NDArray[np.int64]) -> NDArray[np.int64]:
        done = np.searchsorted(ends, times, side="right")
        return np.asarray(times + np.where(done > 0, lost[np.maximum(done - 1, 0)], 0))

    written = [tuple(map(int, match.groups(b"-1"))) for match in _TIMES.finditer(recording.events)]
    times = np.array(written, np.int64)
    for rank in range(ranks):
        moved = late if rank == slow else held_up
        start = moved(times[:, 0])
        length = moved(times[:, 0] + np.maximum(times[:, 1], 0)) - start
        lengths = np.where(times[:, 1] < 0, -1, length)
        text = _retimed(recording.events, start + CLOCK * rank, lengths)
        write_rank(folder, recording.head_of(rank, ranks), rank, gzip.compress(text, 1, mtime=0))
    return SlowRank(folder=folder, rank=slow, waited_seconds=float(lost[-1]) / 1e6)


def _device(path: Path) -> tuple[Intervals, NDArray[np.int64], NDArray[np.int64]]:
    """Busy time of kernels other than collectives, and the collectives' starts and ends, in µs."""
    busy: list[tuple[int, int]] = []
    talk: list[tuple[int, int]] = []
    for events in pieces(FileReading(path)):
        for event in events:
            if isinstance(event, KinetoEvent) and event.cat == "kernel":
                times = int(event.ts), int(event.ts + event.dur)
                (talk if event.name.startswith("nccl") else busy).append(times)
    kernels, collectives = np.array(sorted(busy)), np.array(sorted(talk))
    return union(kernels[:, 0], kernels[:, 1]), collectives[:, 0], collectives[:, 1]


def _retimed(text: bytes, start: NDArray[np.int64], length: NDArray[np.int64]) -> bytes:
    """The same events in order at new times; a negative duration is dropped."""
    new = zip(start.tolist(), length.tolist(), strict=True)

    def put(_: re.Match[bytes]) -> bytes:
        ts, dur = next(new)
        return b'"ts": %d, "dur": %d' % (ts, dur) if dur >= 0 else b'"ts": %d' % ts

    return _TIMES.sub(put, text)


def write_long(recording: Recording, path: Path, size: int) -> int:
    """Write an uncompressed run of at least so many bytes: the events repeated, each time later by the
    recording's length, with correlations, ids and steps of their own. Returns how often.
    """
    end = recording.events.rindex(b"]")
    body = recording.events[:end].rstrip()
    count = -(-size // len(body))
    with path.open("wb") as file:
        file.write(recording.head)
        for number, text in enumerate(_again(body, count)):
            file.write(b"," * (number > 0) + text)
        file.write(recording.events[end:])
    return count


def _again(body: bytes, count: int) -> Iterator[bytes]:
    parts = _NUMBERS.split(body)  # text, what is numbered, number, text, ...
    kinds, values = parts[1::3], np.array([int(number) for number in parts[2::3]], np.int64)
    is_time = np.array([kind == b'"ts": ' for kind in kinds])
    is_step = np.array([kind == b'"ProfilerStep#' for kind in kinds])
    shift = np.where(is_step, np.ptp(values[is_step]) + 1, values[~is_time].max() + 1)
    shift[is_time] = np.ptp(values[is_time]) + 1_000_000  # a second: longer than any event
    for number in range(count):
        parts[2::3] = [b"%d" % value for value in (values + number * shift).tolist()]
        yield b"".join(parts)
