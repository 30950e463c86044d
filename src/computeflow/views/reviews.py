"""A review of a configuration as tables: what was read, what it takes, what would be better."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from computeflow.units import format_seconds, format_si
from computeflow.views.plans import layout_text
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.planning.exports.model import Reading
    from computeflow.planning.review import Remark, Review
    from computeflow.workload import Job, Layout


def review_tables(
    job: Job, layout: Layout, reading: Reading, found: Review, price: float | None
) -> list[Table]:
    facts = [
        ("format", reading.format),
        ("model", job.model.name),
        ("layout", f"{layout_text(layout)} on {layout.gpus:,} GPUs"),
        (
            "batch",
            f"{job.global_batch:,} x {job.seq_len:,} tokens, {job.precision}",
        ),
    ]
    if found.prediction is not None:
        low, high = found.prediction.step_seconds_range
        facts += [
            (
                "step",
                f"{format_seconds(found.prediction.step_seconds)} ({format_seconds(low)} to "
                f"{format_seconds(high)})",
            ),
            (
                "memory",
                f"{format_si(found.prediction.memory_bytes, 'B')} of "
                f"{format_si(found.prediction.memory_limit_bytes, 'B')}",
            ),
        ]
    read = Table(
        title="What the file says",
        columns=columns("what", "value", wrap="value"),
        rows=tuple(facts),
        notes=_notes(reading),
    )
    if not found.remarks:
        return [replace(read, notes=(*read.notes, "nothing to remark"))]
    remarks = Table(
        title="Remarks",
        columns=columns(
            "rule", "what", "instead", "gain", "USD/h", right="gain,USD/h", wrap="what,instead"
        ),
        rows=tuple(_row(remark, layout.gpus, price) for remark in found.remarks),
    )
    return [read, remarks]


def with_reading(table: Table, reading: Reading) -> Table:
    """A table, with what became of the file that it rests on."""
    notes = (f"read as {reading.format}", *_notes(reading), *table.notes)
    return replace(table, notes=notes)


def _notes(reading: Reading) -> tuple[str, ...]:
    if not reading.unknown:
        return reading.notes
    return (*reading.notes, f"not understood, left aside: {', '.join(reading.unknown)}")


def _row(remark: Remark, gpus: int, price: float | None) -> tuple[str, ...]:
    gain = remark.gain
    worth = "-" if gain is None or gain <= 0 or price is None else f"{gain * gpus * price:,.0f}"
    return (
        f"{remark.rule}{' (breaks)' if remark.breaks else ''}",
        remark.what,
        "" if remark.change is None else layout_text(remark.change),
        "-" if gain is None else f"{100 * gain:+.1f} %",
        worth,
    )
