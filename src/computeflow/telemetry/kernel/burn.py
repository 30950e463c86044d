"""The source `gpu-burn`: what a run of gpu_burn says of each GPU. A test of health, no training."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from statistics import median

from computeflow.errors import InputError
from computeflow.telemetry.lines import read_lines
from computeflow.telemetry.observed import Asked, Happening, Observed

_GPU = re.compile(r"\s*GPU (\d{1,6}): (.+) \(UUID: (GPU-[0-9a-f-]+)\)")
_FLOPS = re.compile(r"\((\d{1,12}) Gflop/s\)")
_NUMBER = re.compile(r"(\d+)")
_CELSIUS = re.compile(r"(\d{1,6}) C|--")
_VERDICT = re.compile(r"\s*GPU (\d{1,6}): (OK|FAULTY)")
_MOST_GPUS = 256
_MAX_SPEEDS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Burned:
    gpu: int
    name: str
    uuid: str
    flops_per_second: float | None
    """The median of what was shown."""
    of_median: float | None
    """Against the median of all GPUs."""
    errors: int
    most_celsius: float | None
    verdict: str
    """OK or FAULTY; "" where the run did not get so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burn:
    path: str
    gpus: tuple[Burned, ...]


@dataclass(frozen=True, slots=True)
class GpuBurnSource:
    kind: str = "gpu-burn"

    def recognises(self, path: Path, head: bytes) -> bool:
        return b"proc'd:" in head and b"Gflop/s)" in head and b"temps:" in head

    def observe(self, paths: Sequence[Path], asked: Asked) -> list[Observed]:
        return [self._one(path) for path in paths]

    def _one(self, path: Path) -> Observed:
        left_out: list[str] = []
        facts = _read(path, left_out)
        return Observed(
            kind=self.kind,
            sources=(str(path),),
            facts=facts,
            ledger_reason="gpu_burn is a test of GPUs, no training",
            left_out=tuple(left_out),
            happenings=tuple(
                Happening(
                    seconds=None,
                    what="gpu_burn: faulty",
                    gpu=gpu.uuid or str(gpu.gpu),
                    fault=True,
                    detail=f"{gpu.errors:,} wrong results",
                )
                for gpu in facts.gpus
                if gpu.errors or gpu.verdict == "FAULTY"
            ),
        )


@dataclass(slots=True)
class _Gpu:
    name: str = ""
    uuid: str = ""
    verdict: str = ""
    speeds: list[float] = field(default_factory=list)
    errors: int = 0
    most_celsius: float | None = None

    def show(self, gigaflops: str | None, errors: str | None, celsius: str | None) -> None:
        speed = float(gigaflops or 0) * 1e9
        if speed and len(self.speeds) < _MAX_SPEEDS:
            self.speeds.append(speed)
        self.errors = max(self.errors, int((errors or "0")[:18]))
        if celsius:
            self.most_celsius = max(self.most_celsius or 0.0, float(celsius))


def _read(path: Path, left_out: list[str]) -> Burn:
    gpus: defaultdict[int, _Gpu] = defaultdict(_Gpu)
    for line in read_lines(path, left_out):
        if (found := _GPU.match(line)) and int(found[1]) < _MOST_GPUS:
            gpus[int(found[1])].name, gpus[int(found[1])].uuid = found[2], found[3]
        elif (found := _VERDICT.match(line)) and int(found[1]) < _MOST_GPUS:
            gpus[int(found[1])].verdict = found[2]
        for state in _states(line):
            for number, figures in enumerate(islice(zip_longest(*state), _MOST_GPUS)):
                gpus[number].show(*figures)
    if not gpus:
        raise InputError(f"{path}: not the output of gpu_burn")
    usual = {number: median(gpu.speeds) for number, gpu in gpus.items() if gpu.speeds}
    middle = median(usual.values()) if usual else 0.0
    return Burn(
        path=str(path),
        gpus=tuple(
            Burned(
                gpu=number,
                name=gpu.name,
                uuid=gpu.uuid,
                flops_per_second=usual.get(number),
                of_median=usual[number] / middle if number in usual else None,
                errors=gpu.errors,
                most_celsius=gpu.most_celsius,
                verdict=gpu.verdict,
            )
            for number, gpu in sorted(gpus.items())[:_MOST_GPUS]
        ),
    )


def _states(line: str) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """Each state that was shown: speeds, errors, temperatures by GPU; many may share a line."""
    for piece in line.split("proc'd:")[1:]:
        speeds, _, rest = piece.partition("errors:")
        errors, _, heat = rest.partition("temps:")
        yield (
            _FLOPS.findall(speeds),
            _NUMBER.findall(errors.partition("(")[0]),
            _CELSIUS.findall(heat.rpartition("C")[0] + "C"),
        )
