"""`as_page`, `as_file`: routes whose content is made once for all who ask, while they wait."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from computeflow.collection.collector.clients import RefusedError
from computeflow.errors import ComputeFlowError
from computeflow.web.access.security import Viewer
from computeflow.web.events import tag_of
from computeflow.web.page_answers import queries_of, working_response
from computeflow.web.page_bodies import PageBody
from computeflow.web.page_making import Making

_PREFER_WAIT = re.compile(r"\bwait=(\d{1,4})\b")
_LOOK_SECONDS = 1.0
"""So often it is looked whether a client that waits is still there; and the source has so long at least
to say whether it has changed."""
MAX_CLIENT_WAITS = 16
"""Pages that are made for one client at a time; a browser asks for six."""


def as_page(function: Callable[..., Any]) -> Callable[..., Response | Awaitable[Response]]:
    """The function with its content as bytes, made once for the same values until the source changes.

    One that returns a Response (from the workbench, which remembers) is taken as it is. Pages without
    the source, such as the catalog, are made once.
    """
    if inspect.signature(function, eval_str=True).return_annotation is Response:
        return function
    return _shared(function, lambda parameters: _page_body(function(**parameters)))


def as_file(function: Callable[..., Response]) -> Callable[..., Response | Awaitable[Response]]:
    """A file that takes as long as a page: made once for all who wait, and not kept."""

    def body(parameters: Mapping[str, Any]) -> PageBody:
        made = function(**parameters)
        return PageBody(content=bytes(made.body), headers=dict(made.headers), kept=False)

    return _shared(function, body)


def _shared(
    function: Callable[..., Any], make: Callable[[Mapping[str, Any]], PageBody]
) -> Callable[..., Awaitable[Response]]:
    signature = inspect.signature(function, eval_str=True)
    follows = "opening" in signature.parameters
    values = queries_of(function)
    asked = inspect.Parameter("asked", inspect.Parameter.KEYWORD_ONLY, annotation=Request)

    @wraps(function)
    async def answer(asked: Request, **parameters: Any) -> Response:
        state = asked.app.state
        progress = f"reading the {state.opening.kind}"
        until = time.monotonic() + _wait_seconds(asked)
        revision = None
        if follows:
            looking: Making[Hashable] = state.revisions.ask()
            if not await _is_made(looking, asked, max(until, time.monotonic() + _LOOK_SECONDS)):
                return working_response(progress, looking.seconds)
            revision = _revision_of(looking)
        key = (function, *(parameters[name] for name in values))
        making: Making[PageBody] = state.bodies.ask(key, revision, lambda: make(parameters))
        if not await _is_made(making, asked, until):
            return working_response(progress, making.seconds)
        body = making.made.result()
        return Response(body.content, media_type="application/json", headers=body.headers)

    answer.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), asked], return_annotation=Response
    )
    return answer


def _page_body(content: dict[str, Any]) -> PageBody:
    """Encoded here: FastAPI's own encoder would walk through it again."""
    encoded = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    return PageBody(
        content=encoded,
        headers={"etag": f'"{tag_of(encoded)}"'},
        kept=not (content.get("empty") or content.get("left_out")),
    )


def _revision_of(looking: Making[Hashable]) -> Hashable:
    """RefusedError where the source itself cannot be read: no value of the address is wrong."""
    try:
        return looking.made.result()
    except ComputeFlowError as error:
        raise RefusedError(503, str(error)) from None


async def _is_made(making: Making[Any], asked: Request, until: float) -> bool:
    """Whether it is made by then; no longer waited for once the client has left."""
    comes_back = False
    try:
        if not making.made.done():
            with _place_of(asked):
                comes_back = await _wait(making, asked, until)
        return making.made.done()
    finally:
        making.leave(comes_back=comes_back)


async def _wait(making: Making[Any], asked: Request, until: float) -> bool:
    """Whether the client is still there."""
    made = asyncio.wrap_future(making.made)
    made.add_done_callback(take_fault)
    while not making.made.done() and (left := until - time.monotonic()) > 0:
        await asyncio.wait([made], timeout=min(left, _LOOK_SECONDS))
        if await asked.is_disconnected():
            return False
    return True


@contextmanager
def _place_of(asked: Request) -> Iterator[None]:
    """One of the pages that a client waits for; RefusedError for more than one may."""
    waits: Counter[str] = asked.app.state.waits
    viewer: Viewer = asked.state.viewer
    client = viewer.session or (asked.client.host if asked.client else "")
    if client and waits[client] >= MAX_CLIENT_WAITS:
        raise RefusedError(429, f"more than {MAX_CLIENT_WAITS} pages of one client are made", 1.0)
    waits[client] += 1
    try:
        yield
    finally:
        waits[client] -= 1
        if not waits[client]:
            del waits[client]


def take_fault(made: asyncio.Future[Any]) -> None:
    """Who asks again is told of it: asyncio must not say that nobody was."""
    if not made.cancelled():
        made.exception()


def _wait_seconds(request: Request) -> float:
    """How long a client would wait (`Prefer: wait=1`, RFC 7240); by default for as long as it takes."""
    said = _PREFER_WAIT.search(request.headers.get("prefer", ""))
    return float(said[1]) if said else math.inf
