"""Source of memory snapshots: who held the memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from computeflow.errors import InputError
from computeflow.telemetry.memory.device_memory import device_memory
from computeflow.telemetry.memory.memory_facts import DeviceMemory, ProcessMemory
from computeflow.telemetry.memory.snapshot import Snapshot, read_snapshot
from computeflow.telemetry.source_reports import Event, SourceReport, SourceRequest
from computeflow.telemetry.traces.rank_identity import RANK_PATTERNS
from computeflow.units import format_si

_REASON = "a memory snapshot has times of allocations, not of work"


class MemorySnapshots:
    kind = "memory"

    def recognises(self, path: Path, head: bytes) -> bool:
        if head[:1] == b"\x80":
            named = b"segments" in head or b"blocks" in head
            return named and any(sign in head for sign in (b"total_size", b"device_traces"))
        opening = head.lstrip()[:1]
        return opening in (b"{", b"[") and (
            b'"device_traces"' in head or (b'"total_size"' in head and b'"blocks"' in head)
        )

    def observe(self, paths: Sequence[Path], request: SourceRequest) -> list[SourceReport]:
        """One report per process: memory of ranks is independent."""
        reports, left_out = [], []
        for path in paths:
            try:
                reports.append(_observed(read_snapshot(path), path))
            except InputError as error:
                left_out.append(str(error))
        if not reports:
            raise InputError("; ".join(left_out) or "no memory snapshot to read")
        reports[0] = replace(reports[0], left_out=(*reports[0].left_out, *left_out))
        return reports


def _observed(snapshot: Snapshot, path: Path) -> SourceReport:
    devices = [device_memory(snapshot, device) for device in snapshot.devices]
    if not devices:
        raise InputError(f"{path}: a memory snapshot without a device: nothing was allocated")
    rank = _rank(path)
    facts = ProcessMemory(rank=rank, devices=tuple(devices), settings=snapshot.settings)
    return SourceReport(
        kind=MemorySnapshots.kind,
        sources=(str(path),),
        facts=facts,
        ledger_reason=_REASON,
        happenings=tuple(
            Event(
                seconds=oom.seconds,
                what="out of memory",
                rank=rank,
                gpu=str(device.device),
                detail=f"{_bytes(oom.asked_bytes)} in {oom.where or 'no stack'}",
                fault=True,
            )
            for device in devices
            for oom in device.out_of_memory
        ),
        left_out=snapshot.left_out,
        notes=tuple(_notes(snapshot, devices)),
    )


def _bytes(value: float) -> str:
    return format_si(value, "B")


def _rank(path: Path) -> int | None:
    for pattern in RANK_PATTERNS:
        match = pattern.search(path.name)
        if match and len(match[1]) < 8:
            return int(match[1])
    return None


def _notes(snapshot: Snapshot, devices: Sequence[DeviceMemory]) -> list[str]:
    notes = [
        "memory that libraries take from the device themselves (NCCL, CUDA) is not in a snapshot"
    ]
    if not any(device.events for device in devices):
        notes.append(
            "no history: record it with torch.cuda.memory._record_memory_history(); peaks, growth and "
            "out-of-memory events are unknown"
        )
        return notes
    if not all(device.whole for device in devices):
        notes.append("the history begins after the first allocation: earlier peaks are unknown")
    if len(snapshot.stacks) == 1:
        notes.append("no stacks: owners are inferred from how long memory was held, or unknown")
    elif not any("::" in frame.name for stack in snapshot.stacks for frame in stack):
        notes.append("stacks have Python only: workspaces of cuBLAS count as unknown")
    if not any(device.steps for device in devices):
        notes.append("no steps are recognised: growth from step to step is unknown")
    return notes
