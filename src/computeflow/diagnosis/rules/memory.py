"""The rule on memory snapshots: a device out of memory, a leak, or fragmentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from computeflow.diagnosis.rule import Draft, Outcome, report, seconds_evidence
from computeflow.ledger import Evidence, Remedy
from computeflow.telemetry.memory.device_memory import TOO_SMALL
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_si

if TYPE_CHECKING:
    from computeflow.telemetry.memory.memory_facts import (
        Creep,
        DeviceMemory,
        Fragmentation,
        OutOfMemory,
    )

_FRAGMENTED = 0.3
"""Least share of reserved memory that is free in fragments when the allocator requests more."""
_MIN_SPLIT = 100 << 20
"""Fewest fragmented bytes worth reporting."""
_CREEPING = 0.1
"""Least growth in a thousand steps, as a share of the peak."""
_STEPS = 1000
_GROWING = Remedy(
    change="let the allocator's segments grow and shrink",
    command="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
)
_LESS = {
    "activations": "use a smaller micro-batch, or recompute activations",
    "workspaces": "use a smaller micro-batch: backward temporaries are as large as activations",
    "optimizer state": "shard the optimizer state over data-parallel ranks, or use low precision",
    "gradients": "shard the gradients over data-parallel ranks, or use low precision",
    "weights": "shard the weights over more ranks",
    "communication buffers": "use smaller communication buckets",
    "unknown": "allocate less at the call sites below",
}


def snapshot_pressure(observed: SourceReport) -> Outcome:
    """One finding per device. Its GPU-seconds are those of the allocator's retries alone."""
    rank = observed.facts.rank
    ranks = () if rank is None else (rank,)
    (path,) = observed.sources
    return [
        draft
        for device in observed.facts.devices
        for draft in _device_pressure(device, ranks, f"{path}, GPU {device.device}")
    ]


def _device_pressure(device: DeviceMemory, ranks: tuple[int, ...], where: str) -> list[Draft]:
    """The most serious problem gives the title, the others are evidence."""
    troubles = list(_troubles(device, where))
    if not troubles:
        return []
    title, _, remedy = troubles[0]
    evidence = [part for trouble in troubles for part in trouble[1]]
    if device.retries.count:
        evidence.append(
            seconds_evidence(
                f"segments freed and allocated again, {device.retries.count} times",
                where,
                device.retries.seconds,
                0.0,
            )
        )
    return report(title, [("host", device.retries.seconds or 0.0)], evidence, remedy, ranks=ranks)


_Trouble = tuple[str, list[Evidence], Remedy]


def _troubles(device: DeviceMemory, where: str) -> Iterator[_Trouble]:
    for oom in device.out_of_memory[:1]:
        yield _ran_out(oom, device, where)
    if device.creep is not None and _is_creeping(device.creep, device.peak.allocated_bytes):
        yield _creeps(device.creep, device, where)
    if device.fragmentation is not None and is_fragmented(device.fragmentation):
        yield _in_pieces(device.fragmentation, where)


def _bytes(value: float) -> str:
    return format_si(value, "B")


def _is_creeping(creep: Creep, peak_bytes: int) -> bool:
    """Whether memory certainly and still grows, and enough to matter in a thousand steps."""
    grows = creep.low > 0 and creep.still
    return grows and creep.bytes_per_step * _STEPS >= _CREEPING * peak_bytes


def is_fragmented(fragmentation: Fragmentation) -> bool:
    return fragmentation.share >= _FRAGMENTED and fragmentation.split_bytes >= _MIN_SPLIT


def _ran_out(oom: OutOfMemory, device: DeviceMemory, where: str) -> _Trouble:
    pieces = oom.missing_bytes == 0
    rest = f"{_bytes(oom.split_bytes)} were free in fragments"
    if not pieces:
        rest = f"{_bytes(oom.missing_bytes)} more than all free memory"
    title = f"GPU {device.device} ran out of memory: {_bytes(oom.asked_bytes)} requested, {rest}"
    evidence = [
        Evidence(
            what=f"requested in {oom.where or 'an unknown place'}",
            where=where,
            unit="B",
            value=float(oom.asked_bytes),
            expected=float(oom.largest_free_bytes),
        ),
        Evidence(
            what="allocated, of the reserved memory",
            where=where,
            unit="B",
            value=float(oom.allocated_bytes),
            expected=float(oom.reserved_bytes),
        ),
    ]
    if oom.limited:
        evidence.append(
            Evidence(
                what="free on the device: the process reached its own limit "
                "(set_per_process_memory_fraction)",
                where=where,
                unit="B",
                value=float(oom.device_free_bytes or 0),
            )
        )
    return title, evidence, _after_oom(oom, pieces)


def _after_oom(oom: OutOfMemory, pieces: bool) -> Remedy:
    if oom.expandable == "yes":
        return _GROWING
    if pieces:
        return Remedy(
            change=f"allocate long-lived tensors before short-lived ones: {oom.why}",
            risk="expandable segments alone would not have been enough",
        )
    return Remedy(change=f"{_LESS[_largest(oom.owners)]}; {oom.why}")


def _largest(owners: Mapping[str, int]) -> str:
    return max(owners, key=lambda name: owners[name], default="unknown")


def _creeps(creep: Creep, device: DeviceMemory, where: str) -> _Trouble:
    site = next((site for site in creep.sites if site.where), None)
    title = (
        f"GPU {device.device} keeps {_bytes(creep.bytes_per_step)} more after each step, over "
        f"{creep.steps} steps"
    )
    evidence = [
        Evidence(
            what="growth of the lowest allocation in a step",
            where=where,
            unit="B/step",
            value=creep.bytes_per_step,
            expected=0.0,
        )
    ]
    change = "find what keeps tensors from step to step"
    if site is not None:
        evidence.append(
            Evidence(
                what=f"never freed: {site.count} allocations of these steps in {site.where}",
                where=where,
                value=float(site.bytes),
                unit="B",
            )
        )
        change = f"release the tensors of {site.where}: keep numbers (.item()), not tensors"
    return title, evidence, Remedy(change=change)


def _in_pieces(fragmentation: Fragmentation, where: str) -> _Trouble:
    title = (
        f"{100 * fragmentation.share:.0f} % of the reserved memory was free in fragments when "
        f"{_bytes(fragmentation.wanted_bytes)} more were requested"
    )
    evidence = [
        Evidence(
            what="free inside segments that are in use",
            where=where,
            unit="B",
            value=float(fragmentation.split_bytes),
            expected=0.0,
        ),
        Evidence(
            what="largest free block",
            where=where,
            unit="B",
            value=float(fragmentation.largest_free_bytes),
            expected=float(fragmentation.wanted_bytes),
        ),
    ]
    if 2 * fragmentation.page_bytes >= fragmentation.split_bytes:
        return title, evidence, _GROWING
    return (
        title,
        evidence,
        Remedy(
            change=f"allocate long-lived tensors before short-lived ones; {TOO_SMALL}",
            risk="expandable segments alone would not help",
        ),
    )
