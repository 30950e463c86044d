"""The GPUs in an export, and the processes that used them: a GPU is a rank.

A device number is a process's own where the process sees only its GPUs. `TARGET_INFO_CUDA_DEVICE`
says which GPU it is; without it, numbers are assumed to be the GPUs' own where no two processes
have most of their work on the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from computeflow.files.limits import RECORDED_DEVICES
from computeflow.telemetry.nsys.database import Database

WORK = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernels",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "CUDA graphs",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "copies",
    "CUPTI_ACTIVITY_KIND_MEMSET": "memory sets",
}
"""Tables with work of a device, and what they hold."""
_PID = 24
"""Bits of a thread in a serialised identifier; those of its process follow (Nsight Systems User
Guide, SQLite examples: serialized process and thread identifiers)."""

_IDENTIFIED = -2
"""Stands for a process where the number is Nsight's own number of the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    parts: tuple[tuple[int, int], ...]
    """Process (-1 where unknown) and device number, the pair with most work first."""
    name: str
    identity: int | None
    """Nsight's own number of the GPU."""

    @property
    def process(self) -> int | None:
        number = self.parts[0][0]
        return (number >> _PID) & 0xFFFFFF if number >= 0 else None

    @property
    def device(self) -> int:
        return self.parts[0][1]


def find_gpus(database: Database) -> tuple[list[Gpu], list[str]]:
    """GPUs in order of device and process, and notes on what was assumed."""
    busy, names = _busy(database), _names(database)
    keys, notes = _keys(busy, _known(database))
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for pair in sorted(busy, key=lambda pair: -busy[pair]):
        groups.setdefault(keys[pair], []).append(pair)
    only = next(iter(names.values())) if len(set(names.values())) == 1 else ""
    gpus = []
    for key in sorted(groups, key=lambda key: (groups[key][0][1], groups[key][0][0])):
        identity = key[0] if key[1] == _IDENTIFIED else None
        name = only if identity is None else names.get(identity, only)
        gpus.append(Gpu(parts=tuple(groups[key]), name=name, identity=identity))
    if len(gpus) > RECORDED_DEVICES:
        notes.append(f"{len(gpus) - RECORDED_DEVICES:,} more GPUs are left out")
    return gpus[:RECORDED_DEVICES], notes


def _keys(
    busy: Mapping[tuple[int, int], float], known: Mapping[tuple[int, int], int]
) -> tuple[dict[tuple[int, int], tuple[int, int]], list[str]]:
    """A key for each process and device, equal where they are one GPU; and a note where that is
    assumed.
    """
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
    return keys, ["several processes use the same device number: each is assumed to be another GPU"]


def _busy(database: Database) -> dict[tuple[int, int], float]:
    """Seconds of work by process and device."""
    seconds: dict[tuple[int, int], float] = {}
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
                seconds[key] = seconds.get(key, 0.0) + float(nanoseconds) / 1e9
    return seconds


def _known(database: Database) -> dict[tuple[int, int], int]:
    """The GPU of each process's devices."""
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
