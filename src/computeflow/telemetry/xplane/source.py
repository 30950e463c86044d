"""Profiles of JAX as a source: a closed ledger of every device in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from computeflow.errors import InputError
from computeflow.telemetry.observed import Asked, Observed
from computeflow.telemetry.traces.job import Job, job_ledger
from computeflow.telemetry.traces.measured import RankMeasured
from computeflow.telemetry.traces.waits import apart, ends_together, find_waits
from computeflow.telemetry.xplane.facts import XPlane, XPlaneDevice
from computeflow.telemetry.xplane.measuring import Measured, measure
from computeflow.telemetry.xplane.reader import Plane, open_planes
from computeflow.telemetry.xplane.trace import read_devices

ENDINGS = (".xplane.pb", ".xplane.pb.gz")
_HEAD = 4096
_PLANE = re.compile(rb"\x12.{1,2}(/(device|host):[\w-]+|Task Environment)", re.DOTALL)
"""The name of a plane: field 2, its length, its text (openxla/xla, xplane.proto)."""


class XPlaneSource:
    kind = "xplane"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Both by its ending and by a plane's name: protobuf has no mark of its own."""
        if not path.name.endswith(ENDINGS) or head[:1] != b"\n":
            return False
        return _PLANE.search(head[:_HEAD]) is not None

    def observe(self, paths: Sequence[Path], asked: Asked) -> list[Observed]:
        files, left_out = [], []
        for path in sorted(paths):
            try:
                files.append(_measured(path, open_planes(path)))
            except InputError as error:
                left_out.append(str(error))
        if not files:
            raise InputError("; ".join(left_out) or "no profile to read")
        jobs: dict[Path, list[_File]] = {}
        for file in files:
            jobs.setdefault(file.path.parent, []).append(file)
        found = [_observed(job) for job in jobs.values()]
        found[0] = replace(found[0], left_out=(*found[0].left_out, *left_out))
        return found


def observe_planes(path: Path, planes: Iterable[Plane]) -> Observed:
    """Of one profile that is open already."""
    return _observed([_measured(path, planes)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: Path
    devices: tuple[Measured, ...]
    left_out: tuple[str, ...]


def _measured(path: Path, planes: Iterable[Plane]) -> _File:
    devices, left_out = read_devices(path, planes)
    found = []
    for read in devices:
        try:
            found.append(measure(read))
        except InputError as error:
            left_out.append(str(error))
    if not found:
        why = "; ".join(left_out)
        raise InputError(f"{path}: no device's work and none of XLA's on the host" +
                         (f" ({why})" if why else ""))  # fmt: skip
    named = (f"{path.name}: {text}" for text in left_out)
    return _File(path=path, devices=tuple(found), left_out=tuple(named))


def _observed(job: Sequence[_File]) -> Observed:
    devices = [device for file in job for device in file.devices]
    ranks = [
        replace(device.rank, rank=number, rank_from="order")
        for number, device in enumerate(devices)
    ]
    ranks, doubts = _matched(ranks, on_clock=all(device.about.on_clock for device in devices))
    booked = job_ledger(ranks, None)
    facts = XPlane(
        devices=tuple(
            _device(device, rank, part.ledger.accounts)
            for device, rank, part in zip(devices, ranks, booked.ranks, strict=True)
        ),
        shared_collectives=booked.shared_collectives,
    )
    lost = [f"{Path(rank.source).name}: {text}" for rank in ranks for text in rank.left_out]
    return Observed(
        kind=XPlaneSource.kind,
        sources=tuple(str(file.path) for file in job),
        facts=facts,
        ledger=booked.ledger,
        left_out=(*(text for file in job for text in file.left_out), *dict.fromkeys(lost)),
        notes=tuple(dict.fromkeys(_notes(devices, ranks, booked, doubts))),
    )


def _matched(ranks: list[RankMeasured], *, on_clock: bool) -> tuple[list[RankMeasured], list[str]]:
    """Operations of the same name are one collective only if they end together; else nobody is said
    to have waited for anybody.
    """
    one_clock = on_clock or len({rank.source for rank in ranks}) == 1
    if not find_waits(ranks).shared or (one_clock and ends_together(ranks)):
        return ranks, []
    return apart(ranks), [
        "collectives of the same name do not end together on all devices, or on no common clock: who "
        "waited for whom is unknown"
    ]


def _device(device: Measured, rank: RankMeasured, accounts: dict[str, float]) -> XPlaneDevice:
    about = device.about
    return XPlaneDevice(
        rank=rank.rank,
        source=rank.source,
        plane=about.plane,
        device=about.device,
        platform=about.platform,
        name=rank.device,
        seconds=(rank.window_end - rank.window_start) / 1e9,
        accounts=accounts,
        host=rank.host,
        steps=rank.steps,
        steps_from=about.steps_from,
        step_seconds=rank.step_seconds if rank.steps else (),
        busy_seconds=device.busy_seconds,
        comm_seconds=device.comm_seconds,
        comm_hidden_seconds=device.comm_hidden_seconds,
        model_flops=rank.flops or None,
        peak_flops=about.peak_flops,
        kernels=rank.kernels,
        gaps=rank.gaps,
    )


def _notes(
    devices: Sequence[Measured], ranks: Sequence[RankMeasured], booked: Job, doubts: Sequence[str]
) -> Iterator[str]:
    if any(device.about.platform == "cpu" for device in devices):
        yield "no device's work: the host computed, and XLA's operations stand for kernels"
    for device in devices:
        if device.about.steps_from:
            yield f"steps: {device.about.steps_from}"
        if not device.about.launched:
            yield (
                "the profile has no calls that launched the devices' work: why they had nothing to do "
                "is not known"
            )
    for rank in ranks:
        yield from rank.notes
    if len(ranks) > 1:
        yield "ranks are numbered in the order of files and devices: none is stated"
    yield from doubts
    yield from booked.notes
