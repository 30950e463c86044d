"""Profiles of JAX as tables: the devices, what took longest, and gaps."""

from __future__ import annotations

from computeflow.telemetry.observed import Observed
from computeflow.telemetry.xplane.facts import XPlane, XPlaneDevice
from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.audits import gaps_table, kernels_table
from computeflow.views.tables import Table, columns

MOST_DEVICES = 16
MOST_ROWS = 10


def tables(observed: Observed) -> list[Table]:
    facts: XPlane = observed.facts
    busiest = max(facts.devices, key=lambda device: device.busy_seconds)
    made = [_devices(facts), kernels_table(busiest), gaps_table(busiest)]
    return [table for table in made if table.rows]


def _devices(facts: XPlane) -> Table:
    shown = facts.devices[:MOST_DEVICES]
    heads = ("rank", "plane", "time", "busy", "comm.", "hidden", "model FLOP/s", "of peak", "steps")
    hidden = len(facts.devices) - len(shown)
    names = sorted({device.name for device in facts.devices} - {""})
    return Table(
        title=f"Devices: {', '.join(names) or 'the profile does not name them'}",
        columns=columns(*heads, right=",".join(head for head in heads if head != "plane")),
        rows=tuple(_row(device) for device in shown),
        notes=(
            *((f"{hidden:,} more devices: -o json has all",) if hidden else ()),
            "comm.: share of the time; hidden: of it, under computation; of peak: of the profile's own",
        ),
    )


def _row(device: XPlaneDevice) -> tuple[str, ...]:
    rate = device.model_flops / device.seconds if device.model_flops else None
    comm = device.comm_seconds
    number = f" {device.device}" if device.platform == "cpu" else ""
    return (
        str(device.rank), device.plane + number,
        format_seconds(device.seconds), format_share(device.busy_seconds / device.seconds),
        format_share(comm / device.seconds) if comm else "-",
        format_share(device.comm_hidden_seconds / comm) if comm else "-",
        format_si(rate, "FLOP/s") if rate else "-",
        format_share(rate / device.peak_flops) if rate and device.peak_flops else "-",
        f"{len(device.steps):,}" if device.steps else "-",
    )  # fmt: skip
