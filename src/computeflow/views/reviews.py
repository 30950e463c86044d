"""A review of a configuration as tables: what was read, what it takes, what would be better."""

from __future__ import annotations

from typing import TYPE_CHECKING

from computeflow.units import format_seconds, format_si
from computeflow.views.plans import layout_text
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.planning.exports.model import Reading, Setup
    from computeflow.planning.review import Remark, Review


def review_tables(
    setup: Setup, reading: Reading, found: Review, price: float | None
) -> list[Table]:
    facts = [
        ("format", reading.format),
        ("model", setup.job.model.name),
        ("layout", f"{layout_text(setup.layout)} on {setup.layout.gpus:,} GPUs"),
        (
            "batch",
            f"{setup.job.global_batch:,} x {setup.job.seq_len:,} tokens, {setup.job.precision}",
        ),
    ]
    if found.prediction is not None:
        low, high = found.prediction.step_seconds_range
        facts += [
            ("step", f"{format_seconds(found.prediction.step_seconds)} ({format_seconds(low)} to "
                     f"{format_seconds(high)})"),
            ("memory", f"{format_si(found.prediction.memory_bytes, 'B')} of "
                       f"{format_si(found.prediction.memory_limit_bytes, 'B')}"),
        ]  # fmt: skip
    notes = [*reading.notes]
    if reading.unknown:
        notes.append(f"not understood, left aside: {', '.join(reading.unknown)}")
    read = Table(
        title="What the file says",
        columns=columns("what", "value", wrap="value"),
        rows=tuple(facts),
        notes=tuple(notes),
    )
    remarks = Table(
        title="Remarks" if found.remarks else "Nothing to remark",
        columns=columns("rule", "what", "instead", "gain", "USD/h", right="gain,USD/h",
                        wrap="what,instead"),
        rows=tuple(_row(remark, setup.layout.gpus, price) for remark in found.remarks),
    )  # fmt: skip
    return [read, remarks]


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
