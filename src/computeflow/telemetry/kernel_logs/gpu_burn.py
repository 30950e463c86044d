"""The source `gpu-burn`: gpu_burn's result for each GPU. It is a health test, not training."""

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
from computeflow.telemetry.source_reports import Event, SourceReport, SourceRequest

_GPU = re.compile(r"\s*GPU (\d{1,6}): (.+) \(UUID: (GPU-[0-9a-f-]+)\)")
_FLOPS = re.compile(r"\((\d{1,12}) Gflop/s\)")
_NUMBER = re.compile(r"(\d+)")
_CELSIUS = re.compile(r"(\d{1,6}) C|--")
_VERDICT = re.compile(r"\s*GPU (\d{1,6}): (OK|FAULTY)")
_MAX_GPUS = 256
_MAX_SPEEDS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnedGpu:
    gpu: int
    name: str
    uuid: str
    flops_per_second: float | None
    """Median of the speeds shown."""
    of_median: float | None
    """Ratio to the median of all GPUs."""
    errors: int
    most_celsius: float | None
    verdict: str
    """OK or FAULTY; "" where the run did not get that far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBurnRun:
    path: str
    gpus: tuple[BurnedGpu, ...]


@dataclass(frozen=True, slots=True)
class GpuBurnSource:
    kind: str = "gpu-burn"

    def recognises(self, path: Path, head: bytes) -> bool:
        return b"proc'd:" in head and b"Gflop/s)" in head and b"temps:" in head

    def observe(self, paths: Sequence[Path], request: SourceRequest) -> list[SourceReport]:
        return [self._observe_file(path) for path in paths]

    def _observe_file(self, path: Path) -> SourceReport:
        left_out: list[str] = []
        facts = _read(path, left_out)
        return SourceReport(
            kind=self.kind,
            sources=(str(path),),
            facts=facts,
            ledger_reason="gpu_burn is a test of GPUs, not training",
            left_out=tuple(left_out),
            happenings=tuple(
                Event(
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


def _read(path: Path, left_out: list[str]) -> GpuBurnRun:
    gpus: defaultdict[int, _Gpu] = defaultdict(_Gpu)
    for line in read_lines(path, left_out):
        if (match := _GPU.match(line)) and int(match[1]) < _MAX_GPUS:
            gpus[int(match[1])].name, gpus[int(match[1])].uuid = match[2], match[3]
        elif (match := _VERDICT.match(line)) and int(match[1]) < _MAX_GPUS:
            gpus[int(match[1])].verdict = match[2]
        for state in _states(line):
            for number, figures in enumerate(islice(zip_longest(*state), _MAX_GPUS)):
                gpus[number].show(*figures)
    if not gpus:
        raise InputError(f"{path}: not the output of gpu_burn")
    usual = {number: median(gpu.speeds) for number, gpu in gpus.items() if gpu.speeds}
    middle = median(usual.values()) if usual else 0.0
    return GpuBurnRun(
        path=str(path),
        gpus=tuple(
            BurnedGpu(
                gpu=number,
                name=gpu.name,
                uuid=gpu.uuid,
                flops_per_second=usual.get(number),
                of_median=usual[number] / middle if number in usual else None,
                errors=gpu.errors,
                most_celsius=gpu.most_celsius,
                verdict=gpu.verdict,
            )
            for number, gpu in sorted(gpus.items())[:_MAX_GPUS]
        ),
    )


def _states(line: str) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """Speeds, errors and temperatures by GPU, each time they are shown; often many in a line."""
    for piece in line.split("proc'd:")[1:]:
        speeds, _, rest = piece.partition("errors:")
        errors, _, heat = rest.partition("temps:")
        yield (
            _FLOPS.findall(speeds),
            _NUMBER.findall(errors.partition("(")[0]),
            _CELSIUS.findall(heat.rpartition("C")[0] + "C"),
        )
