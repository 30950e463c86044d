"""The calibration file: a probe's figures as the predictor reads them, with their provenance."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, TypeVar

from computeflow.lab.probe.result import Probe

SCHEMA = "computeflow.calibration/1"
T = TypeVar("T")


def calibration(probe: Probe, made_on: str, accelerator: str | None = None) -> dict[str, Any]:
    """The content of a calibration file: medians over the repeats.

    `made_on` is the date; the caller has a clock, this has not. `accelerator` is the device's
    catalog name, where it has one.
    """
    rounds = probe.measurements
    return {
        "schema": SCHEMA,
        "provenance": _provenance(probe, made_on, accelerator),
        "gemm": _medians(
            (g for m in rounds for g in m.gemms),
            key=lambda g: (g.precision, g.part, g.m, g.n, g.k),
        ),
        "attention": _medians(
            (a for m in rounds for a in m.attention),
            key=lambda a: (a.batch, a.heads, a.kv_heads, a.seq_len, a.head_dim, a.part),
        ),
        "memory_bytes_per_second": _by_name([m.memory for m in rounds]),
        "copy_bytes_per_second": _by_name([m.copies for m in rounds]),
        "launch_seconds": statistics.median(m.launch_seconds for m in rounds),
        "collectives": [asdict(fit) for fit in probe.fits],
        "sustained": _sustained(probe),
    }


def _provenance(probe: Probe, made_on: str, accelerator: str | None) -> dict[str, Any]:
    return {
        **probe.environment,
        "node": probe.node,
        "ranks": probe.world,
        "repeats": probe.repeats,
        "made_on": made_on,
        **({"accelerator": accelerator} if accelerator else {}),
    }


def _medians(timings: Iterable[T], key: Callable[[T], Any]) -> list[dict[str, Any]]:
    groups: dict[Any, list[T]] = {}
    for timing in timings:
        groups.setdefault(key(timing), []).append(timing)
    rows = []
    for group in groups.values():
        row = asdict(group[0])  # type: ignore[call-overload]
        for name in ("seconds", "flops"):
            row[name] = statistics.median(getattr(timing, name) for timing in group)
        rows.append(row)
    return rows


def _by_name(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}


def _sustained(probe: Probe) -> dict[str, Any] | None:
    """Sustained rate, watts and clock: the second half of the soak."""
    lines = [m for m in probe.measurements if m.soak]
    if not lines:
        return None
    rates = [rate for m in lines for _, rate in m.soak[len(m.soak) // 2 :]]
    readings = lines[-1].readings["soak"]
    return {
        "flops": statistics.median(rates),
        "seconds": lines[-1].soak[-1][0],
        "mean_watts": readings["mean_watts"],
        "mean_sm_hertz": readings["mean_sm_hertz"],
        "max_temperature_celsius": readings["max_temperature_celsius"],
    }
