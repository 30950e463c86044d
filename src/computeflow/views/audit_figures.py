"""The report of an audit: `audit_parts`, for `html_report.report_html`.

In the order of the questions: what was looked at, what is wrong, where the time goes, how far that is
from what was expected, which rank differs, how a step runs; and last what is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from computeflow.ledger import Gap, Ledger, Window, describe
from computeflow.units import format_seconds, format_si
from computeflow.views.as_it_runs import step_text
from computeflow.views.cards import CardCost, finding_cards
from computeflow.views.figures import Figure, ledger_figure
from computeflow.views.flows import flow_figure, owner_seconds
from computeflow.views.heatmaps import ranks_figure
from computeflow.views.html_report import Part
from computeflow.views.ledgers import gap_table, replayed_ledger_table
from computeflow.views.tables import Table, columns
from computeflow.views.timelines import timeline_figure

if TYPE_CHECKING:
    from computeflow.auditing.audit_report import AuditComparison
    from computeflow.diagnosis.diagnosis import Diagnosis
    from computeflow.telemetry.traces.job_ledgers import TracedJob
    from computeflow.telemetry.traces.step_timelines import StepTimeline

MAX_ROWS = 64


def audit_parts(
    traced: TracedJob,
    diagnosis: Diagnosis,
    timeline: StepTimeline | None,
    *,
    price: float | None,
    before: AuditComparison | None = None,
) -> list[Part]:
    """`price` in $ per GPU-hour; `before`: the comparison with an earlier recording. Without a
    `timeline` its figure is left out. The figures are of the steps as they run, where that is known.
    """
    ledger, running = traced.job.ledger, diagnosis.as_it_runs
    shown = ledger if running is None else running.ledger
    parts: list[Part] = [
        head_table(traced, diagnosis, price),
        finding_cards(diagnosis, ledger, price, traced.step_seconds),
        flow_figure(shown),
        waterfall(shown, diagnosis.expected.at_equal_work(shown) if diagnosis.expected else None),
    ]
    at = "equal work"
    if running is not None:
        parts.append(_as_it_runs(ledger, running.ledger))
        at += ", as recorded"
    if diagnosis.gaps:
        parts.append(_gaps(diagnosis.gaps, at, on_host=ledger.on_host))
    if before is not None:
        at = f"{before.at}, {before.name}"
        parts.append(_gaps(before.lines, at, on_host=ledger.on_host))
    if len(traced.job.ranks) > 1:
        parts.append(ranks_figure(traced.job.ranks))
    if timeline is not None:
        parts.append(timeline_figure(timeline))
    return parts + [table for table in _unknown(traced, diagnosis) if table.rows]


def waterfall(measured: Ledger, expected: Ledger | None) -> Figure:
    """`expected` is for the same work. Missing signals are listed at the end of the report, not under
    this figure.
    """
    if expected is not None:
        expected = replace(expected, window=Window(label="the expectation for the same work"))
    figure = ledger_figure(measured, expected)
    layout = dict(figure.layout)
    if expected is not None:  # room for labels on a phone, where each half has a hand's breadth
        for axis, label in (("xaxis", "measured"), ("xaxis2", "expected")):
            room = [0, 1.15 * layout[axis]["range"][1]]
            layout[axis] = layout[axis] | {"title": {"text": label}, "nticks": 4, "range": room}
    title = figure.title
    if expected is not None:
        unit, _ = describe.ledger_unit(measured, expected)
        label = measured.window.label
        whose = f"{label}," if "," in label else label
        title = f"Where the time of {whose} goes beside what is expected for the same work ({unit})"
    return replace(figure, title=title, layout=layout, numbers=replace(figure.numbers, notes=()))


def _as_it_runs(recorded: Ledger, as_it_runs: Ledger) -> Table:
    unit, _ = describe.ledger_unit(recorded, as_it_runs)
    table = replayed_ledger_table(recorded, as_it_runs, bars=False)
    return replace(table, title=f"As recorded, and as it runs ({unit})", notes=())


def _gaps(lines: Sequence[Gap], at: str, *, on_host: bool) -> Table:
    table = gap_table(list(lines), at, on_host=on_host)
    rows = ((row[0].replace("+", " + "), *row[1:]) for row in table.rows)  # can break on a phone
    return replace(table, rows=tuple(rows))


def head_table(traced: TracedJob, diagnosis: Diagnosis, price: float | None) -> Table:
    """The audited window, ranks, device, step, MFU and cost."""
    ledger = traced.job.ledger
    rows = [
        ("window", f"{ledger.window.label}, {format_seconds(ledger.wall_seconds)}"),
        ("ranks", _ranks(ledger)),
        ("device", _device(traced)),
        ("step", _step(traced, diagnosis)),
        *_unprofiled(diagnosis),
        ("MFU", describe.mfu_text(ledger).removeprefix("MFU ")),
        ("useful", _useful(ledger)),
    ]
    if price is not None:
        rows.append(("cost", _cost(ledger, price)))
    if ledger.joules is not None:
        watts = format_si(ledger.joules / ledger.gpu_seconds, "W")
        rows.append(("energy", f"{format_si(ledger.joules, 'J')}, {watts} per GPU"))
    return Table(
        title="What was audited",
        columns=columns("figure", "value", wrap="value"),
        rows=tuple(rows),
    )


def _ranks(ledger: Ledger) -> str:
    if ledger.gpus_total is None:
        return f"{ledger.gpus:,} recorded; the size of the job is unknown"
    return f"{ledger.gpus:,} recorded of {ledger.gpus_total:,}"


def _device(traced: TracedJob) -> str:
    reported = traced.ranks[0].device
    if not traced.ranks[0].on_device:
        return "none: the host computed"
    if traced.accelerator is None:
        return reported or "not named in the recording (--on names it)"
    return (
        f"{traced.accelerator.name} (the driver calls it {reported})"
        if reported
        else traced.accelerator.name
    )


def _step(traced: TracedJob, diagnosis: Diagnosis) -> str:
    times = [seconds for rank in traced.ranks for seconds in rank.step_seconds if rank.steps]
    if not times:
        return "no step is marked"
    text = f"{format_seconds(median(times))} in the median"
    if len(times) > 1:
        text += f", {format_seconds(min(times))} to {format_seconds(max(times))}"
    if diagnosis.expected is not None:
        ledger = traced.job.ledger
        ratio = diagnosis.expected.at_equal_work(ledger).gpu_seconds / ledger.gpu_seconds
        text += f"; expected {format_seconds(ratio * median(times))}"
    return text


def _unprofiled(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    if diagnosis.as_it_runs is not None:
        return [("without profiler", step_text(diagnosis.as_it_runs))]
    reason = diagnosis.not_replayed
    return [("without profiler", f"unknown: {reason}")] if reason else []


def _useful(ledger: Ledger) -> str:
    if ledger.mfu is None:
        return f"unknown: needs {ledger.unavailable.get('compute.model', 'model FLOPs')}"
    worth = CardCost(ledger=ledger, price=None)
    useful, *rest = ((name, worth.share(s)) for name, s in owner_seconds(ledger).items())
    text = f"{useful[1]} of {worth.seconds(ledger.gpu_seconds)}"
    return text + "".join(f", {name} {share}" for name, share in rest)


def _cost(ledger: Ledger, price: float) -> str:
    noun = "rank" if ledger.on_host else "GPU"
    text = f"${ledger.gpus * price:,.2f}/h for {ledger.gpus:,} {noun}s at ${price:,.2f} each"
    if ledger.gpus == 1:
        text = f"${price:,.2f}/h for 1 {noun}"
    if ledger.mfu is not None:
        lost = (1 - ledger.mfu) * ledger.gpus * price
        text += f"; ${lost:,.2f} of it buys no model FLOPs"
    if ledger.gpus_total is not None and ledger.gpus_total > ledger.gpus:
        whole = ledger.gpus_total * price
        text += f"; ${whole:,.2f}/h for all {ledger.gpus_total:,} ranks"
    return text


def _unknown(traced: TracedJob, diagnosis: Diagnosis) -> list[Table]:
    """Missing signals, skipped rules, the expectation, left out input and notes."""
    ledger = traced.job.ledger
    return [
        _listed("Unavailable accounts", ("account", "missing signal"), ledger.unavailable.items()),
        _listed(
            "Skipped rules: missing signal",
            ("rule", "missing signal"),
            [(skipped.rule, skipped.missing) for skipped in diagnosis.abstained],
        ),
        _listed("The expectation", ("part", "text"), _expectation(ledger, diagnosis)),
        _listed(
            "Left out and noted",
            ("kind", "text"),
            [
                *(("left out", text) for text in traced.left_out),
                *(("note", text) for text in (*traced.notes, *traced.job.notes, *diagnosis.notes)),
            ],
        ),
    ]


def _expectation(measured: Ledger, diagnosis: Diagnosis) -> list[tuple[str, str]]:
    expected = diagnosis.expected
    if expected is None:
        return [("none", diagnosis.expected_reason)] if diagnosis.expected_reason else []
    lacks = expected.ledger.unavailable
    return [
        ("source", expected.name),
        *(("assumed", text) for text in expected.assumed),
        *(("lacks", f"{n}, {why}") for n, why in lacks.items() if n not in measured.unavailable),
    ]


def _listed(
    title: str, headers: tuple[str, str], rows: Iterable[Sequence[str]], most: int = MAX_ROWS
) -> Table:
    all_rows = [tuple(row) for row in rows]
    hidden = len(all_rows) - most
    return Table(
        title=title,
        columns=columns(*headers, wrap=headers[1]),
        rows=tuple(all_rows[:most]),
        notes=(f"{hidden:,} more: audit -o json has all",) if hidden > 0 else (),
    )
