"""A review of a configuration: its problems, better layouts, and what was read from the file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from computeflow.ledger.describe import mfu_text
from computeflow.units import format_seconds, format_share, format_si, format_usd
from computeflow.views.plans import layout_text
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.planning.exports.config_formats import ConfigReading
    from computeflow.planning.review import Remark, Review
    from computeflow.workload import Job, Layout


def review_headline(job: Job, layout: Layout, review: Review, price: float | None) -> str:
    """Step, MFU, whether it fits, and the change that gains most."""
    prediction = review.prediction
    if prediction is None:
        return f"{job.model.name} cannot run so: {review.remarks[0].what}."
    broken = next((remark for remark in review.remarks if remark.breaks), None)
    mfu = "" if prediction.ledger.mfu is None else f", MFU {format_share(prediction.ledger.mfu)}"
    verdict = (
        "does not fit" if not prediction.fits else "fits tightly" if prediction.tight else "fits"
    )
    sentences = [
        f"{job.model.name} {verdict}: {format_si(prediction.memory_bytes, 'B')} of "
        f"{format_si(prediction.memory_limit_bytes, 'B')}; step "
        f"{format_seconds(prediction.step_seconds)}{mfu}."
    ]
    if broken is not None and prediction.fits:
        sentences.append(f"It breaks: {broken.what}.")
    return " ".join([*sentences, *_best_change(layout, review, price)])


def _best_change(layout: Layout, review: Review, price: float | None) -> list[str]:
    changes = [remark for remark in review.remarks if remark.change or remark.switch]
    if not changes:
        return [] if review.remarks else ["Nothing to change."]
    best = max(changes, key=lambda remark: remark.gain or 0.0)
    if best.gain is None:
        return [f"This layout fits: {_change_text(best)}."]
    worth = "" if price is None else f" ({format_usd(best.gain * layout.gpus * price)}/h)"
    share = format_share(best.gain)
    return [f"Best change: {_change_text(best)}, {share} less step time{worth}."]


def _change_text(remark: Remark) -> str:
    if remark.change is not None:
        return layout_text(remark.change)
    return ", ".join(f"{name} {value}" for name, value in remark.switch.items()) or "-"


def review_tables(
    job: Job, layout: Layout, reading: ConfigReading, review: Review, price: float | None
) -> list[Table]:
    """Changes and problems first, then what was read from the file and predicted for it."""
    facts = [
        ("format", reading.format),
        ("model", job.model.name),
        ("layout", f"{layout_text(layout)} on {layout.gpus:,} GPUs"),
        ("batch", f"{job.global_batch:,} x {job.seq_len:,} tokens, {job.precision}"),
        *((name.replace("_", " "), str(said)) for name, said in reading.capabilities.items()),
    ]
    prediction = review.prediction
    if prediction is not None:
        low, high = map(format_seconds, prediction.step_seconds_range)
        memory = format_si(prediction.memory_bytes, "B")
        facts += [
            ("step", f"{format_seconds(prediction.step_seconds)} ({low} to {high})"),
            ("MFU", mfu_text(prediction.ledger).removeprefix("MFU ")),
            ("memory", f"{memory} of {format_si(prediction.memory_limit_bytes, 'B')}"),
        ]
    read = Table(
        title="What the file says, and the predicted step",
        columns=columns("setting", "value", wrap="value"),
        rows=tuple(facts),
        notes=_notes(reading),
    )
    if not review.remarks:
        return [read]
    priced = () if price is None else ("$/h",)
    remarks = Table(
        title="Problems and better layouts",
        columns=columns(
            "rule",
            "remark",
            "better",
            "gain",
            *priced,
            right="gain,$/h",
            wrap="remark,better",
        ),
        rows=tuple(_row(remark, layout.gpus, price) for remark in review.remarks),
    )
    return [remarks, read]


def with_reading(table: Table, reading: ConfigReading) -> Table:
    """The table with notes on how its file was read."""
    notes = (f"read as {reading.format}", *_notes(reading), *table.notes)
    return replace(table, notes=notes)


def _notes(reading: ConfigReading) -> tuple[str, ...]:
    if not reading.unknown:
        return reading.notes
    return (*reading.notes, f"not understood and ignored: {', '.join(reading.unknown)}")


def _row(remark: Remark, gpus: int, price: float | None) -> tuple[str, ...]:
    gain = remark.gain
    cells = (
        f"{remark.rule}{' (breaks)' if remark.breaks else ''}",
        remark.what,
        _change_text(remark),
        "-" if gain is None else f"{100 * gain:+.1f} %",
    )
    if price is None:
        return cells
    return (*cells, "-" if gain is None or gain <= 0 else f"{gain * gpus * price:,.0f}")
