"""A path of changes as a headline, one table, and the difference of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from computeflow.ledger import Ledger
from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.ledgers import ledger_table
from computeflow.views.tables import Table, columns


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStart:
    """Where a job stands."""

    step_seconds: float | None
    mfu: float | None
    mfu_palm: float | None
    peak_precision: str | None
    measured: bool
    predicted_step_seconds: float | None = None
    step_seconds_range: tuple[float, float] | None = None
    memory_bytes: float | None = None
    memory_limit_bytes: float | None = None
    runs: bool = True
    """Whether it fits."""
    ledger: Ledger | None = None

    @property
    def unexplained_seconds(self) -> float | None:
        """Seconds of the measured step beyond the predicted range."""
        if not self.measured or self.step_seconds is None or self.step_seconds_range is None:
            return None
        beyond = self.step_seconds - self.step_seconds_range[1]
        return beyond if beyond > 0 else None

    @property
    def unexplained_text(self) -> str:
        seconds = format_seconds(self.unexplained_seconds or 0.0)
        return (
            f"{seconds} of the measured step lie beyond the predicted range: no setting of this file "
            "explains them; record a few steps and run `computeflow audit` first"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRow:
    """One change: what it saves, and what the job is then."""

    change: str
    rule: str
    gain: float | None
    gain_range: tuple[float, float] | None
    step_seconds: float | None
    mfu: float | None
    peak_precision: str | None
    memory_bytes: float | None
    risk: str
    same_mathematics: bool
    diff: str


def improve_headline(start: PathStart, steps: Sequence[PathRow]) -> str:
    """From where to where, by how many changes, and the first of them."""
    if not steps:
        return f"{_stands(start)}. Nothing to change that is worth more than 2 % of the step."
    last = steps[-1]
    plain = [step for step in steps if step.same_mathematics]
    to = f"{_mfu(last)} MFU" if last.mfu is not None else "less"
    parts = [f"{_stands(start)}"]
    if plain and plain[-1] is not last:
        parts.append(
            f"{_changes(len(plain))} to {_share(plain[-1].mfu)} MFU, "
            f"{_seconds(plain[-1].step_seconds)}, with the same mathematics; lower precision to "
            f"{_seconds(last.step_seconds)}"
        )
    elif last.step_seconds is not None:
        parts.append(f"{_changes(len(steps))} to {to}, {_seconds(last.step_seconds)}")
    first = steps[0]
    worth = "" if first.gain is None else f" ({_share(first.gain)} of the step)"
    parts.append(f"First: {first.change}{worth}")
    return ". ".join(parts) + "."


def _changes(count: int) -> str:
    return f"{count} change{'s lead' if count > 1 else ' leads'}"


def _stands(start: PathStart) -> str:
    said = "measured" if start.measured else "predicted"
    mfu = "MFU unavailable" if start.mfu is None else f"{_share(start.mfu)} MFU"
    step = "" if start.step_seconds is None else f", {_seconds(start.step_seconds)} a step"
    fits = "" if start.runs else ", and does not fit"
    return f"Stands at {mfu}{step} ({said}){fits}"


def _share(value: float | None) -> str:
    return "-" if value is None else format_share(value)


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)


def improve_tables(start: PathStart, steps: Sequence[PathRow], notes: Sequence[str]) -> list[Table]:
    rows = [("", "as it is", "-", "-", _seconds(start.step_seconds), _mfu(start), _held(start))]
    rows += [
        (
            str(number),
            step.change + ("" if step.same_mathematics else " (changes the mathematics)"),
            "-" if step.gain is None else f"{100 * step.gain:.1f} %",
            _ends(step.gain_range),
            _seconds(step.step_seconds),
            _mfu(step),
            _held(step),
        )
        for number, step in enumerate(steps, start=1)
    ]
    names = ("#", "change", "gain", "80 %", "step", "MFU", "memory")
    path = Table(
        title="The path, each change after those above it",
        columns=columns(*names, right="#,gain,80 %,step,MFU,memory", wrap="change"),
        rows=tuple(rows),
        notes=tuple(notes),
    )
    ledger = [] if start.ledger is None else [ledger_table(start.ledger)]
    return [path, *(_details(n, step) for n, step in enumerate(steps, start=1)), *ledger]


def _mfu(one: PathStart | PathRow) -> str:
    low = f" {one.peak_precision}" if one.peak_precision not in (None, "bf16", "fp16") else ""
    return "-" if one.mfu is None else f"{100 * one.mfu:.1f} %{low}"


def _held(one: PathStart | PathRow) -> str:
    return "-" if one.memory_bytes is None else format_si(one.memory_bytes, "B")


def _ends(ends: tuple[float, float] | None) -> str:
    return "-" if ends is None else f"{100 * ends[0]:.0f}..{100 * ends[1]:.0f}"


def _details(number: int, step: PathRow) -> Table:
    lines = step.diff.rstrip("\n").split("\n") if step.diff else []
    risk = [("risk", step.risk)] if step.risk else []
    rows = [("rule", step.rule), *risk]
    rows += [("do" if n == 0 else "", line) for n, line in enumerate(_shown(lines))]
    return Table(
        title=f"{number}. {step.change}",
        columns=columns("", "detail", wrap="detail"),
        rows=tuple(rows),
    )


def _shown(lines: Sequence[str]) -> list[str]:
    """Changed lines of a difference, without its context; a very long one is cut."""
    changed = [line for line in lines if not line.startswith((" ", "@@", "---", "+++"))]
    return [line if len(line) <= 300 else f"{line[:297]}..." for line in changed]
