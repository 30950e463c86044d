"""Run folders as tables: the run, its ranks, its attempts, host time outside of known phases."""

from __future__ import annotations

from computeflow.telemetry.run_folders.run_facts import RecordedRun
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_count, format_seconds, format_share, format_si
from computeflow.views.tables import Table, columns

_SHOWN = 10


def tables(observed: SourceReport) -> list[Table]:
    run: RecordedRun = observed.facts
    made = [_run(run), _ranks(run)]
    if len(run.attempts) > 1:
        made.append(_attempts(run))
    if run.places:
        made.append(_places(run))
    return made


def headline(observed: SourceReport) -> str:
    run: RecordedRun = observed.facts
    each = "" if run.step_seconds is None else f" of {format_seconds(run.step_seconds)}"
    restarts = len(run.attempts) - 1
    again = f", {format_count(restarts, 'restart')}" if restarts else ""
    return f"{format_count(run.steps, 'step')}{each} on {format_count(run.ranks, 'rank')}{again}."


def _run(run: RecordedRun) -> Table:
    spread = run.step_spread_seconds
    step = None if run.step_seconds is None else format_seconds(run.step_seconds)
    if step and spread is not None:
        step += f" (median of {run.steady_steps:,} steady steps, spread {format_seconds(spread)})"
    phases = ", ".join(f"{name} {format_seconds(value)}" for name, value in run.parts.items())
    again = f", {run.redone_steps:,} of them again" if run.redone_steps else ""
    rows = (
        ("command", run.command),
        ("framework", ", ".join(run.framework)),
        ("device", run.gpu or run.device),
        ("ranks", f"{run.ranks:,} of {run.world:,} on {format_count(run.hosts, 'host')}"),
        ("steps", f"{run.steps:,}{again}"),
        ("step time", step),
        ("tokens", _rate(run.tokens_per_second, "tokens")),
        ("samples", _rate(run.samples_per_second, "samples")),
        ("phases", phases),
        ("loss", "" if run.first_loss is None else f"{run.first_loss:.4g} to {run.last_loss:.4g}"),
        ("state", "ended" if run.state == "ended" else "no end recorded: runs, killed or cut off"),
    )
    return Table(
        title=f"Recorded run: {run.name}",
        columns=columns("figure", "value", wrap="value"),
        rows=tuple((name, value) for name, value in rows if value),
        notes=tuple(f"not recorded: {name}" for name, value in rows if value is None),
    )


def _rate(value: float | None, unit: str) -> str:
    return "" if value is None else f"{format_si(value, unit)}/s"


def _ranks(run: RecordedRun) -> Table:
    """Ranks that keep the others waiting longest, first."""
    heads = ("rank", "host", "step", "own", "waits", "waited for", "last")
    on_device = any("peak" in rank.memory for rank in run.per_rank)
    ordered = sorted(run.per_rank, key=lambda rank: (-rank.waited_for_seconds, rank.rank))
    rows = tuple(
        (
            str(rank.rank),
            rank.host,
            _seconds(rank.step_seconds),
            _seconds(rank.own_seconds),
            format_seconds(rank.wait_seconds),
            format_seconds(rank.waited_for_seconds),
            format_share(rank.came_last),
            *([format_si(rank.memory.get("peak"), "B")] if on_device else []),
        )
        for rank in ordered[:_SHOWN]
    )
    left = len(ordered) - len(rows)
    return Table(
        title="Ranks, those that others wait for first",
        columns=columns(*heads, *(["peak"] if on_device else [])),
        rows=rows,
        notes=(f"{left:,} more ranks: -o json has all",) if left else (),
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else format_seconds(value)


def _attempts(run: RecordedRun) -> Table:
    rows = tuple(
        (
            str(attempt.attempt),
            f"{attempt.steps:,}",
            "" if attempt.first_count is None else f"{attempt.first_count:,}",
            "" if attempt.last_count is None else f"{attempt.last_count:,}",
            f"{attempt.redone_steps:,}",
            format_seconds(max(attempt.end - attempt.start, 0.0)),
            attempt.ended or "no end recorded",
        )
        for attempt in run.attempts[:_SHOWN]
    )
    return Table(
        title="Attempts",
        columns=columns("attempt", "steps", "from", "to", "again", "lasted", "ended"),
        rows=rows,
    )


def _places(run: RecordedRun) -> Table:
    rows = tuple(
        (
            place.where,
            format_seconds(place.seconds),
            f"{place.count:,}",
            format_seconds(place.longest_seconds),
        )
        for place in run.places[:_SHOWN]
    )
    return Table(
        title="Host time outside of known phases",
        columns=columns("where", "all ranks", "of 3 ms or more", "longest", wrap="where"),
        rows=rows,
    )
