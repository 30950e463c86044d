"""The size of a training as tables and as a heat map of days by device and number of GPUs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from computeflow.units import format_si
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.comparison.sizes import JobSize, SizedDevice, SizeEstimate
    from computeflow.views.figures import Data, Figure

_SCALE = [[0, "rgba(0,114,178,0.06)"], [1, "rgba(0,114,178,0.6)"]]
"""Light enough for the days to be read on it."""


def size_headline(size: JobSize) -> str:
    """Days and dollars on a usual number of the usual device; then the fastest and the fewest GPU-h."""
    device = _usual_device(size)
    if device is None:
        return _summary(size)
    cell = device.cells[(len(device.cells) - 1) // 2]
    low, high = map(_days, cell.days_range)
    usd = device.usd(cell)
    cost = "" if usd is None else f", {_usd(usd[0])} to {_usd(usd[1])} (the middle half)"
    return (
        f"{cell.gpus:,} {device.name} take {_days(cell.days)} days (predicted range {low} to {high})"
        f"{cost}, if nothing fails. {_summary(size)}"
    )


def _usual_device(size: JobSize) -> SizedDevice | None:
    """The device that the network table is for, else the first with a plan; those with a measured run
    first.
    """
    planned = [device for device in size.devices if device.cells]
    planned = [device for device in planned if device.cells[0].proven] or planned
    usual = [device for device in planned if device.name == size.network_device]
    return next(iter(usual or planned), None)


def size_tables(size: JobSize) -> list[Table]:
    network = _network_table(size)
    tables = [_job_table(size), _days_table(size), _device_table(size)]
    return [*tables, network] if network.rows else tables


def _job_table(size: JobSize) -> Table:
    job = size.job
    rows = [
        (
            "parameters",
            f"{size.parameters / 1e9:,.1f} B, {size.active_parameters / 1e9:,.1f} B of them active",
        ),
        (
            "tokens",
            f"{format_si(size.tokens, '')}, {size.tokens_per_parameter:,.1f} per parameter",
        ),
        ("model FLOPs", f"{size.flops:.3g} (the causal half of attention)"),
        ("step", f"{job.global_batch:,} x {job.seq_len:,} tokens, {job.precision}"),
        (
            "state",
            f"{format_si(size.state_bytes, 'B')} of weights, gradients and optimizer, "
            "without activations",
        ),
    ]
    return Table(
        title=f"{job.model.name} on {format_si(size.tokens, '')} tokens",
        columns=columns("property of the job", "value", wrap="value"),
        rows=tuple(rows),
    )


def _days_table(size: JobSize) -> Table:
    """GPUs x days by device, each with its predicted range."""
    rows = []
    for device in size.devices:
        for cell in device.cells:
            usd = device.usd(cell)
            low, high = cell.days_range
            rows.append(
                (
                    device.name if cell.proven else f"{device.name} !",
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
            " ".join((*_refused(size), *_slower(size), *_ends(size), *_rests_on(size), _DAYS_NOTE)),
        ),
    )


_DAYS_NOTE = (
    "MFU is of the dense peak, in brackets by the PaLM convention. Days in brackets are the predicted "
    "range: 80 % of published runs fell inside. kW counts devices and hosts; a site adds 10 to 56 % "
    "(PUE 1.1 to 1.56). $ is the middle half: of the providers' cheapest on-demand prices, whatever "
    "the network, and of the predicted days. ! no run of the device was measured."
)


def _ends(size: JobSize) -> list[str]:
    """What makes the ends of the prices, on a usual number of the usual device."""
    device = _usual_device(size)
    if device is None or device.price is None:
        return []
    cell, price = device.cells[(len(device.cells) - 1) // 2], device.price
    usd = device.usd_ends(cell)
    assert usd is not None, "there is a price"
    return [
        f"Beyond it {cell.gpus:,} {device.name} go from {_usd(usd[0])} ({price.cheapest} at "
        f"{price.low:.2f} $/h, fewest days) to {_usd(usd[1])} ({price.most_expensive} at "
        f"{price.high:.2f} $/h, most days)."
    ]


def _refused(size: JobSize) -> list[str]:
    """Numbers of GPUs without a plan, grouped by reason."""
    devices: dict[tuple[int, str], list[str]] = {}
    for device in size.devices:
        for refused in device.refused:
            devices.setdefault((refused.gpus, refused.reason), []).append(device.name)
    counts: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (gpus, reason), names in devices.items():
        counts.setdefault((reason, tuple(names)), []).append(f"{gpus:,}")
    every = len(size.devices)
    return [
        f"No plan on {' or '.join(some)} {', '.join(names) if len(names) < every else 'of any device'}"
        f": {reason}."
        for (reason, names), some in counts.items()
    ]


def _rests_on(size: JobSize) -> list[str]:
    """Measured runs behind each device's rows."""
    lines = {device.name: device.cells[0].evidence for device in size.devices if device.cells}
    return [f"{name}: {line}." for name, line in lines.items()]


