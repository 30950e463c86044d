"""Traces of single GPUs in an Nsight Systems export: `read_gpu`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.telemetry.nsys.database import Database
from computeflow.telemetry.nsys.gpus import WORK, Gpu
from computeflow.telemetry.nsys.nvtx_ranges import find_steps, read_ranges
from computeflow.telemetry.traces.event_names import Call, EventTable, WorkKind, call_of, work_of
from computeflow.telemetry.traces.launches import BEFORE, launches
from computeflow.telemetry.traces.trace import (
    Calls,
    DeviceWork,
    Ints,
    Marks,
    Origin,
    Products,
    Trace,
    TraceStep,
)

_COPIES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD",
          9: "HtoH", 10: "PtoP", 11: "HtoD, unified", 12: "DtoH, unified",
          13: "DtoD, unified"}  # fmt: skip
_PLACES = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device",
    6: "Managed",
}
"""Names of CUPTI's numbers (CUpti_ActivityMemcpyKind, CUpti_ActivityMemoryKind, as
`ENUM_CUDA_MEM_KIND`)."""
_WAITS_ON_DEVICE = 2
"""A value of `ENUM_CUPTI_SYNC_TYPE`: a stream waits, not the host."""
_LATEST = 2**60
_KERNEL, _GRAPH, _COPY, _SET = WORK
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_BITS = 40
"""Bits of a correlation number; the index of the process stands above them."""


NEEDS = {
    "compute.model": "FLOPs: an Nsight export has no shapes of operators; name the model (--model)",
    "compute.clock": "readings of the device's clock",
    "compute.recompute": "ranges of autograd (torch.autograd.profiler.emit_nvtx)",
    "input": "an NVTX range: data_load",
    "checkpoint": "an NVTX range: checkpoint",
    "evaluation": "an NVTX range: evaluation",
    "optimizer": "an NVTX range: optimizer_step",
    "host": "CUDA API calls (nsys profile --trace=cuda)",
}


class _Names(dict[str, int]):
    def __missing__(self, name: str) -> int:
        self[name] = number = len(self)
        return number


def read_gpu(database: Database, gpu: Gpu) -> Trace:
    """The GPU's work, the calls of its processes that launched it or blocked them, and their
    ranges.
    """
    return _Reading(database, gpu).read()


class _Reading:
    def __init__(self, database: Database, gpu: Gpu) -> None:
        self.database, self.gpu = database, gpu
        self.names, self.threads = _Names(), dict[int, int]()
        self.left_out: list[str] = []
        self.events = 0
        self.strange = 0

    def read(self) -> Trace:
        device = self._device()
        if not len(device):
            raise InputError(f"{self.database.path}: nothing ran on GPU {self.gpu.device}")
        zero = int(device.start[0]) // 1000 * 1000
        device = replace(device, start=device.start - zero, end=device.end - zero)
        calls = self._calls(device, zero)
        marks, families = self._marks(zero)
        trace = self._trace(device, calls, marks, zero)
        steps: tuple[TraceStep, ...] = ()
        steps_from = ""
        launched = launches(trace).start
        launched = np.sort(launched[launched > BEFORE]) + zero
        if len(launched):
            ranges, steps_from = find_steps(families, launched)
            steps = tuple(
                TraceStep(number=step.number, start=step.start - zero, end=step.end - zero)
                for step in ranges
            )
        if self.strange:
            self.left_out.append(f"{self.strange:,} rows without a valid time")
        return replace(
            trace,
            steps=steps,
            left_out=tuple(self.left_out),
            events=self.events,
            origin=replace(trace.origin, steps_from=steps_from),
        )

    def _trace(self, device: DeviceWork, calls: Calls, marks: Marks, zero: int) -> Trace:
        empty = np.zeros(0)
        offset = _unix_offset(self.database)
        whole, narrow = empty.astype(np.int64), empty.astype(np.int32)
        return Trace(
            path=self.database.path,
            base=zero / 1000,
            header={
                "deviceProperties": [{"name": self.gpu.name}],
                "baseTimeNanoseconds": offset or 0,
            },
            names=list(self.names),
            device=device,
            calls=calls,
            marks=marks,
            products=Products(
                start=whole,
                end=whole,
                thread=narrow,
                name=narrow,
                type=narrow,
                flops=empty,
                full=empty,
                elements=empty,
                scores=whole,
                shape=narrow,
            ),
            collectives={},
            operators=Marks(
                start=whole, end=whole, thread=narrow, mark=empty.astype(np.int8), name=narrow
            ),
            steps=(),
            events=0,
            needs=NEEDS,
            origin=Origin(
                kind="nsys",
                process=self.gpu.process,
                device=self.gpu.device,
                platform="gpu",
                on_clock=offset is not None,
            ),
        )

    def _device(self) -> DeviceWork:
        pieces: list[Ints] = []
        for part, (process, number) in enumerate(self.gpu.parts):
            where = "WHERE CAST(deviceId AS INTEGER) = ?"
            values = [number]
            for table in WORK:
                if not self.database.has(table, "start", "end", "deviceId"):
                    continue
                if self.database.has(table, "globalPid") and process >= 0:
                    pieces += self._work(
                        table, part, f"{where} AND globalPid = ?", [*values, process]
                    )
                else:
                    pieces += self._work(table, part, where, values)
        rows = _in_order(pieces, 7)
        return DeviceWork(
            start=rows[:, 0].copy(),
            end=rows[:, 1].copy(),
            name=rows[:, 2].astype(np.int32),
            stream=rows[:, 3].astype(np.int32),
            correlation=rows[:, 4].copy(),
            work=rows[:, 5].astype(np.int8),
            bytes=rows[:, 6].copy(),
        )

    def _work(self, table: str, part: int, where: str, values: Sequence[int]) -> list[Ints]:
        """Rows of start, end, name, stream, correlation, work and bytes."""
        columns = ["start", "end", "streamId", "correlationId", *_NAMED_BY[table]]
        pieces = []
        known: dict[tuple[int, ...], tuple[int, int]] = {}
        for rows in self.database.integers(table, columns, where, values):
            rows = self._timed(rows)
            keys, index = np.unique(rows[:, 4:7], axis=0, return_inverse=True)
            for key in map(tuple, keys.tolist()):
                if key not in known:
                    name, work = self._meaning(table, key)
                    known[key] = self.names[name], int(work)
            meaning = np.array([known[tuple(key)] for key in keys.tolist()], np.int64).reshape(
                -1, 2
            )
            name_work = meaning[index.reshape(-1)]
            pieces.append(
                np.column_stack(
                    [
                        rows[:, 0],
                        rows[:, 1],
                        name_work[:, 0],
                        rows[:, 2] & 0x7FFFFFFF,
                        _correlated(rows[:, 3], part),
                        name_work[:, 1],
                        rows[:, 7],
                    ]
                )
            )
        return pieces

    def _meaning(self, table: str, key: tuple[int, ...]) -> tuple[str, WorkKind]:
        if table == _KERNEL:
            numbers = np.array([number for number in key if number >= 0], np.int64)
            strings = self.database.strings(numbers)
            names = [strings[number] for number in key if strings.get(number)]
            name = names[0] if names else "(unnamed kernel)"
            return name, work_of(name, EventTable.GPU, "")
        if table == _GRAPH:
            return f"CUDA graph {key[0]}", WorkKind.COMPUTE
        if table == _SET:
            return "Memset (Device)", WorkKind.MEMORY
        kind, source, target = key
        ends = f"{_PLACES.get(source, '?')} -> {_PLACES.get(target, '?')}"
        name = f"Memcpy {_COPIES.get(kind, 'of unknown kind')} ({ends})"
        return name, work_of(name, EventTable.COPY, "")

    def _timed(self, rows: Ints) -> Ints:
        self.events += len(rows)
        good = (rows[:, 0] >= 0) & (rows[:, 1] >= rows[:, 0]) & (rows[:, 1] < _LATEST)
        self.strange += int((~good).sum())
        return np.asarray(rows[good])

    def _thread_rows(self) -> tuple[str, tuple[int, ...]]:
        """An SQL condition for threads of the GPU's processes."""
        processes = tuple(process for process, _ in self.gpu.parts if process >= 0)
        if not processes:
            return "1", ()
        marks = ", ".join("?" for _ in processes)
        return f"(globalTid & ~16777215) IN ({marks})", processes

    def _calls(self, device: DeviceWork, zero: int) -> Calls:
        where, processes = self._thread_rows()
        columns = ("start", "end", "globalTid", "correlationId", "nameId")
        pieces: list[Ints] = []
        known: dict[int, int] = {}
        used = np.unique(device.correlation)
        if self.database.has(_CALLS, "start", "end", "globalTid"):
            for rows in self.database.integers(_CALLS, columns, f"WHERE {where}", processes):
                rows = self._timed(rows)
                keys, index = np.unique(rows[:, 4], return_inverse=True)
                fresh = [key for key in keys.tolist() if key not in known]
                strings = self.database.strings(np.array(fresh, np.int64))
                known |= {key: int(call_of(strings.get(key, ""))) for key in fresh}
                call = np.array([known[key] for key in keys.tolist()], np.int64)[index]
                part = np.zeros(len(rows), np.int64)
                for position, process in enumerate(processes):
                    part[(rows[:, 2] & ~16777215) == process] = position
                number = np.where(rows[:, 3] >= 0, rows[:, 3] | (part << _BITS), -1)
                keep = (call != Call.OTHER) | np.isin(number, used)
                thread = self._threads(rows[keep, 2])
                pieces.append(
                    np.column_stack(
                        [rows[keep, 0], rows[keep, 1], number[keep], thread, call[keep]]
                    )
                )
        else:
            self.left_out.append("no CUDA API calls: who made the GPU wait is unknown")
            pieces += self._syncs()
        table = _in_order(pieces, 5)
        return Calls(
            start=table[:, 0] - zero,
            end=table[:, 1] - zero,
            correlation=table[:, 2].copy(),
            thread=table[:, 3].astype(np.int32),
            call=table[:, 4].astype(np.int8),
        )

    def _syncs(self) -> list[Ints]:
        """Intervals in which the host waited for the device."""
        if not self.database.has(_SYNCS, "start", "end", "syncType"):
            return []
        pieces = []
        for rows in self.database.integers(_SYNCS, ("start", "end", "syncType", "deviceId")):
            rows = self._timed(rows)
            rows = rows[(rows[:, 2] != _WAITS_ON_DEVICE) & (rows[:, 3] == self.gpu.device)]
            unknown = np.full(len(rows), -1, np.int64)
            call = np.full(len(rows), int(Call.SYNC), np.int64)
            pieces.append(np.column_stack([rows[:, 0], rows[:, 1], unknown, unknown, call]))
        return pieces

    def _threads(self, numbers: Ints) -> NDArray[np.int32]:
        """Small numbers for threads."""
        keys, index = np.unique(numbers, return_inverse=True)
        own = [self.threads.setdefault(key, len(self.threads)) for key in keys.tolist()]
        return np.asarray(np.array(own, np.int32)[index])

    def _marks(self, zero: int) -> tuple[Marks, list[Any]]:
        where, processes = self._thread_rows()
        ranges = read_ranges(self.database, f"AND {where}", processes, self.names)
        self.events += ranges.rows
        self.left_out += ranges.left_out
        table = _in_order([ranges.marks], 5)
        marks = Marks(
            start=table[:, 0] - zero,
            end=table[:, 1] - zero,
            thread=self._threads(table[:, 2]),
            mark=table[:, 3].astype(np.int8),
            name=table[:, 4].astype(np.int32),
        )
        return marks, ranges.families


