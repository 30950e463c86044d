"""`/timeline/{run}` and `/trace/{run}`: one step along time, and the same as a file for Perfetto."""

from __future__ import annotations

import json
import re
from shlex import quote
from typing import Annotated

from fastapi import Query
from fastapi.responses import Response

from computeflow import codec
from computeflow.errors import InputError
from computeflow.web.opening import Opening, RunLine, find_run
from computeflow.web.page_answers import Content, Opened, empty_content, page_content
from computeflow.web.pages.flow import no_runs
from computeflow.web.step_spans import MAX_RANKS, MAX_TRACED_RANKS, StepSpans, chrome_trace

_TITLE = "Timeline"
_MAX_STEP = 2**53
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
Step = Annotated[
    int | None,
    Query(ge=0, le=_MAX_STEP, description="Step; the middle one of the attempt without it."),
]

Attempt = Annotated[
    int | None,
    Query(ge=0, le=_MAX_STEP, description="Attempt; the last that has the step without it."),
]


def timeline_page(opening: Opened, run: str, step: Step = None, attempt: Attempt = None) -> Content:
    """One step along time, a line for each rank."""
    line = find_run(opening, run)
    if line is None:
        return no_runs(_TITLE, opening)
    spans = _spans(opening, line, (step, attempt), MAX_RANKS)
    if spans is None:
        text = (
            f"{line.name}: no phases of this step are kept. A trace of one rank opens in Perfetto:"
        )
        return empty_content(
            _TITLE, text, [f"computeflow audit {quote(str(opening.path))} --perfetto step.json.gz"]
        )
    steps = opening.steps(line.id)
    attempts = () if steps is None else steps.attempts
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
        last_step=spans.step if mine is None else mine.last,
    )


def trace_file(opening: Opened, run: str, step: Step = None, attempt: Attempt = None) -> Response:
    """One step in Chrome's trace format, which ui.perfetto.dev opens."""
    line = find_run(opening, run)
    spans = None if line is None else _spans(opening, line, (step, attempt), MAX_TRACED_RANKS)
    if line is None or spans is None:
        raise InputError("no phases of this step are kept")
    name = f"{_ODD.sub('-', line.id)[:60]}-step-{spans.step}.json"
    return Response(
        json.dumps(chrome_trace(spans, line.name), separators=(",", ":")),
        media_type="application/json",
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


def _spans(
    opening: Opening, line: RunLine, which: tuple[int | None, int | None], most: int
) -> StepSpans | None:
    step, attempt = which
    if step is None:
        steps = opening.steps(line.id)
        if steps is None:
            return None
        ends = [*(each.column for each in steps.attempts[1:]), len(steps.steps)]
        chosen = [
            (each.number, steps.steps[(each.column + end) // 2])
            for each, end in zip(steps.attempts, ends, strict=True)
            if attempt in (None, each.number)
        ]
        if not chosen:
            return None
        attempt, step = chosen[-1]
    return opening.spans(line.id, step, most, attempt)
