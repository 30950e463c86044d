"""Probes as tables."""

from __future__ import annotations

from computeflow.lab.probe.grading import ProbeFigure
from computeflow.lab.probe.result import Probe, ProbedRanks
from computeflow.ledger.describe import unavailable_notes
from computeflow.units import format_share, format_si
from computeflow.views.tables import Table, columns

_MAX_NODES = 5


def probe_headline(fleet: ProbedRanks) -> str:
    """How many measurements are as expected, which is worst, and which nodes are bad."""
    probe = fleet.probes[0]
    judged = [item for item in probe.items if item.verdict != "unknown"]
    low = [item for item in judged if item.bad]
    unknown = len(probe.items) - len(judged)
    text = f"{probe.node}: {len(judged) - len(low)} of {len(judged)} measurements as expected"
    if low:
        worst = min(low, key=_of_expected)
        text += f"; worst: {worst.name}, {_value(worst, worst.value)} ({worst.verdict})"
    text += f"; {unknown} without an expected value." if unknown else "."
    if len(fleet.probes) > 1:
        bad = fleet.bad_nodes
        named = f": {', '.join(list(bad)[:_MAX_NODES])}" if bad else ""
        text += (
            f" {len(bad)} of {len({p.node for p in fleet.probes})} nodes not as expected{named}."
        )
    return text


def _of_expected(item: ProbeFigure) -> float:
    """The value over the least expected one, or the most expected over it where less is better."""
    low, high = item.expected_low, item.expected_high
    if low is not None and item.value < low:
        return item.value / low if low else 0.0
    if high is not None and item.value > high:
        return high / item.value
    return 1.0


def probe_tables(fleet: ProbedRanks) -> list[Table]:
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
            "measurement",
            "value",
            "spread",
            "of peak",
            "verdict",
            "expected",
            right="value,spread,of peak",
            wrap="expected",
        ),
        rows=tuple(_row(item) for item in probe.items),
        notes=tuple(unavailable_notes(probe.unavailable)),
    )


def _row(item: ProbeFigure) -> tuple[str, ...]:
    expected = "-"
    if item.expected_low is not None and item.expected_high is not None:
        low, high = _value(item, item.expected_low), _value(item, item.expected_high)
        expected = f"{low} to {high} ({item.reason})"
    return (
        item.name,
        _value(item, item.value),
        _spread(item),
        "-" if item.of_peak is None else format_share(item.value / item.of_peak),
        item.verdict,
        expected,
    )


def _spread(item: ProbeFigure) -> str:
    if item.spread is None or not item.value:
        return "-"
    return f"±{100 * item.spread / abs(item.value):.1f} %"


def _value(item: ProbeFigure, value: float) -> str:
    if item.unit == "ratio":
        return f"{value:.2f}x"
    return f"{value:.2f} CPUs" if item.unit == "CPU" else format_si(value, item.unit)


def _dataset_table(probe: Probe) -> Table:
    data = probe.dataset
    assert data is not None
    return Table(
        title=f"{data.folder}: {data.files:,} {data.format} files, {format_si(data.total_bytes, 'B')}",
        columns=columns("measurement", "value", right="value"),
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


def _nodes_table(fleet: ProbedRanks) -> Table:
    bad = fleet.bad_nodes
    return Table(
        title=f"{len(fleet.probes)} ranks, {len(bad)} not as expected",
        columns=columns("node", "problems", wrap="problems"),
        rows=tuple((node, "; ".join(reasons)) for node, reasons in bad.items()),
    )
