"""Expected figures of a device from the catalog: what is usual, not the data sheet.

Under a training load a device runs at the clock its power limit allows. Where the catalog has a
measured sustained rate, that is the expectation, within 6 % (two H200s differed by 4 %); else the
best published matmul bounds it from above. Ranges too wide to be useful are not stated.
"""

from __future__ import annotations

from dataclasses import replace

from computeflow.catalog import Accelerator
from computeflow.lab.probe.grading import ProbeFigure


def expected_range(item: ProbeFigure, device: Accelerator) -> ProbeFigure:
    """The item with the expected range from the device's catalog row, if there is one."""
    kind, _, detail = item.name.partition(" ")
    if kind == "matmul" and detail in device.dense_flops:
        return _matmul(item, device, detail)
    if item.name == "memory copy":
        rated = device.hbm_bytes_per_second
        return replace(
            item,
            of_peak=rated,
            expected_low=0.80 * rated,
            expected_high=1.0 * rated,
            reason=f"80 to 100 % of {device.name}'s rated bandwidth",
        )
    return item


def _matmul(item: ProbeFigure, device: Accelerator, precision: str) -> ProbeFigure:
    item = replace(item, of_peak=device.dense_flops[precision])
    if precision in device.sustained_flops:
        rate = device.sustained_flops[precision]
        watts = "" if device.tdp_watts is None else f" at {device.tdp_watts:.0f} W"
        return replace(
            item,
            expected_low=0.94 * rate,
            expected_high=1.06 * rate,
            reason=f"sustained on {device.name}{watts}, within 6 %",
        )
    if precision in device.matmul_flops:
        rate = device.matmul_flops[precision]
        return replace(
            item,
            expected_low=0.80 * rate,
            expected_high=1.03 * rate,
            reason=f"80 to 103 % of the best published matmul on {device.name}",
        )
    return item
