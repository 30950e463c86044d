"""`/timeline/{run}` and `/trace/{run}`: one step along time, and the same as a file for Perfetto."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from shlex import quote
from typing import Annotated

from fastapi import Query
from fastapi.responses import Response

from computeflow import codec
from computeflow.errors import InputError
from computeflow.web.page_answers import Content, OpeningDep, empty_content, page_content
from computeflow.web.pages.flow import no_runs
from computeflow.web.sources.opening import Opening, RunLine, StepPictures, Table, find_run
from computeflow.web.sources.step_spans import MAX_RANKS, MAX_TRACED_RANKS, chrome_trace

_TITLE = "Timeline"
_TABLES: tuple[Table, ...] = ("steps", "spans", "leads", "collectives")
_MAX_STEP = 2**53
_SHOWN = 3
"""Attempts whose steps are named where there is no such step."""
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
Step = Annotated[
    int | None,
    Query(
        ge=0,
        le=_MAX_STEP,
        description="Step; the slowest one after start-up, or of the last judged ones, without it.",
    ),
]

Attempt = Annotated[
    int | None,
    Query(ge=0, le=_MAX_STEP, description="Attempt; by default the last one that has the step."),
]


def timeline_page(
    opening: OpeningDep, run: str, step: Step = None, attempt: Attempt = None
) -> Content:
    """One step along time, a line for each rank."""
    line = find_run(opening, run)
    if line is None:
        return no_runs(_TITLE, opening)
    which = _chosen(opening, line, step, attempt)
    spans = None if which is None else opening.spans(line.id, which[0], MAX_RANKS, which[1])
    steps = opening.steps(line.id)
    attempts = () if steps is None else steps.attempts
    if spans is None:
        text, commands = _nothing(opening, line, steps, which or (step, attempt))
        mine = next((each for each in attempts if each.number == attempt), None)
        mine = mine or (attempts[-1] if attempts else None)
        return empty_content(
            _TITLE,
            text,
            commands,
            run=codec.encode(line),
            attempts=[each.number for each in attempts],
            attempt=None if mine is None else mine.number,
            first_step=None if mine is None else mine.first,
            last_step=None if steps is None or mine is None else steps.last_step(mine),
            left_out=opening.left_out(line.id, *_TABLES),
        )
    mine = next((each for each in attempts if each.number == spans.attempt), None)
    timeline = codec.encode(spans)
    missing = timeline.pop("waits_missing")
    return page_content(
        _TITLE,
        None,
        run=codec.encode(line),
        timeline=timeline,
        waits_missing=missing if line.gpus > 1 else "",  # one rank waits for nobody
        attempts=[each.number for each in attempts] or [spans.attempt],
        first_step=spans.step if mine is None else mine.first,
        last_step=spans.step
        if steps is None or mine is None
        else max(steps.last_step(mine), spans.step),
        left_out=opening.left_out(line.id, *_TABLES),
    )


def trace_file(
    opening: OpeningDep, run: str, step: Step = None, attempt: Attempt = None
) -> Response:
    """One step in Chrome's trace format, which ui.perfetto.dev opens."""
    line = find_run(opening, run)
    which = None if line is None else _chosen(opening, line, step, attempt)
    spans = None
    if line is not None and which is not None:
        spans = opening.spans(line.id, which[0], MAX_TRACED_RANKS, which[1])
    if line is None or spans is None:
        raise InputError("the phases of this step were not kept")
    name = f"{_ODD.sub('-', line.id)[:60]}-step-{spans.step}.json"
    return Response(
        json.dumps(chrome_trace(spans, line.name), separators=(",", ":")),
        media_type="application/json",
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


def _nothing(
    opening: Opening,
    line: RunLine,
    steps: StepPictures | None,
    which: tuple[int | None, int | None],
) -> tuple[str, list[str]]:
    """Why there is no step to draw, and what to run."""
    if steps is not None:
        return f"{line.name}: {_missing(steps, *which)}", []
    answer = opening.audit(line.id)
    if answer is None or answer.report.traces is None:
        return f"{line.name}: no step of it is known.", []
    text = f"{line.name}: its traces say of no step. One rank of a trace opens in Perfetto:"
    command = f"computeflow audit {quote(str(opening.path))} --perfetto step.json.gz"
    return text, [command]


def _missing(steps: StepPictures, step: int | None, attempt: int | None) -> str:
    """A step that ranks have may still have phases that cannot be read."""
    of = "" if attempt is None else f" of attempt {attempt}"
    known = [f"{each.first:,} to {steps.last_step(each):,}" for each in steps.attempts]
    several = f" (the last of {len(known)} attempts)" if known[_SHOWN:] else ""
    its = f"Its steps are {'; '.join(known[-_SHOWN:])}{several}."
    if step is None:
        return f"there is no attempt {attempt}. {its}"
    if step in _steps_of(steps, attempt):
        return f"the phases of step {step:,}{of} cannot be read. {its}"
    return f"no rank has step {step}{of}. {its}"


def _steps_of(steps: StepPictures, attempt: int | None) -> Sequence[int]:
    """Those of one attempt, or of all."""
    if attempt is None:
        return steps.steps
    ends = [each.column for each in steps.attempts[1:]] + [len(steps.steps)]
    pairs = zip(steps.attempts, ends, strict=True)
    return next((steps.steps[one.column : end] for one, end in pairs if one.number == attempt), ())


def _chosen(
    opening: Opening, line: RunLine, step: int | None, attempt: int | None
) -> tuple[int, int | None] | None:
    """The step and attempt that are asked for; without a step, one that is worth a look, where one is
    known.
    """
    if step is not None:
        return step, attempt
    steps = opening.steps(line.id)
    if steps is None:
        return None
    chosen = [each for each in steps.attempts if attempt in (None, each.number)]
    if not chosen:
        return None
    return steps.slowest_step(chosen[-1], _judged_steps(opening, line)), chosen[-1].number


def _judged_steps(opening: Opening, line: RunLine) -> int | None:
    """How many steps the last window had that a collector judged; None where there is none."""
    top = opening.top()
    runs = () if top is None else top.snapshot.runs
    for run in runs:
        if run.run == line.id and run.window_seconds and run.step_seconds:
            return max(round(run.window_seconds / run.step_seconds), 1)
    return None
