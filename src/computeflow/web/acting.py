"""What a page may change: a session's role, and the actions of a controller. All of it is POST.

POST /session              {"token": "..."}   become the operator whose token it is
POST /session/end          {}
POST /actions/{id}/approve | dismiss | undo   {}
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from fastapi import Body, FastAPI, Path, Request
from fastapi.responses import JSONResponse, Response

from computeflow.answers.action_lists import (
    ActionAnswer,
    approve_action,
    dismiss_action,
    undo_action,
)
from computeflow.collection.collector.clients import RefusedError
from computeflow.errors import InputError
from computeflow.web.access.security import Doorkeeper
from computeflow.web.page_answers import OpeningDep, ViewerDep

Verb = Literal["approve", "dismiss", "undo"]
_VERBS: dict[str, Callable[..., ActionAnswer]] = {
    "approve": approve_action,
    "dismiss": dismiss_action,
    "undo": undo_action,
}
_MAX_TOKEN = 1_000
_MAX_NUMBER = 2**53


def add_acting(application: FastAPI) -> None:
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"description": text}
        for status, text in (
            (403, "Not an operator, or not from our own page."),
            (404, "No such action, or no store."),
            (409, "The action is in a state that does not allow it."),
            (411, "A body without its length."),
            (413, "A body that is too large."),
            (503, "The store cannot be read or written at the moment."),
        )
    }
    for address, function in (
        ("/session", _sign_in),
        ("/session/end", _sign_out),
        ("/actions/{number}/{verb}", _act),
    ):
        application.add_api_route(address, function, methods=["POST"], responses=refusals)


async def _sign_in(
    request: Request, viewer: ViewerDep, token: str = Body(embed=True, max_length=_MAX_TOKEN)
) -> Response:
    """Take another role by its token."""
    keeper: Doorkeeper = request.app.state.doorkeeper
    address = request.client.host if request.client else ""
    known = keeper.open_session(token, address, time.monotonic())
    keeper.close_session(viewer)
    content = {"role": known.role, "name": known.name}
    return JSONResponse(content, headers={"set-cookie": keeper.cookie_line(known.session)})


async def _sign_out(request: Request, viewer: ViewerDep) -> Response:
    """Forget this session."""
    keeper: Doorkeeper = request.app.state.doorkeeper
    keeper.close_session(viewer)
    return JSONResponse({"role": None}, headers={"set-cookie": keeper.cookie_line("")})


def _act(
    opening: OpeningDep, viewer: ViewerDep, verb: Verb, number: int = Path(ge=1, le=_MAX_NUMBER)
) -> Response:
    """Approve, dismiss or undo an action, as an operator; who did it is kept."""
    if not viewer.may_act:
        raise RefusedError(403, "readers cannot act: an action needs an operator's token")
    try:
        known = opening.actions()
    except InputError as error:
        raise RefusedError(503, str(error)) from None
    if known is None:
        raise RefusedError(404, "recordings have no actions: open a collector's store")
    if number not in {action.id for action in known.actions}:
        raise RefusedError(404, f"action {number}: no such action")
    try:
        answer = _VERBS[verb](number, store=opening.path, by=viewer.name)
    except InputError as error:
        raise RefusedError(409, str(error)) from None
    return JSONResponse(answer.to_dict() | {"headline": answer.headline})
