"""Training logs and collective benchmarks as tables."""

from __future__ import annotations

from pathlib import Path

from computeflow.telemetry.logs.log_facts import Bandwidth, LearnedLine, LoggedRun
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.tables import Table, columns

_SHOWN = 10
_LEARNED = 3
"""Most learned lines that are shown; JSON has all."""


def tables(observed: SourceReport) -> list[Table]:
    facts = observed.facts
    if isinstance(facts, Bandwidth):
        return [_bandwidth_table(facts)]
    if not isinstance(facts, LoggedRun):
        return []
    made = [_run_table(facts), *(_learned_table(line) for line in facts.learned[:_LEARNED])]
    if facts.restarts:
        made.append(_restarts_table(facts))
    if facts.saves or facts.evaluations or facts.stalls or facts.spikes:
        made.append(_pauses_table(facts))
    if facts.timers_ms:
        made.append(_timers_table(facts))
    return made


def headline(observed: SourceReport) -> str:
    facts = observed.facts
    if isinstance(facts, Bandwidth):
        bus = (
            "" if facts.average_bus is None else f", {facts.average_bus / 1e9:.2f} GB/s on average"
        )
        return f"{facts.tool} measured {facts.collective or 'a collective'}{bus}."
    if not isinstance(facts, LoggedRun):
        return ""
    each = "" if facts.step_seconds is None else f" of {format_seconds(facts.step_seconds)}"
    return f"{facts.steps:,} {facts.unit}{each}, {len(facts.restarts):,} restarts."


def _run_table(run: LoggedRun) -> Table:
    layout = " ".join(f"{name}={size}" for name, size in run.layout.items())
    losses = "" if run.first_loss is None else f"{run.first_loss:.4g} to {run.last_loss:.4g}"
    claim = (
        [] if run.claimed_gpu_tflops is None else [f"{run.claimed_gpu_tflops:.1f} TFLOP/s a GPU"]
    )
    claim += [] if run.claimed_mfu is None else [f"MFU {format_share(run.claimed_mfu)}"]
    seconds = None if run.step_seconds is None else format_seconds(run.step_seconds)
    if seconds and run.step_seconds_median is not None:
        seconds += f" (median {format_seconds(run.step_seconds_median)})"
    skipped = f"{run.nan_steps:,} NaN, {run.skipped_steps:,} skipped"
    rows = (
        (run.unit, f"{run.steps:,} in {run.points:,} lines" + _of(run)),
        (f"{run.unit.removesuffix('s')} time", seconds),
        ("ranks", None if run.world_size is None else f"{run.world_size:,}"),
        ("layout", layout),
        ("batch", None if run.batch is None else f"{run.batch:,} samples"),
        ("sequence", None if run.sequence is None else f"{run.sequence:,} tokens"),
        (
            "throughput",
            None
            if run.tokens_per_second is None
            else f"{format_si(run.tokens_per_second, 'tokens')}/s",
        ),
        ("claimed", ", ".join(claim)),
        ("loss", losses),
        ("skipped", skipped if run.nan_steps or run.skipped_steps else ""),
    )
    known = tuple((name, value) for name, value in rows if value)
    unknown = [name for name, value in rows if value is None]
    return Table(
        title=f"{run.framework or 'Training'} log: {', '.join(Path(file).name for file in run.files)}",
        columns=columns("setting or figure", "value", wrap="value"),
        rows=known,
        notes=(f"not in the log: {', '.join(unknown)}",) if unknown else (),
    )


def _learned_table(line: LearnedLine) -> Table:
    """What was understood of a line whose format no framework describes."""
    kind = "evaluations" if line.evaluation else "steps"
    unsure = sum(not column.sure for column in line.columns)
    notes = [f"the line: {line.template}"]
    if unsure:
        notes.append(f"{unsure} of {len(line.columns)} columns are unsure and not used")
    return Table(
        title=f"Lines of {kind}, learned from the log itself",
        columns=columns("column", "example", "read as", "because", wrap="column,read as,because"),
        rows=tuple(
            (
                column.name.strip() or "-",
                column.example,
                _reading(column.meaning, column.unit, column.sure),
                column.because or "-",
            )
            for column in line.columns
        ),
        notes=tuple(notes),
    )


