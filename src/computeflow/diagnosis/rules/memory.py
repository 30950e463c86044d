"""The rule on memory snapshots: a device that ran out of memory, leaks it, or holds it in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from computeflow.diagnosis.rule import Draft, Outcome, report, seconds_evidence
from computeflow.ledger import Evidence, Remedy
from computeflow.telemetry.memory.judging import TOO_SMALL
from computeflow.telemetry.observed import Observed
from computeflow.units import format_si

if TYPE_CHECKING:
    from computeflow.telemetry.memory.facts import Creep, DeviceMemory, Fragmentation, OutOfMemory

_FRAGMENTED = 0.3
"""Of what is reserved, free in pieces when the allocator had to ask for more."""
_LEAST_SPLIT = 100 << 20
"""Bytes in pieces that are worth a word."""
_CREEPING = 0.1
"""Of the peak, that a thousand more steps would add."""
_STEPS = 1000
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


def snapshot_pressure(observed: Observed) -> Outcome:
    """One for a device. Its GPU-seconds are those of the allocator's retries alone."""
    rank = observed.facts.rank
    ranks = () if rank is None else (rank,)
    (path,) = observed.sources
    return [
        draft
        for device in observed.facts.devices
        for draft in _device_pressure(device, ranks, f"{path}, GPU {device.device}")
    ]


def _device_pressure(device: DeviceMemory, ranks: tuple[int, ...], where: str) -> list[Draft]:
    """The gravest trouble first, the others as evidence."""
    troubles = list(_troubles(device, where))
    if not troubles:
        return []
    title, _, remedy = troubles[0]
    evidence = [part for trouble in troubles for part in trouble[1]]
    if device.retries.count:
        evidence.append(
            seconds_evidence(
                f"{device.retries.count} times segments were given back to get others",
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
    if device.fragmentation is not None and fragmented(device.fragmentation):
        yield _in_pieces(device.fragmentation, where)


def _bytes(value: float) -> str:
    return format_si(value, "B")


def _is_creeping(creep: Creep, peak_bytes: int) -> bool:
    """Growth that is certain, goes on, and would matter in a thousand steps."""
    grows = creep.low > 0 and creep.still
    return grows and creep.bytes_per_step * _STEPS >= _CREEPING * peak_bytes


def fragmented(found: Fragmentation) -> bool:
    return found.share >= _FRAGMENTED and found.split_bytes >= _LEAST_SPLIT


def _ran_out(oom: OutOfMemory, device: DeviceMemory, where: str) -> _Trouble:
    pieces = oom.missing_bytes == 0
    rest = f"{_bytes(oom.split_bytes)} were free in pieces"
    if not pieces:
        rest = f"{_bytes(oom.missing_bytes)} more than all that was free"
    title = f"GPU {device.device} ran out of memory: {_bytes(oom.asked_bytes)} asked for, {rest}"
    evidence = [
        Evidence(
            what=f"asked for in {oom.where or 'no stack'}",
            where=where,
            unit="B",
            value=float(oom.asked_bytes),
            expected=float(oom.largest_free_bytes),
        ),
        Evidence(
            what="allocated, of what was reserved",
            where=where,
            unit="B",
            value=float(oom.allocated_bytes),
            expected=float(oom.reserved_bytes),
        ),
    ]
    if oom.limited:
        evidence.append(
            Evidence(
                what="the device had more than that: a limit of the process was reached "
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
        Evidence(
            what="growth of the least that is allocated in a step",
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
                what=f"made in these steps and never freed: {site.count} of {site.where}",
                where=where,
                value=float(site.bytes),
                unit="B",
            )
        )
        change = f"let go of what {site.where} makes: keep numbers (.item()), not tensors"
    return title, evidence, Remedy(change=change)


def _in_pieces(found: Fragmentation, where: str) -> _Trouble:
    title = (
        f"{found.share:.0%} of the reserved memory was free in pieces when "
        f"{_bytes(found.wanted_bytes)} more were needed"
    )
    evidence = [
        Evidence(
            what="free in segments that are in use elsewhere",
            where=where,
            unit="B",
            value=float(found.split_bytes),
            expected=0.0,
        ),
        Evidence(
            what="largest free place",
            where=where,
            unit="B",
            value=float(found.largest_free_bytes),
            expected=float(found.wanted_bytes),
        ),
    ]
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