_NAMED_BY = {
    _KERNEL: ("demangledName", "shortName", "mangledName", "-"),
    _GRAPH: ("graphId", "-", "-", "-"),
    _COPY: ("copyKind", "srcKind", "dstKind", "bytes"),
    _SET: ("-", "-", "-", "bytes"),
}
"""Columns that identify a row's work, and its size; "-" is in no table."""


def _in_order(pieces: Sequence[Ints], width: int) -> Ints:
    """One table sorted by start, the longest first."""
    table = np.concatenate(pieces) if pieces else np.zeros((0, width), np.int64)
    return np.asarray(table[np.lexsort((-table[:, 1], table[:, 0]))])


def _correlated(number: Ints, part: int) -> Ints:
    return np.asarray(np.where(number >= 0, number | (part << _BITS), -1))


def _unix_offset(database: Database) -> int | None:
    """Nanoseconds to add to the export's times for Unix time; None where unknown."""
    start, details = "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS"
    if not database.has(start, "utcEpochNs") or not database.has(details, "startTime"):
        return None
    utc = next(iter(database.integers(start, ("utcEpochNs",), "LIMIT 1")), None)
    begun = next(iter(database.integers(details, ("startTime",), "LIMIT 1")), None)
    if utc is None or begun is None:
        return None
    offset = int(utc[0, 0]) - int(begun[0, 0])
    return offset if 0 <= offset < 4 * 10**18 else None
