"""The source `gpu-burn`: what a run of gpu_burn says of each GPU. A test of health, no training."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
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
        facts = _read(path)
        return Observed(
            kind=self.kind,
            sources=(str(path),),
            facts=facts,
            ledger_reason="gpu_burn is a test of GPUs, no training",
            happenings=tuple(
                Happening(
                    seconds=None, what="gpu_burn: faulty", gpu=gpu.uuid or str(gpu.gpu), fault=True,
                    detail=f"{gpu.errors:,} wrong results",
                )
                for gpu in facts.gpus
                if gpu.errors or gpu.verdict == "FAULTY"
            ),
        )  # fmt: skip


def _read(path: Path) -> Burn:
    names: dict[int, tuple[str, str]] = {}
    verdicts: dict[int, str] = {}
    speeds: dict[int, list[float]] = {}
    errors: dict[int, int] = {}
    heat: dict[int, float] = {}
    for line in read_lines(path):
        if found := _GPU.match(line):
            names[int(found[1])] = (found[2], found[3])
        elif found := _VERDICT.match(line):
            verdicts[int(found[1])] = found[2]
        for shown in _parts(line):
            for gpu, text in enumerate(_FLOPS.findall(shown[0])[:_MOST_GPUS]):
                if float(text) and len(speeds.setdefault(gpu, [])) < 10_000:
                    speeds[gpu].append(float(text) * 1e9)
            for gpu, text in enumerate(_NUMBER.findall(shown[1])[:_MOST_GPUS]):
                errors[gpu] = max(errors.get(gpu, 0), int(text[:18]))
            for gpu, text in enumerate(_CELSIUS.findall(shown[2])[:_MOST_GPUS]):
                if text:
                    heat[gpu] = max(heat.get(gpu, 0.0), float(text))
    found_gpus = sorted(names.keys() | verdicts.keys() | speeds.keys() | errors.keys())
    if not found_gpus:
        raise InputError(f"{path}: not the output of gpu_burn")
    usual = {gpu: median(values) for gpu, values in speeds.items() if values}
    middle = median(usual.values()) if usual else 0.0
    return Burn(
        path=str(path),
        gpus=tuple(
            Burned(
                gpu=gpu, name=names.get(gpu, ("", ""))[0], uuid=names.get(gpu, ("", ""))[1],
                flops_per_second=usual.get(gpu),
                of_median=usual[gpu] / middle if gpu in usual else None,
                errors=errors.get(gpu, 0), most_celsius=heat.get(gpu),
                verdict=verdicts.get(gpu, ""),
            )
            for gpu in found_gpus[:_MOST_GPUS]
        ),
    )  # fmt: skip


def _parts(line: str) -> list[tuple[str, str, str]]:
    """Each state that was shown: speeds, errors, temperatures; many may share a line."""
    shown = []
    for piece in line.split("proc'd:")[1:]:
        speeds, _, rest = piece.partition("errors:")
        errors, _, heat = rest.partition("temps:")
        shown.append((speeds, errors.partition("(")[0], heat.rpartition("C")[0] + "C"))
    return shown
