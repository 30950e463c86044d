"""What a page answers: an `Answer` of the library in an envelope, or what to run where there is none.

{"schema": "computeflow.page/1", "title", "headline", "result": <to_dict()>, ...}
{"schema": "computeflow.page/1", "title", "empty": {"text", "commands"}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Depends, Request

from computeflow.answers.answer import Answer
from computeflow.web.opening import Opening
from computeflow.web.security import Viewer

SCHEMA = "computeflow.page/1"
Content = dict[str, Any]


def _opening(request: Request) -> Opening:
    opening: Opening = request.app.state.opening
    return opening


def _viewer(request: Request) -> Viewer:
    viewer: Viewer = request.state.viewer
    return viewer


Opened = Annotated[Opening, Depends(_opening)]
"""A parameter of a page: the recordings or the store that it is asked about."""
Asking = Annotated[Viewer, Depends(_viewer)]
"""A parameter of a page: who asks."""


def page_content(title: str, answer: Answer | None, **more: Any) -> Content:
    """The library's answer, and beside it what only a page shows; its headline unless one is given."""
    result = None if answer is None else answer.to_dict()
    if "headline" not in more:
        more = {"headline": "" if answer is None else answer.headline, **more}
    return {"schema": SCHEMA, "title": title, "result": result, **more}


def empty_content(title: str, text: str, commands: Sequence[str], **more: Any) -> Content:
    empty = {"text": text, "commands": [*commands]}
    return {"schema": SCHEMA, "title": title, "empty": empty, **more}