def _reading(meaning: str, unit: str, sure: bool) -> str:
    text = f"{meaning}, {unit}" if unit else meaning
    return text if sure else f"unsure: {text}"


def _of(run: LoggedRun) -> str:
    if run.first_step is None:
        return ""
    total = "" if run.total_steps is None else f" of {run.total_steps:,}"
    return f", {run.first_step:,} to {run.last_step:,}{total}"


def _restarts_table(run: LoggedRun) -> Table:
    shown = sorted(run.restarts, key=lambda restart: -(restart.seconds or 0.0))[:_SHOWN]
    return Table(
        title="Restarts, longest first",
        columns=columns(
            "after",
            "resumed",
            "took",
            "done again",
            "cause",
            "where",
            right="after,resumed,took,done again",
            wrap="cause,where",
        ),
        rows=tuple(
            (
                _number(r.after),
                _number(r.resumed),
                _seconds(r.seconds),
                f"{r.lost_steps:,}",
                r.cause or "not named",
                _short(r.where),
            )
            for r in shown
        ),
        notes=_more(len(run.restarts)),
    )


def _pauses_table(run: LoggedRun) -> Table:
    """Checkpoints, evaluations, stalls and spikes, in the order of iterations."""
    rows = [
        ("checkpoint", save.iteration, _seconds(save.seconds), save.where) for save in run.saves
    ]
    rows += [("evaluation", e.iteration, _seconds(e.seconds), e.where) for e in run.evaluations]
    rows += [
        ("stall", stall.iteration, _seconds(stall.seconds), stall.where) for stall in run.stalls
    ]
    rows += [("loss spike", s.iteration, f"{s.loss:.3g}", s.where) for s in run.spikes]
    rows.sort(key=lambda row: -1 if row[1] is None else row[1])
    return Table(
        title="Between steps",
        columns=columns(
            "event",
            "iteration",
            "time or loss",
            "where",
            right="iteration,time or loss",
            wrap="where",
        ),
        rows=tuple(
            (what, _number(at), took, _short(where)) for what, at, took, where in rows[:_SHOWN]
        ),
        notes=_more(len(rows)),
    )


def _timers_table(run: LoggedRun) -> Table:
    forms = {
        "one": "of the rank that prints them",
        "least": "least over ranks",
        "most": "most over ranks",
        "mean": "mean over ranks",
    }
    shown = sorted(run.timers_ms.items(), key=lambda item: -item[1])
    return Table(
        title=f"Timers, mean per step, {forms.get(run.timers_form, 'as printed')}",
        columns=columns("timer", "ms", right="ms"),
        rows=tuple((name, f"{value:,.2f}") for name, value in shown[: 2 * _SHOWN]),
        notes=("some timers include others",),
    )


def _bandwidth_table(bandwidth: Bandwidth) -> Table:
    ranks = "" if bandwidth.ranks is None else f", {bandwidth.ranks:,} ranks"
    rows = tuple(
        (
            format_si(row.bytes, "B"),
            _micro(row.out_of_place_seconds),
            _giga(row.out_of_place_bus),
            _micro(row.in_place_seconds),
            _giga(row.in_place_bus),
        )
        for row in bandwidth.rows
        if row.bytes
    )
    names = ("size", "out µs", "out bus GB/s", "in µs", "in bus GB/s")
    notes = (
        []
        if bandwidth.average_bus is None
        else [f"average bus {bandwidth.average_bus / 1e9:.2f} GB/s"]
    )
    if bandwidth.wrong_values:
        notes.append(f"{bandwidth.wrong_values:,} values are wrong")
    if bandwidth.rounds > 1:
        notes.append(f"mean of {bandwidth.rounds} rounds")
    return Table(
        title=f"{bandwidth.tool}: {bandwidth.collective or 'a collective it does not name'}{ranks}",
        columns=columns(*names, right=",".join(names)),
        rows=rows,
        notes=tuple(notes),
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _micro(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e6:,.1f}"


def _giga(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e9:,.2f}"


def _short(where: str) -> str:
    return where.rpartition("/")[2]


def _more(count: int) -> tuple[str, ...]:
    return (f"{count - _SHOWN:,} more",) if count > _SHOWN else ()
