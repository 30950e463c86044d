"""`/runs` and `/runs/{run}`: all runs in one table; one run step by step and rank by rank."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Depends, Query

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.audits import AuditAnswer
from computeflow.answers.live_tops import TopAnswer
from computeflow.ledger import Ledger
from computeflow.web.page_answers import Content, OpeningDep, page_content
from computeflow.web.page_figures import figures_of
from computeflow.web.pages.flow import live_headline, no_runs
from computeflow.web.sources.opening import RunLine, find_run
from computeflow.web.wrong_fields import WrongFieldError

_NO_READINGS = (
    "No readings of memory, power, temperature or clocks in this recording: `computeflow record` "
    "keeps memory; `computeflow agent` on the nodes sends all of them to a collector."
)


_ORDERS = (
    "run",
    "state",
    "started",
    "ranks",
    "steps",
    "step",
    "tokens",
    "mfu",
    "goodput",
    "restarts",
    "cost",
)
"""Columns of the list by which the browser orders it (`static/pages/runs.js`)."""


async def _check_order(
    sort: Annotated[
        str | None,
        Query(max_length=20, description="The page's order: a column, or it with - before it."),
    ] = None,
) -> None:
    if sort and sort.removeprefix("-") not in _ORDERS:
        names = f"{', '.join(_ORDERS)}; each with - before it for the other way round"
        raise WrongFieldError(400, f"sort: {sort!r} is none of {names}", "sort")


OrderDep = Annotated[None, Depends(_check_order)]
"""A parameter of a page that the browser orders: the JSON has one order."""


def runs_page(opening: OpeningDep, order: OrderDep = None) -> Content:
    """All runs, the latest first."""
    lines = opening.runs()
    if not lines:
        return no_runs("Runs", opening)
    return page_content(
        "Runs", opening.runs_answer(), runs=codec.encode(lines), left_out=opening.left_out(None)
    )


def run_page(
    opening: OpeningDep,
    run: str,
    of: Annotated[
        Literal["seconds", "own"] | None,
        Query(
            description="What the heat map shows: whole steps, or without waits for others, by which "
            "a late rank stands out; by default that, where it is known of several ranks."
        ),
    ] = None,
) -> Content:
    """One run: step times, MFU, goodput, restarts, a heat map of rank and step, memory, power."""
    line = find_run(opening, run)
    assert line is not None
    answer: Answer | None = opening.audit(line.id) or opening.top()
    steps = opening.steps(line.id)
    apart = steps is not None and line.gpus > 1 and not steps.waits_missing
    return page_content(
        line.name,
        answer,
        headline=_headline(answer, line),
        run=codec.encode(line),
        curve=None if steps is None else steps.curve(),
        heat=None if steps is None else steps.picture(of or ("own" if apart else "seconds")),
        waits_missing="" if steps is None else steps.waits_missing,
        ideal_step_seconds=_ideal_step_seconds(answer, line),
        figures=[] if answer is None else _figures(answer),
        steps_basis="" if line.step_seconds_recorded is None else "as recorded, with the profiler",
        steps_missing="" if steps is not None else "no steps yet",
        left_out=opening.left_out(line.id, "steps"),
    )


def _headline(answer: Answer | None, line: RunLine) -> str:
    if isinstance(answer, TopAnswer):
        findings: Any = answer.to_dict()["findings"]
        return live_headline(line, [each for each in findings if each["run"] == line.id])
    return "" if answer is None else answer.headline


def run_readings(opening: OpeningDep, run: str) -> Content:
    """Power, memory, temperature and clocks of a run over time, and its energy.

    Apart from the run's page: reading them takes longer than the rest of it.
    """
    line = find_run(opening, run)
    assert line is not None
    curves = opening.readings(line.id)
    return page_content(
        line.name,
        None,
        run=line.id,
        readings=None if curves is None else codec.encode(curves),
        readings_missing=_NO_READINGS if curves is None else curves.missing,
        left_out=opening.left_out(line.id, "readings"),
    )


def _ideal_step_seconds(answer: Answer | None, line: RunLine) -> float | None:
    """Time of one step's model FLOPs at the device's peak; its MFU is this over its time."""
    if not isinstance(answer, AuditAnswer):
        if line.mfu is None or line.step_seconds is None:
            return None
        return line.mfu * line.step_seconds
    ledger: Ledger | None = answer.report.shown_ledger
    if ledger is None or ledger.mfu is None or not line.step:
        return None
    return ledger.booked("compute.model") / ledger.gpus / line.step


def _figures(answer: Answer) -> list[dict[str, Any]]:
    """Figures of the report but the flow, which has a page."""
    if not isinstance(answer, AuditAnswer) or answer.report.traces is None:
        return []
    return figures_of(answer.parts())[1:]
