"""Probes as tables."""

from __future__ import annotations

from computeflow.lab.probe.grade import Item
from computeflow.lab.probe.result import Fleet, Probe
from computeflow.units import format_share, format_si
from computeflow.views.tables import Table, columns


def probe_tables(fleet: Fleet) -> list[Table]:
    tables = [_probe_table(fleet.probes[0])]
    if fleet.probes[0].dataset is not None:
        tables.append(_dataset_table(fleet.probes[0]))
    if len(fleet.probes) > 1 or fleet.bad_nodes:
        tables.append(_nodes_table(fleet))
    return tables


def _probe_table(probe: Probe) -> Table:
    device = probe.environment.get("device", "cpu")
    return Table(
        title=f"{probe.node}: {device}, torch {probe.environment['torch']}, "
        f"{probe.repeats} pass{'es' if probe.repeats > 1 else ''}",
        columns=columns(
            "what",
            "value",
            "spread",
            "of peak",
            "verdict",
            "expected",
            right="value,spread,of peak",
            wrap="expected",
        ),
        rows=tuple(_row(item) for item in probe.items),
        notes=tuple(f"{name}: unavailable, needs {why}" for name, why in probe.unavailable.items()),
    )


def _row(item: Item) -> tuple[str, ...]:
    expected = "-"
    if item.expected_low is not None and item.expected_high is not None:
        low, high = _value(item, item.expected_low), _value(item, item.expected_high)
        expected = f"{low} to {high} ({item.reason})"
    return (
        item.name,
        _value(item, item.value),
        "-" if item.spread is None else f"±{100 * item.spread / item.value:.1f} %",
        "-" if item.of_peak is None else format_share(item.value / item.of_peak),
        item.verdict,
        expected,
    )


def _value(item: Item, value: float) -> str:
    return f"{value:.2f} CPUs" if item.unit == "CPU" else format_si(value, item.unit)


def _dataset_table(probe: Probe) -> Table:
    data = probe.dataset
    assert data is not None
    return Table(
        title=f"{data.folder}: {data.files:,} {data.format} files, {format_si(data.total_bytes, 'B')}",
        columns=columns("what", "value", right="value"),
        rows=(
            ("median file", format_si(data.median_file_bytes, "B")),
            ("sequential read", format_si(data.sequential_bytes_per_second, "B/s")),
            ("random read", format_si(data.random_bytes_per_second, "B/s")),
            ("decode, one worker", format_si(data.decode_bytes_per_second, "B/s")),
            ("tokens/s, one worker", f"{data.tokens_per_second_per_worker:,.0f}"),
            (f"tokens/s, {data.workers} workers", f"{data.tokens_per_second:,.0f}"),
        ),
        notes=(
            f"at {data.bytes_per_token:g} bytes a token",
            *(f"left out: {n} ({why})" for why, n in data.left_out.items()),
            *data.advice,
        ),
    )


def _nodes_table(fleet: Fleet) -> Table:
    bad = fleet.bad_nodes
    return Table(
        title=f"{len(fleet.probes)} ranks, {len(bad)} not as expected",
        columns=columns("node", "what", wrap="what"),
        rows=tuple((node, "; ".join(reasons)) for node, reasons in bad.items()),
    )
