"""`size` as tables and as a heat map of days by device and number of GPUs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from computeflow.units import format_si
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.comparison.sizes import Cell, Device, Size
    from computeflow.views.figures import Data, Figure

_SCALE = [[0, "rgba(0,114,178,0.06)"], [1, "rgba(0,114,178,0.6)"]]
"""Light enough for the days to be read on it."""


def size_tables(found: Size) -> list[Table]:
    network = _network_table(found)
    tables = [_job_table(found), _days_table(found), _device_table(found)]
    return [*tables, network] if network.rows else tables


def _job_table(found: Size) -> Table:
    job = found.job
    rows = [
        (
            "parameters",
            f"{found.parameters / 1e9:,.1f} B, {found.active_parameters / 1e9:,.1f} B of "
            "them active",
        ),
        (
            "tokens",
            f"{format_si(found.tokens, '')}, {found.tokens_per_parameter:,.1f} for a parameter",
        ),
        ("model FLOPs", f"{found.flops:.3g} (attention by its causal half)"),
        ("a step", f"{job.global_batch:,} x {job.seq_len:,} tokens, {job.precision}"),
        (
            "state",
            f"{format_si(found.state_bytes, 'B')} of weights, gradients and optimizer, "
            "without activations",
        ),
    ]
    return Table(
        title=f"{job.model.name} on {format_si(found.tokens, '')} tokens",
        columns=columns("what", "takes", wrap="takes"),
        rows=tuple(rows),
    )


def _days_table(found: Size) -> Table:
    """GPUs x days by device, each with the range of 80 % of runs."""
    rows = []
    for device in found.devices:
        for cell in device.cells:
            usd = device.usd(cell)
            low, high = cell.days_range
            rows.append(
                (
                    device.name,
                    f"{cell.gpus:,}",
                    f"{100 * cell.mfu:.0f} % ({100 * cell.mfu_palm:.0f})",
                    f"{_days(cell.days)} ({_days(low)} to {_days(high)})",
                    "-" if cell.watts is None else f"{cell.watts / 1e3:,.0f}",
                    "-" if usd is None else f"{_usd(usd[0])} to {_usd(usd[1])}",
                )
            )
    return Table(
        title="GPUs x days, if nothing fails",
        columns=columns("device", "GPUs", "MFU", "days", "kW", "$", right="GPUs,MFU,kW"),
        rows=tuple(rows),
        notes=(
            *_refused(found),
            *_slower(found),
            "MFU is of the dense peak, in brackets by the PaLM convention; days hold 80 % of runs like "
            "this one. kW is of devices and hosts; a site adds 10 to 56 % (PUE 1.1 to 1.56). $ is from "
            "the cheapest on-demand price of the catalog for the fewest of these days to the dearest "
            "for the most, whatever the network; without prices under 0.4 of the providers' median.",
        ),
    )


def _refused(found: Size) -> list[str]:
    """Numbers of GPUs without a plan; those with one reason together."""
    devices: dict[tuple[int, str], list[str]] = {}
    for device in found.devices:
        for one in device.refused:
            devices.setdefault((one.gpus, one.reason), []).append(device.name)
    counts: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (gpus, reason), names in devices.items():
        counts.setdefault((reason, tuple(names)), []).append(f"{gpus:,}")
    every = len(found.devices)
    return [
        f"No plan on {' or '.join(some)} {', '.join(names) if len(names) < every else 'of any device'}"
        f": {reason}."
        for (reason, names), some in counts.items()
    ]


def _slower(found: Size) -> list[str]:
    """Numbers that take longer than a smaller one, by the device on which they do so the most."""
    pairs = []
    for device in found.devices:
        for many in device.cells:
            fewer = [cell for cell in device.cells if cell.gpus < many.gpus]
            best = min(fewer, key=lambda cell: cell.days, default=many)
            if best.days < many.days:
                pairs.append((device.name, best, many))
    worst: dict[int, tuple[str, Cell, Cell]] = {}
    for pair in sorted(pairs, key=lambda pair: pair[2].days / pair[1].days):
        worst[pair[2].gpus] = pair
    on = {gpus: sum(many.gpus == gpus for _, _, many in pairs) for gpus in worst}
    return [
        f"More GPUs, longer, on {on[gpus]} of {len(found.devices)} devices: {gpus:,} {name} take "
        f"{_days(many.days)} days ({_cut(many)}), {fewer.gpus:,} take {_days(fewer.days)} "
        f"({_cut(fewer)}). The GPUs are tp x pp x cp x dp, and dp has to divide the "
        f"{found.job.global_batch:,} sequences of a step: few layouts of {gpus:,} do."
        for gpus, (name, fewer, many) in worst.items()
    ]


def _cut(cell: Cell) -> str:
    layout = cell.layout
    sizes = {name: getattr(layout, name) for name in ("tp", "pp", "cp")}
    sizes["dp"] = layout.gpus // math.prod(sizes.values())
    return ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)


def _days(days: float) -> str:
    return f"{days:,.0f}" if days >= 100 else f"{days:.3g}"


def _usd(usd: float) -> str:
    return f"${format_si(usd, '', 2)}".replace(" ", "")


def _device_table(found: Size) -> Table:
    return Table(
        title="Memory floor and prices by device",
        columns=columns(
            "device",
            "TFLOP/s",
            "GPUs",
            "on each",
            "$ an hour",
            "prices of",
            "old",
            right="TFLOP/s,GPUs,on each,old",
            wrap="prices of,old",
        ),
        rows=tuple(_device_row(device) for device in found.devices),
        notes=(
            "TFLOP/s: the dense peak. GPUs: the fewest, doubling, that hold the job with recomputation "
            "and without offload. Old: prices from before the last 180 days, of all.",
        ),
    )


def _device_row(device: Device) -> tuple[str, ...]:
    floor, price = device.floor, device.price
    return (
        device.name,
        "-" if math.isnan(device.peak_flops) else f"{device.peak_flops / 1e12:,.0f}",
        "none found" if floor is None else f"{floor.gpus:,}",
        "-"
        if floor is None
        else f"{floor.bytes_per_gpu / 1e9:,.0f}/{floor.limit_bytes / 1e9:,.0f} GB",
        "no offer" if price is None else f"{price.low:.2f} to {price.high:.2f}",
        "-" if price is None else f"{price.oldest} to {price.newest}",
        "-" if price is None else f"{price.stale} of {price.offers}",
    )


def _network_table(found: Size) -> Table:
    rows = []
    for need in found.network:
        if not need.mfus:
            continue  # no plan: said under the days
        enough = need.bytes_per_second
        rows.append(
            (
                f"{need.gpus:,}",
                "-" if enough is None else f"{enough * 8e-9:,.0f} Gb/s",
                ", ".join(f"{100 * mfu:.0f} % at {rate * 8e-9:,.0f}" for rate, mfu in need.mfus),
            )
        )
    return Table(
        title=f"Network a device needs, on {found.network_device}",
        columns=columns("GPUs", "enough", "MFU by Gb/s a device", right="GPUs"),
        rows=tuple(rows),
        notes=(
            "Enough: keeps 95 % of the MFU on the fastest network that was tried. Asked from 256 GPUs "
            "on: on 64, 100 Gb/s keep 98 % of the MFU.",
        ),
    )


def days_figure(found: Size) -> Figure:
    """A heat map; colour by the logarithm of days."""
    from computeflow.views.figures import Figure, base_layout

    counts = sorted({cell.gpus for device in found.devices for cell in device.cells})
    names = [device.name for device in found.devices]
    cells = {(device.name, cell.gpus): cell for device in found.devices for cell in device.cells}
    grid = [[cells.get((name, count)) for count in counts] for name in names]
    layout = base_layout(len(names), 44)
    layout["xaxis"] = {"type": "category", "title": {"text": "GPUs"}, "fixedrange": True}
    layout["yaxis"] |= {"type": "category", "autorange": "reversed"}
    layout["margin"] |= {"t": 16}
    layout["height"] += 24
    return Figure(
        title=f"Days of {found.job.model.name} on {format_si(found.tokens, '')} tokens, if nothing "
        "fails",
        data=(_heat(names, counts, grid),),
        layout=layout,
        summary=_summary(found),
        numbers=_days_table(found),
    )


def _heat(names: list[str], counts: list[int], grid: list[list[Cell | None]]) -> Data:
    logs = [[None if cell is None else math.log10(cell.days) for cell in row] for row in grid]
    words = [
        [
            "" if cell is None else f"{_days(cell.days)} d<br>MFU {100 * cell.mfu:.0f} %"
            for cell in row
        ]
        for row in grid
    ]
    return {
        "type": "heatmap",
        "x": [f"{count:,}" for count in counts],
        "y": names,
        "z": logs,
        "xgap": 2,
        "ygap": 2,
        "colorscale": _SCALE,
        "showscale": False,
        "text": words,
        "texttemplate": "%{text}",
        "hovertemplate": "%{y}, %{x} GPUs: %{text}<extra></extra>",
    }


def _summary(found: Size) -> str:
    pairs = [(device, cell) for device in found.devices for cell in device.cells]
    if not pairs:
        return "The job has a plan on none of these clusters: " + " ".join(_refused(found))
    fastest = min(pairs, key=lambda pair: pair[1].days)
    least = min(pairs, key=lambda pair: pair[1].gpu_hours)
    return (
        f"Fastest: {fastest[1].gpus:,} {fastest[0].name}, {_days(fastest[1].days)} days. Fewest "
        f"GPU-hours: {least[1].gpus:,} {least[0].name}, {least[1].gpu_hours:,.0f}."
    )
