"""Collectives from PyTorch's flight recorder, read from memory on the writer's thread."""

from __future__ import annotations

import os
import pickle
import time
from itertools import pairwise
from typing import Any

from computeflow.recorder.frames import Record
from computeflow.recorder.process_recorder import Recorder

_ENTRIES = "512"
"""Entries of the ring, which is empty by default: a dump of so many takes a millisecond."""
_LEAST_SECONDS, _MOST_SECONDS = 0.4, 2.0
_COST = 2000
"""A dump is made every `_COST` times what the last one took, 0.05 % of one core; on a host so slow that
it would be old news by then, every two seconds (3.6 ms a dump on two slow cores: 0.2 %)."""
_MAX_RANKS = 1024
_MAX_ARRIVALS = 512
"""Arrivals in one record; of more, every second, third, ... sequence number is kept."""


def install(torch: Any, recorder: Recorder) -> None:
    os.environ.setdefault(_variable(torch), _ENTRIES)
    reader = FlightReader(torch, recorder)
    recorder.on_idle.append(reader.read)
    recorder.on_close.append(reader.read_now)


def _variable(torch: Any) -> str:
    """The variable that switches the flight recorder on; it was renamed in torch 2.9."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return "TORCH_FR_BUFFER_SIZE" if (major, minor) >= (2, 9) else "TORCH_NCCL_TRACE_BUFFER_SIZE"


class FlightReader:
    def __init__(self, torch: Any, recorder: Recorder) -> None:
        self._torch, self._recorder = torch, recorder
        self._next = 0.0
        self._seen = -1
        self._had_groups = False
        self._nccl = False
        self._told: set[str] = set()

    def read(self, now: float) -> list[Record]:
        if now < self._next:
            return []
        began = time.thread_time()
        records = self.read_now()
        pause = _COST * (time.thread_time() - began)
        self._next = now + min(max(_LEAST_SECONDS, pause), _MOST_SECONDS)
        return records

    def read_now(self) -> list[Record]:
        """All collectives since the last dump; the ring may have lost some of them."""
        distributed = self._torch.distributed
        if not distributed.is_available() or not self._groups(distributed):
            return []
        return self._records(self._entries())

    def _groups(self, distributed: Any) -> bool:
        """Whether groups are, or were, there: the dump outlives them."""
        self._had_groups = self._had_groups or distributed.is_initialized()
        return self._had_groups

    def _entries(self) -> list[dict[str, Any]]:
        c10d = self._torch._C._distributed_c10d
        dump = getattr(c10d, "_dump_fr_trace", None)
        if self._torch.distributed.is_initialized():
            self._nccl = "nccl" in self._torch.distributed.get_backend()
        if self._nccl:
            dump = getattr(c10d, "_dump_nccl_trace", None) or dump
        if dump is None:
            return []
        data = pickle.loads(
            dump(includeCollectives=True, includeStackTraces=False, onlyActive=False)
        )
        entries: list[dict[str, Any]] = data.get("entries", [])
        return entries

    def _records(self, entries: list[dict[str, Any]]) -> list[Record]:
        """New entries, by group and operation; ids go up by one in one process."""
        new = [each for each in entries if each["record_id"] > self._seen]
        if not new:
            return []
        self._seen = max(each["record_id"] for each in new)
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for each in new:
            group = str((each.get("process_group") or ("", ""))[0])
            groups.setdefault((group, each["profiling_name"]), []).append(each)
        return [self._record(*key, kept) for key, kept in groups.items()]

    def _record(self, group: str, name: str, entries: list[dict[str, Any]]) -> Record:
        numbers = [
            each.get("p2p_seq_id" if each.get("is_p2p") else "collective_seq_id") or 0
            for each in entries
        ]
        every = -(-len(entries) // _MAX_ARRIVALS)
        if every > 1:
            entries = [
                each for each, number in zip(entries, numbers, strict=True) if number % every == 0
            ]
            numbers = [number for number in numbers if number % every == 0]
        since = self._recorder.since_unix
        times = [since(each["time_created_ns"]) for each in entries]
        sizes = [_bytes(each) for each in entries]
        backend, _, operation = name.rpartition(":")
        record: Record = {
            "k": "c",
            "g": group,
            "o": operation,
            "by": backend,
            "q": numbers[0]
            if numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            else numbers,
            "a": times[:1] + [b - a for a, b in pairwise(times)],
            "z": sizes[0] if len(set(sizes)) == 1 else sizes,
        }
        if every > 1:
            record["every"] = every
        if group not in self._told:
            self._told.add(group)
            record["r"] = self._ranks(group)
        return record

    def _ranks(self, group: str) -> list[int]:
        """The ranks of a group, told once."""
        world = self._torch.distributed.distributed_c10d._world
        for each, name in world.pg_names.items():
            if str(name) == group:
                return sorted(world.pg_group_ranks[each])[:_MAX_RANKS]
        return []


_SIZES = {
    "Float": 4,
    "BFloat16": 2,
    "Half": 2,
    "Double": 8,
    "Long": 8,
    "Int": 4,
    "Byte": 1,
    "Bool": 1,
}


def _bytes(entry: dict[str, Any]) -> int:
    total = 0
    for shape, kind in zip(
        entry.get("input_sizes", ()), entry.get("input_dtypes", ()), strict=False
    ):
        count = 1
        for size in shape:
            count *= size
        total += count * _SIZES.get(kind, 1)
    return total
