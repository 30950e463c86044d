"""Memory snapshots as a source: who held the memory, and the finding `memory-pressure`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from computeflow.errors import InputError
from computeflow.ledger import Claim, Evidence, Finding, Remedy
from computeflow.telemetry.memory.facts import (
    Creep,
    DeviceMemory,
    Fragmentation,
    Memory,
    OutOfMemory,
)  # fmt: skip
from computeflow.telemetry.memory.judging import TOO_SMALL, device_memory
from computeflow.telemetry.memory.snapshot import Snapshot, read_snapshot
from computeflow.telemetry.observed import Asked, Happening, Observed
from computeflow.telemetry.traces.identity import RANK_PATTERNS
from computeflow.units import format_si

FRAGMENTED = 0.3
"""Of what is reserved, free in pieces when the allocator had to ask for more."""
LEAST_SPLIT = 100 << 20
"""Bytes in pieces that are worth a word."""
CREEPING = 0.1
"""Of the peak, that a thousand more steps would add."""
_STEPS = 1000
CONFIDENCE = 0.95
"""Findings of the recordings of `docs/sources/memory.md` that name what was planted, less what so few
can prove."""
_REASON = "a memory snapshot has the times of allocations, not of what ran"
_GROWING = Remedy(
    change="let segments grow and shrink",
    command="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
)
_LESS = {
    "activations": "a smaller micro-batch, or activations computed again",
    "workspaces": "a smaller micro-batch: temporaries of the backward pass are as large as activations",
    "optimizer state": "the optimizer's state sharded over data-parallel ranks, or in low precision",
    "gradients": "gradients sharded over the data-parallel ranks, or in low precision",
    "weights": "weights sharded over more ranks",
    "communication buffers": "smaller buckets of communication",
    "unknown": "less of what the call sites below hold",
}


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

    def observe(self, paths: Sequence[Path], asked: Asked) -> list[Observed]:
        """A process each: what ranks hold has nothing to do with each other."""
        found, left_out = [], []
        for path in paths:
            try:
                found.append(_observed(read_snapshot(path), path))
            except InputError as error:
                left_out.append(str(error))
        if not found:
            raise InputError("; ".join(left_out) or "no memory snapshot to read")
        found[0] = replace(found[0], left_out=(*found[0].left_out, *left_out))
        return found


def _observed(snapshot: Snapshot, path: Path) -> Observed:
    devices = [device_memory(snapshot, device) for device in snapshot.devices]
    if not devices:
        raise InputError(f"{path}: a memory snapshot of no device: nothing was allocated")
    rank = _rank(path)
    facts = Memory(rank=rank, devices=tuple(devices), settings=snapshot.settings)
    findings = (_finding(device, rank, str(path)) for device in devices)
    return Observed(
        kind=MemorySnapshots.kind,
        sources=(str(path),),
        facts=facts,
        ledger_reason=_REASON,
        findings=tuple(finding for finding in findings if finding is not None),
        happenings=tuple(
            Happening(seconds=oom.seconds, what="out of memory", rank=rank, gpu=str(device.device),
                      detail=f"{_bytes(oom.asked_bytes)} in {oom.where or 'no stack'}",
                      fault=True)
            for device in devices
            for oom in device.out_of_memory
        ),
        left_out=snapshot.left_out,
        notes=tuple(_notes(snapshot, devices)),
    )  # fmt: skip


def _bytes(value: float) -> str:
    return format_si(value, "B")


def _rank(path: Path) -> int | None:
    for pattern in RANK_PATTERNS:
        found = re.search(pattern, path.name, re.IGNORECASE)
        if found and len(found[1]) < 8:
            return int(found[1])
    return None


def _notes(snapshot: Snapshot, devices: Sequence[DeviceMemory]) -> list[str]:
    notes = [
        "memory that libraries take from the device themselves (NCCL, CUDA) is not in a snapshot"
    ]
    if not any(device.events for device in devices):
        notes.append(
            "no history: record it with torch.cuda.memory._record_memory_history(); peaks, growth and "
            "running out are unknown"
        )
        return notes
    if not all(device.whole for device in devices):
        notes.append("the history begins after the first allocation: earlier peaks are unknown")
    if len(snapshot.stacks) == 1:
        notes.append("no stacks: owners are told from how long memory was held, or unknown")
    elif not any("::" in frame.name for stack in snapshot.stacks for frame in stack):
        notes.append("stacks have Python only: workspaces of cuBLAS count as unknown")
    if not any(device.steps for device in devices):
        notes.append("no steps are told apart: growth from step to step is unknown")
    return notes


def _finding(device: DeviceMemory, rank: int | None, path: str) -> Finding | None:
    """One for a device: the gravest trouble first, the others as evidence."""
    where = f"{path}, GPU {device.device}"
    troubles = [_ran_out(oom, device, where) for oom in device.out_of_memory[:1]]
    if device.creep is not None and creeps(device.creep, device.peak.allocated_bytes):
        troubles.append(_creeps(device.creep, device, where))
    if device.fragmentation is not None and fragmented(device.fragmentation):
        troubles.append(_in_pieces(device.fragmentation, where))
    if not troubles:
        return None
    title, _, remedy = troubles[0]
    evidence = [part for trouble in troubles for part in trouble[1]]
    if device.retries.count:
        evidence.append(
            Evidence(what=f"{device.retries.count} times segments were given back to get others",
                     where=where, value=device.retries.seconds, unit="s", expected=0.0)
        )  # fmt: skip
    return Finding(
        rule="memory-pressure",
        title=title,
        account="host",
        claims=(Claim(account="host", gpu_seconds=device.retries.seconds or 0.0),),
        evidence=tuple(evidence),
        confidence=CONFIDENCE,
        ranks=() if rank is None else (rank,),
        remedy=remedy,
    )


def creeps(creep: Creep, peak_bytes: int) -> bool:
    """Growth that is certain, goes on, and would matter in a thousand steps."""
    grows = creep.low > 0 and creep.still
    return grows and creep.bytes_per_step * _STEPS >= CREEPING * peak_bytes


def fragmented(found: Fragmentation) -> bool:
    return found.share >= FRAGMENTED and found.split_bytes >= LEAST_SPLIT


_Trouble = tuple[str, list[Evidence], Remedy]


def _ran_out(oom: OutOfMemory, device: DeviceMemory, where: str) -> _Trouble:
    pieces = oom.missing_bytes == 0
    rest = f"{_bytes(oom.split_bytes)} were free in pieces"
    if not pieces:
        rest = f"{_bytes(oom.missing_bytes)} more than all that was free"
    title = f"GPU {device.device} ran out of memory: {_bytes(oom.asked_bytes)} asked for, {rest}"
    evidence = [
        Evidence(what=f"asked for in {oom.where or 'no stack'}", where=where, unit="B",
                 value=float(oom.asked_bytes), expected=float(oom.largest_free_bytes)),
        Evidence(what="allocated, of what was reserved", where=where, unit="B",
                 value=float(oom.allocated_bytes), expected=float(oom.reserved_bytes)),
    ]  # fmt: skip
    if oom.limited:
        evidence.append(
            Evidence(what="the device had more than that: a limit of the process was reached "
                     "(set_per_process_memory_fraction)", where=where, unit="B",
                     value=float(oom.device_free_bytes or 0))
        )  # fmt: skip
    return title, evidence, _after_oom(oom, pieces)


def _after_oom(oom: OutOfMemory, pieces: bool) -> Remedy:
    if oom.expandable == "yes":
        return _GROWING
    if pieces:
        return Remedy(
            change=f"make what stays before what comes and goes: {oom.why}",
            risk="expandable segments alone would not have sufficed",
        )
    return Remedy(change=f"needs {_LESS[_largest(oom.owners)]}; {oom.why}")


def _largest(owners: Mapping[str, int]) -> str:
    return max(owners, key=lambda name: owners[name], default="unknown")


def _creeps(creep: Creep, device: DeviceMemory, where: str) -> _Trouble:
    site = next((site for site in creep.sites if site.where), None)
    title = (
        f"GPU {device.device} holds {_bytes(creep.bytes_per_step)} more after each step, over "
        f"{creep.steps} steps"
    )
    evidence = [
        Evidence(what="growth of the least that is allocated in a step", where=where, unit="B/step",
                 value=creep.bytes_per_step, expected=0.0)
    ]  # fmt: skip
    change = "find what keeps tensors from step to step"
    if site is not None:
        evidence.append(
            Evidence(what=f"made in these steps and never freed: {site.count} of {site.where}",
                     where=where, value=float(site.bytes), unit="B")
        )  # fmt: skip
        change = f"let go of what {site.where} makes: keep numbers (.item()), not tensors"
    return title, evidence, Remedy(change=change)


def _in_pieces(found: Fragmentation, where: str) -> _Trouble:
    title = (
        f"{found.share:.0%} of the reserved memory was free in pieces when "
        f"{_bytes(found.wanted_bytes)} more were needed"
    )
    evidence = [
        Evidence(what="free in segments that are in use elsewhere", where=where, unit="B",
                 value=float(found.split_bytes), expected=0.0),
        Evidence(what="largest free place", where=where, unit="B",
                 value=float(found.largest_free_bytes), expected=float(found.wanted_bytes)),
    ]  # fmt: skip
    if 2 * found.page_bytes >= found.split_bytes:
        return title, evidence, _GROWING
    return (
        title,
        evidence,
        Remedy(
            change=f"make what stays before what comes and goes; {TOO_SMALL}",
            risk="expandable segments alone would not help",
        ),
    )
