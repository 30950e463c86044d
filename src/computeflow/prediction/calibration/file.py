"""The calibration file (`computeflow.calibration/1`), as the probe and `calibrate` write it.

Tables become the rates and ramps that the predictor uses. Whatever is wrong with a file (cut short,
of another schema, in other units, of an unknown device) is one `InputError`.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from computeflow import codec
from computeflow.catalog import Accelerator, Catalog
from computeflow.catalog.config import short
from computeflow.cluster.collectives import bus_factor
from computeflow.errors import InputError
from computeflow.files.parsing import parse_json
from computeflow.files.reading import read_text
from computeflow.prediction.calibration.factors import Factors
from computeflow.prediction.calibration.measured_hardware import (
    AttentionRates,
    Calibration,
    Matmul,
    MeasuredCollectives,
)
from computeflow.prediction.calibration.ramps import fit_ramps, top_rate
from computeflow.prediction.calibration.site import SiteCalibration
from computeflow.prediction.parameters import Parameters, load_parameters

SCHEMA = "computeflow.calibration/1"
_SOAK_SIZE = 8192
"""Rows and columns of the probe's long matmul."""
_PARTS = {"forward": "mnk", "input": "mkn", "weight": "nkm"}
"""Matmuls of training: rows and columns of the result, then the inner dimension."""
_RINGS = ("all-reduce", "all-gather", "reduce-scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gemm:
    m: int
    n: int
    k: int
    precision: str
    part: str
    seconds: float
    flops: float

    def __post_init__(self) -> None:
        if self.part not in _PARTS:
            raise InputError(f"gemm: part '{short(self.part)}' is not one of {', '.join(_PARTS)}")
        _check("gemm", 1, 2**31, m=self.m, n=self.n, k=self.k)
        _check("gemm", 1e7, 1e18, flops=self.flops)

    @property
    def sizes(self) -> tuple[float, float]:
        """Inner dimension and elements of the result."""
        rows, columns, inner = (float(getattr(self, name)) for name in _PARTS[self.part])
        return inner, rows * columns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attention:
    batch: int
    heads: int
    kv_heads: int
    seq_len: int
    head_dim: int
    precision: str
    part: str
    seconds: float
    flops: float

    def __post_init__(self) -> None:
        if self.part not in ("forward", "backward"):
            raise InputError(f"attention: part '{short(self.part)}' is not forward or backward")
        _check("attention", 1, 2**31, seq_len=self.seq_len, head_dim=self.head_dim)
        _check("attention", 1e7, 1e18, flops=self.flops)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Collective:
    operation: str
    ranks: int
    alpha_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        _check("collectives", 2, 1e7, ranks=self.ranks)
        _check("collectives", 0, 60, alpha_seconds=self.alpha_seconds)
        _check("collectives", 1e3, 1e16, bytes_per_second=self.bytes_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sustained:
    flops: float
    seconds: float = 0.0
    mean_watts: float | None = None
    mean_sm_hertz: float | None = None
    max_temperature_celsius: float | None = None

    def __post_init__(self) -> None:
        _check("sustained", 1e7, 1e18, flops=self.flops)
        if self.mean_sm_hertz is not None:
            _check("sustained", 1e7, 1e11, mean_sm_hertz=self.mean_sm_hertz)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    schema: str
    provenance: dict[str, Any] = field(default_factory=dict)
    gemm: tuple[_Gemm, ...] = ()
    attention: tuple[_Attention, ...] = ()
    memory_bytes_per_second: dict[str, float] = field(default_factory=dict)
    copy_bytes_per_second: dict[str, float] = field(default_factory=dict)
    launch_seconds: float | None = None
    collectives: tuple[_Collective, ...] = ()
    sustained: _Sustained | None = None
    site: SiteCalibration | None = None
    factors: Factors | None = None

    def __post_init__(self) -> None:
        _check("memory_bytes_per_second", 1e6, 1e17, **self.memory_bytes_per_second)
        if self.launch_seconds is not None:
            _check("launch", 1e-9, 1.0, launch_seconds=self.launch_seconds)


def _check(what: str, low: float, high: float, **values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and low <= value <= high):
            raise InputError(
                f"{what}: {short(name)} {value:g} is not between {low:g} and {high:g}: "
                "a file in SI units?"
            )


def read_calibration(
    text: str, where: str, catalog: Catalog, parameters: Parameters | None = None
) -> Calibration:
    """The calibration in a file's text; `parameters` hold the generic ramps, `where` names the file."""
    data = plain_calibration(text, where)
    file = codec.decode(_File, data, where)
    generic = parameters or load_parameters()
    device = _device(file, where, catalog)
    if device is None:
        if file.site is None:
            raise InputError(f"{where}: holds neither a probe's figures nor a site's factor")
        return Calibration(
            where=where,
            accelerators=file.site.accelerators,
            provenance=file.provenance,
            site=file.site,
        )
    _refuse_above_peak(file, device, where)
    settled = _settled(file)
    matmul = _matmul(file, generic, device, settled)
    return Calibration(
        where=where,
        accelerators=(device.name,),
        provenance=file.provenance,
        matmul=matmul,
        other_flops=_other_flops(file, generic, device, matmul, settled),
        attention=_attention(file, generic, device, settled),
        memory_bytes_per_second=file.memory_bytes_per_second.get("copy"),
        sm_hertz=file.sustained.mean_sm_hertz if file.sustained else None,
        launch_seconds=file.launch_seconds,
        collectives=_collectives(file),
        site=file.site,
        factors=file.factors,
    )


def load_calibration(path: Path, catalog: Catalog) -> Calibration:
    return read_calibration(read_text(path), str(path), catalog)


def plain_calibration(text: str, where: str) -> dict[str, Any]:
    """The file as plain data, of which only the schema is checked."""
    data = parse_json(text, where)
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema == "computeflow.probe/1":
        raise InputError(
            f"{where}: a probe's report; the predictor reads what `computeflow probe "
            "--calibration FILE` writes"
        )
    if schema != SCHEMA:
        raise InputError(f"{where}: schema '{short(str(schema))}' is not {SCHEMA}")
    found: dict[str, Any] = data
    return found


def _device(file: _File, where: str, catalog: Catalog) -> Accelerator | None:
    """The catalog's row of the device; None where nothing was measured on one."""
    measured = (
        file.gemm,
        file.attention,
        file.memory_bytes_per_second,
        file.launch_seconds,
        file.collectives,
        file.sustained,
        file.factors,
    )
    if not any(measured):
        return None
    name = str(file.provenance.get("accelerator") or file.provenance.get("device") or "unnamed")
    device = catalog.accelerators.get(name)
    if device is None:
        raise InputError(
            f"{where}: made on '{short(name)}', which is no accelerator of the catalog: write its "
            "catalog name as provenance.accelerator"
        )
    return device


def _refuse_above_peak(file: _File, device: Accelerator, where: str) -> None:
    rows: list[_Gemm | _Attention] = [*file.gemm, *file.attention]
    for row in rows:
        peak = device.dense_flops.get(row.precision, math.inf)
        if row.flops > 1.05 * peak:
            raise InputError(
                f"{where}: {row.precision} at {row.flops:.3g} FLOP/s is above the dense peak of "
                f"{device.name}, {peak:.3g}: another device, or another count of FLOPs"
            )


def _settled(file: _File) -> float:
    """Share of the table's rates, measured in short bursts, that remains in a long soak."""
    same = [
        row.flops
        for row in file.gemm
        if row.precision == "bf16" and row.m == row.n == row.k == _SOAK_SIZE
    ]
    if file.sustained is None or not same:
        return 1.0
    return min(1.0, file.sustained.flops / statistics.median(same))


def _table(file: _File, precision: str) -> tuple[Any, Any]:
    rows = [row for row in file.gemm if row.precision == precision]
    return np.array([row.flops for row in rows]), np.array([row.sizes for row in rows]).T


def _matmul(file: _File, p: Parameters, device: Accelerator, settled: float) -> Matmul | None:
    rates, sizes = _table(file, "bf16")
    if not len(rates):
        return None
    top, halves = fit_ramps(rates, sizes, np.array([p["depth_half"], p["output_half"]]))
    return Matmul(
        flops=min(settled * top, device.peak_flops("bf16")),
        depth_half=float(halves[0]),
        output_half=float(halves[1]),
    )


def _other_flops(
    file: _File, p: Parameters, device: Accelerator, matmul: Matmul | None, settled: float
) -> dict[str, float]:
    """Top rates at bf16's ramps; fp8's depth doubled, as the predictor does."""
    depth = matmul.depth_half if matmul else p["depth_half"]
    output = matmul.output_half if matmul else p["output_half"]
    tops: dict[str, float] = {}
    for precision in ("fp8", "tf32", "fp32"):
        rates, sizes = _table(file, precision)
        if len(rates) and precision in device.dense_flops:
            halves = np.array([depth * (2 if precision == "fp8" else 1), output])
            top = settled * top_rate(rates, sizes, halves)
            tops[precision] = min(top, device.peak_flops(precision))
    return tops


def _attention(
    file: _File, p: Parameters, device: Accelerator, settled: float
) -> tuple[AttentionRates, ...]:
    """One row for each head dimension that was measured in both directions."""
    peak = device.peak_flops("bf16")
    table: dict[tuple[int, str], list[_Attention]] = defaultdict(list)
    for row in file.attention:
        if row.precision == "bf16":
            table[row.head_dim, row.part].append(row)

    rates = []
    for dim in sorted({dim for dim, _ in table}):
        if table.keys() >= {(dim, "forward"), (dim, "backward")}:
            forward, backward = (
                _fit_attention(table[dim, part], p[f"attention_ramp_{part}"])
                for part in ("forward", "backward")
            )
            rates.append(
                AttentionRates(
                    head_dim=dim,
                    forward_flops=min(settled * forward[0], peak),
                    backward_flops=min(settled * backward[0], peak),
                    forward_half=forward[1],
                    backward_half=backward[1],
                )
            )
    return tuple(rates)


def _fit_attention(rows: list[_Attention], ramp: float) -> tuple[float, float]:
    flops, halves = fit_ramps(
        np.array([row.flops for row in rows]),
        np.array([[float(row.seq_len) for row in rows]]),
        np.array([ramp]),
    )
    return flops, float(halves[0])


def _collectives(file: _File) -> tuple[MeasuredCollectives, ...]:
    """The median bus bandwidth of the operations, and the latencies, by number of ranks."""
    measured = []
    for ranks in sorted({row.ranks for row in file.collectives}):
        rows = {row.operation: row for row in file.collectives if row.ranks == ranks}
        bus = [
            bus_factor(name, ranks) * row.bytes_per_second
            for name, row in rows.items()
            if name in _RINGS
        ]
        if bus:
            latency = {name: row.alpha_seconds for name, row in rows.items()}
            measured.append(
                MeasuredCollectives(
                    ranks=ranks,
                    bus_bytes_per_second=statistics.median(bus),
                    all_reduce_seconds=latency.get("all-reduce", 0.0),
                    reduce_scatter_seconds=latency.get("reduce-scatter", 0.0),
                )
            )
    return tuple(measured)