def _slower(size: JobSize) -> list[str]:
    """Numbers of GPUs that take longer than a smaller number, with the device where they do most."""
    pairs = []
    for device in size.devices:
        for many in device.cells:
            fewer = [cell for cell in device.cells if cell.gpus < many.gpus]
            best = min(fewer, key=lambda cell: cell.days, default=many)
            if best.days < many.days:
                pairs.append((device.name, best, many))
    worst: dict[int, tuple[str, SizeEstimate, SizeEstimate]] = {}
    for pair in sorted(pairs, key=lambda pair: pair[2].days / pair[1].days):
        worst[pair[2].gpus] = pair
    slower = {gpus: sum(many.gpus == gpus for _, _, many in pairs) for gpus in worst}
    return [
        f"More GPUs take longer on {slower[gpus]} of {len(size.devices)} devices: {gpus:,} {name} take "
        f"{_days(many.days)} days ({_cut(many)}), {fewer.gpus:,} take {_days(fewer.days)} "
        f"({_cut(fewer)}). The GPUs are tp x pp x cp x dp, and dp must divide the "
        f"{size.job.global_batch:,} sequences of a step: few layouts of {gpus:,} do."
        for gpus, (name, fewer, many) in worst.items()
    ]


def _cut(cell: SizeEstimate) -> str:
    layout = cell.layout
    sizes = {name: getattr(layout, name) for name in ("tp", "pp", "cp")}
    sizes["dp"] = layout.gpus // math.prod(sizes.values())
    return ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)


def _days(days: float) -> str:
    return f"{days:,.0f}" if days >= 100 else f"{days:.3g}"


def _usd(usd: float) -> str:
    return f"${format_si(usd, '', 2)}".replace(" ", "")


def _device_table(size: JobSize) -> Table:
    return Table(
        title="Memory floor and prices by device",
        columns=columns(
            "device",
            "TFLOP/s",
            "GPUs",
            "on each",
            "$/h",
            "prices of",
            "old",
            right="TFLOP/s,GPUs,on each,old",
            wrap="prices of,old",
        ),
        rows=tuple(_device_row(device) for device in size.devices),
        notes=(
            "TFLOP/s is the dense peak. GPUs is the smallest number, doubling, that holds the job with "
            "recomputation and without offload. Old counts prices of more than 180 days.",
        ),
    )


def _device_row(device: SizedDevice) -> tuple[str, ...]:
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


def _network_table(size: JobSize) -> Table:
    rows = []
    for need in size.network:
        if not need.mfus:
            continue  # no plan: the note under the days says so
        enough = need.bytes_per_second
        rows.append(
            (
                f"{need.gpus:,}",
                "-" if enough is None else f"{enough * 8e-9:,.0f} Gb/s",
                ", ".join(f"{100 * mfu:.0f} % at {rate * 8e-9:,.0f}" for rate, mfu in need.mfus),
            )
        )
    return Table(
        title=f"Network that a device needs, on {size.network_device}",
        columns=columns("GPUs", "enough", "MFU by Gb/s a device", right="GPUs"),
        rows=tuple(rows),
        notes=(
            "Enough keeps 95 % of the MFU on the fastest network tried. Fewer than 256 GPUs are not "
            "listed: on 64, 100 Gb/s keep 98 % of the MFU.",
        ),
    )


def days_figure(size: JobSize) -> Figure:
    """A heat map; colour by the logarithm of days."""
    from computeflow.views.figures import Figure, base_layout

    counts = sorted({cell.gpus for device in size.devices for cell in device.cells})
    names = [device.name for device in size.devices]
    cells = {(device.name, cell.gpus): cell for device in size.devices for cell in device.cells}
    grid = [[cells.get((name, count)) for count in counts] for name in names]
    layout = base_layout(len(names), 44)
    layout["xaxis"] = {"type": "category", "title": {"text": "GPUs"}, "fixedrange": True}
    layout["yaxis"] |= {"type": "category", "autorange": "reversed"}
    layout["margin"] |= {"t": 16}
    layout["height"] += 24
    return Figure(
        title=f"Days of {size.job.model.name} on {format_si(size.tokens, '')} tokens, if nothing "
        "fails",
        data=(_heat(names, counts, grid),),
        layout=layout,
        summary=_summary(size),
        numbers=_days_table(size),
    )


def _heat(names: list[str], counts: list[int], grid: list[list[SizeEstimate | None]]) -> Data:
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


def _summary(size: JobSize) -> str:
    pairs = [(device, cell) for device in size.devices for cell in device.cells]
    if not pairs:
        return "The job has a plan on none of these clusters: " + " ".join(_refused(size))
    pairs = [pair for pair in pairs if pair[1].proven] or pairs
    fastest = min(pairs, key=lambda pair: pair[1].days)
    least = min(pairs, key=lambda pair: pair[1].gpu_hours)
    return (
        f"Fastest: {fastest[1].gpus:,} {fastest[0].name}, {_days(fastest[1].days)} days. Fewest "
        f"GPU-h: {least[1].gpus:,} {least[0].name}, {least[1].gpu_hours:,.0f}."
    )
