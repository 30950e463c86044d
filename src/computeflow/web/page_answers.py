"""What a page answers: an `Answer` of the library in an envelope, or what to run where there is none.

{"schema": "computeflow.page/1", "title", "headline", "result": <to_dict()>, ...}
{"schema": "computeflow.page/1", "title", "empty": {"text", "commands"}}
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, get_args

from fastapi import Depends, Request
from fastapi.params import Depends as DependsClass
from fastapi.responses import Response

from computeflow.answers.answer import Answer
from computeflow.web.access.security import Viewer
from computeflow.web.sources.opening import Opening

SCHEMA = "computeflow.page/1"
Content = dict[str, Any]


async def _opening(request: Request) -> Opening:
    opening: Opening = request.app.state.opening
    return opening


async def _viewer(request: Request) -> Viewer:
    viewer: Viewer = request.state.viewer
    return viewer


OpeningDep = Annotated[Opening, Depends(_opening)]
"""A parameter of a page: the recordings or the store that it is about."""
ViewerDep = Annotated[Viewer, Depends(_viewer)]
"""A parameter of a page: who asks."""


def queries_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Parameters that an address gives a page, without what the server adds itself."""
    signature = inspect.signature(function, eval_str=True)
    return tuple(
        name
        for name, each in signature.parameters.items()
        if not any(isinstance(part, DependsClass) for part in get_args(each.annotation))
    )


def page_content(title: str, answer: Answer | None, **more: Any) -> Content:
    """The library's answer, and beside it what only a page shows; its headline unless one is given."""
    result = None if answer is None else answer.to_dict()
    if "headline" not in more:
        more = {"headline": "" if answer is None else answer.headline, **more}
    return {"schema": SCHEMA, "title": title, "result": result, **more}


def empty_content(title: str, text: str, commands: Sequence[str], **more: Any) -> Content:
    empty = {"text": text, "commands": [*commands]}
    return {"schema": SCHEMA, "title": title, "empty": empty, **more}


def working_response(progress: str, seconds: float) -> Response:
    """The answer to a question that is still computed: how far it is. Ask again."""
    working = {"progress": progress, "seconds": round(seconds, 1)}
    body = json.dumps({"schema": SCHEMA, "working": working})
    return Response(body, status_code=202, media_type="application/json")
