"""Pages whose answer is computed when they are asked: the workbench's answer, or how far it is."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import Response

from computeflow.web.events import tag_of
from computeflow.web.page_answers import working_response
from computeflow.web.workers.tasks import MAX_GPUS
from computeflow.web.workers.workbench import LaneName, Workbench, Working
from computeflow.web.wrong_fields import WrongFieldError

_WAIT_SECONDS: dict[LaneName, float] = {"quick": 1.0, "long": 0.4}
"""A quick answer takes a tenth of that. While a worker starts, and of a long one, a viewer is told how
far it is, and asks again: who waits holds one of the server's threads."""
_NAME = 80
_LISTED = 12
"""Names of one list."""

MAX_SEQUENCE = 1 << 20
MAX_BATCH = 1 << 16

Model = Annotated[str, Query(max_length=_NAME, description="A model of the catalog.")]
Device = Annotated[str, Query(max_length=_NAME, description="An accelerator of the catalog.")]
Gpus = Annotated[int, Query(ge=1, le=MAX_GPUS)]
Sequence = Annotated[int, Query(ge=16, le=MAX_SEQUENCE, description="Tokens per sequence.")]
Batch = Annotated[int, Query(ge=1, le=MAX_BATCH, description="Sequences per step.")]
Precision = Annotated[str, Query(max_length=_NAME)]
Tokens = Annotated[str, Query(min_length=1, max_length=32, description="Tokens to train on: 2T.")]
OptionalTokens = Annotated[
    str | None, Query(min_length=1, max_length=32, description="Tokens to train on: 2T.")
]
Days = Annotated[float | None, Query(gt=0, le=36_500, allow_inf_nan=False, description="Days.")]
Price = Annotated[
    float | None, Query(gt=0, le=10_000, allow_inf_nan=False, description="$ per GPU-hour.")
]
Names = Annotated[str, Query(max_length=300, description="Names, separated by commas.")]


async def _workbench(request: Request) -> Workbench:
    bench: Workbench = request.app.state.workbench
    return bench


WorkbenchDep = Annotated[Workbench, Depends(_workbench)]
"""A parameter of a page: where it has its answer computed."""


def ask(bench: Workbench, lane: LaneName, task: str, parameters: Mapping[str, Any]) -> Response:
    """The page's content; 202 and how far it is where it takes longer."""
    answer = bench.ask(lane, task, parameters, _WAIT_SECONDS[lane])
    if isinstance(answer, Working):
        return working_response(answer.progress, answer.seconds)
    return Response(answer, media_type="application/json", headers={"etag": f'"{tag_of(answer)}"'})


def names(text: str, field: str) -> list[str]:
    """The names of a list, each once."""
    found = [*dict.fromkeys(part.strip() for part in text.split(",") if part.strip())]
    if len(found) > _LISTED:
        raise WrongFieldError(400, f"at most {_LISTED} names, not {len(found)}", field)
    return found


def this_date() -> str:
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()
