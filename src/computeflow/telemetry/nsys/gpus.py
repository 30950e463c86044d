"""Which GPUs an export has work of, and which process used them: a GPU is a rank.

A device number is a process's own where the process sees only its GPUs. `TARGET_INFO_CUDA_DEVICE` says
which GPU it is; without it, numbers are taken for the GPUs' own where no two processes have most of
their work on the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from computeflow.telemetry.nsys.database import Database

WORK = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernels",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "CUDA graphs",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "copies",
    "CUPTI_ACTIVITY_KIND_MEMSET": "memory sets",
}
"""Tables with work of a device."""
MOST_GPUS = 1024
_PID = 24
"""Bits of a thread in a serialised identifier; those of its process follow (Nsight Systems User Guide,
SQLite examples: serialized process and thread identifiers)."""

_IDENTIFIED = -2
"""In the place of a process: the number is Nsight's own of the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    parts: tuple[tuple[int, int], ...]
    """Process (-1 where it is not said) and device number, the one with most work first."""
    name: str
    identity: int | None
    """Nsight's own number of the GPU."""

    @property
    def process(self) -> int | None:
        found = self.parts[0][0]
        return (found >> _PID) & 0xFFFFFF if found >= 0 else None

    @property
    def device(self) -> int:
        return self.parts[0][1]


def find_gpus(database: Database) -> tuple[list[Gpu], list[str]]:
    """In order of device and process; and what was assumed of them."""
    busy, names = _busy(database), _names(database)
    keys, notes = _keys(busy, _known(database))
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for pair in sorted(busy, key=lambda pair: -busy[pair]):
        groups.setdefault(keys[pair], []).append(pair)
    only = next(iter(names.values())) if len(set(names.values())) == 1 else ""
    found = []
    for key in sorted(groups, key=lambda key: (groups[key][0][1], groups[key][0][0])):
        identity = key[0] if key[1] == _IDENTIFIED else None
        name = only if identity is None else names.get(identity, only)
        found.append(Gpu(parts=tuple(groups[key]), name=name, identity=identity))
    if len(found) > MOST_GPUS:
        notes.append(f"{len(found) - MOST_GPUS:,} more GPUs are left out")
    return found[:MOST_GPUS], notes


def _keys(
    busy: Mapping[tuple[int, int], float], known: Mapping[tuple[int, int], int]
) -> tuple[dict[tuple[int, int], tuple[int, int]], list[str]]:
    """What processes and devices with the same key are one GPU, and a note where that is assumed."""
    main: dict[int, tuple[float, int]] = {}
    for (process, device), seconds in busy.items():
        main[process] = max(main.get(process, (-1.0, 0)), (seconds, device))
    distinct = len({device for _, device in main.values()}) == len(main)
    keys = {}
    for process, device in busy:
        identity = known.get(((process >> _PID) & 0xFFFFFF, device))
        if identity is not None:
            keys[process, device] = identity, _IDENTIFIED
        else:
            keys[process, device] = device, -1 if distinct else process
    if distinct or all(process < 0 for _, process in keys.values()):
        return keys, []
    return keys, ["several processes use the same device number: each is taken for another GPU"]


def _busy(database: Database) -> dict[tuple[int, int], float]:
    """Seconds of work by process and device."""
    found: dict[tuple[int, int], float] = {}
    for table in WORK:
        if not database.has(table, "start", "end", "deviceId"):
            continue
        process = "globalPid" if database.has(table, "globalPid") else "NULL"
        query = (
            f"SELECT coalesce(CAST({process} AS INTEGER), -1), CAST(deviceId AS INTEGER), "
            f'total("end" - start) FROM {table} WHERE "end" > start GROUP BY 1, 2 LIMIT 65536'
        )
        for owner, device, nanoseconds in database.rows(query):
            if device is not None:
                key = int(owner), int(device)
                found[key] = found.get(key, 0.0) + float(nanoseconds) / 1e9
    return found


def _known(database: Database) -> dict[tuple[int, int], int]:
    """The GPU of a process's device."""
    table = "TARGET_INFO_CUDA_DEVICE"
    if not database.has(table, "gpuId", "cudaId", "pid"):
        return {}
    return {
        (pid, device): gpu
        for rows in database.integers(table, ("pid", "cudaId", "gpuId"), "LIMIT 65536")
        for pid, device, gpu in rows.tolist()
        if gpu >= 0
    }


def _names(database: Database) -> dict[int, str]:
    if not database.has("TARGET_INFO_GPU", "id", "name"):
        return {}
    query = "SELECT CAST(id AS INTEGER), substr(name, 1, 200) FROM TARGET_INFO_GPU LIMIT 4096"
    return {int(number): str(name) for number, name in database.rows(query) if number is not None}
