"""`PageServer`: pages, session, actions, events and static files (FastAPI), behind the guard."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import quote, unquote

from fastapi import FastAPI, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles

from computeflow import __version__
from computeflow.cluster.topology import Topology
from computeflow.collection.collector.clients import RefusedError
from computeflow.errors import ComputeFlowError
from computeflow.files.names import shown_whole
from computeflow.units import DAY_SECONDS
from computeflow.web.access.guard import Guard, Scope
from computeflow.web.access.security import Doorkeeper, Viewer
from computeflow.web.acting import add_acting
from computeflow.web.computing import add_computing
from computeflow.web.events import (
    MAX_ADDRESSES,
    MAX_SESSION_STREAMS,
    MAX_VIEWERS,
    Broadcaster,
    tag_of,
)
from computeflow.web.page_answers import OpeningDep, ViewerDep, queries_of, working_response
from computeflow.web.page_bodies import Making, PageBodies
from computeflow.web.page_list import PAGES, Page, is_page, live_address
from computeflow.web.pages.single_run import run_readings
from computeflow.web.pages.timeline import trace_file
from computeflow.web.plotly_files import marks_module, plotly_bytes, plotly_packed
from computeflow.web.sources.opening import Opening
from computeflow.web.workers.workbench import Workbench
from computeflow.web.workers.worker_process import status_of
from computeflow.web.wrong_fields import WrongFieldError, field_of, limit_words

_STATIC = files("computeflow.web") / "static"
_GZIP_BYTES = 4_096
_QUERY = "%!$&'()*+,;=:@/?[]-._~"
"""Characters of a query that stay: it is quoted already, but for what a browser may leave."""
_PREFER_WAIT = re.compile(r"\bwait=(\d{1,4})\b")
_LOOK_SECONDS = 1.0
"""So often it is looked whether a client that waits is still there."""
_DAY = {"cache-control": f"private, max-age={DAY_SECONDS:.0f}"}
_PAGE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The page's content: an answer of the library in `result`, or `empty`.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    },
    202: {"description": "Still computing: `working` says how far it is; ask again."},
    400: {"description": "An invalid value; the text says which."},
    404: {"description": "An unknown name, with the nearest known ones."},
}


class PageServer:
    """The guarded ASGI application, and its events."""

    def __init__(
        self,
        opening: Opening,
        doorkeeper: Doorkeeper,
        workbench: Workbench | None = None,
        topology: Topology | None = None,
    ) -> None:
        self._routes = _make_routes(opening, doorkeeper)
        self._workbench = self._routes.state.workbench = workbench or Workbench()
        self._routes.state.topology = topology
        self.events = Broadcaster(self._fetch, opening.revision)
        self._routes.state.events = self.events
        shell = (_STATIC / "index.html").read_bytes()
        self.application = Guard(self._routes, doorkeeper, is_page, shell)

    def close(self) -> None:
        """End all streams, and what is being computed."""
        self.events.close()
        self._routes.state.bodies.close()
        self._workbench.close()

    async def _fetch(self, address: str) -> bytes | None:
        """The JSON of an address, as a reader gets it; None where it is refused."""
        path, _, query = address.partition("?")
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": unquote(path),
            "raw_path": None,
            "root_path": "",
            "query_string": quote(query, safe=_QUERY).encode(),
            "headers": [],
            "state": {"viewer": Viewer(role="reader", name="reader")},
        }
        status, parts = 500, list[bytes]()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            parts.append(message.get("body", b""))

        await self._routes(scope, receive, send)
        return b"".join(parts) if status == 200 else None


def _make_routes(opening: Opening, doorkeeper: Doorkeeper) -> FastAPI:
    application = FastAPI(
        title="ComputeFlow",
        version=__version__,
        description="The pages of `computeflow serve` as JSON, at the same addresses.",
        docs_url=None,
        redoc_url=None,
    )
    application.state.opening, application.state.doorkeeper = opening, doorkeeper
    application.state.bodies = PageBodies()
    application.add_middleware(GZipMiddleware, minimum_size=_GZIP_BYTES, compresslevel=5)
    application.add_exception_handler(ComputeFlowError, _say_error)
    application.add_exception_handler(RefusedError, _say_refusal)
    application.add_exception_handler(RequestValidationError, _say_wrong_fields)
    for page in PAGES:
        _add_page(application, page)
    application.add_api_route("/", _start, include_in_schema=False)
    application.add_api_route("/session", _session, summary="Who you are, and the pages.")
    application.add_api_route("/events", _events, summary="Pages as they change.")
    for name, function in (("plotly.min.js", _plotly), ("plotly_marks.js", _plotly_marks)):
        application.add_api_route(f"/static/{name}", function, include_in_schema=False)
    add_computing(application, _PAGE_RESPONSES)
    application.add_api_route(
        "/trace/{run:path}", _apart(trace_file), response_model=None, responses=_PAGE_RESPONSES
    )
    application.add_api_route(
        "/readings/{run:path}",
        _as_json(run_readings),
        response_model=None,
        responses=_PAGE_RESPONSES,
    )
    add_acting(application)
    application.mount("/static", StaticFiles(packages=[("computeflow.web", "static")]))
    return application


def _add_page(application: FastAPI, page: Page) -> None:
    application.add_api_route(
        page.address,
        _as_json(page.function),
        response_class=JSONResponse,
        response_model=None,
        summary=(inspect.getdoc(page.function) or page.title).splitlines()[0],
        responses=_PAGE_RESPONSES,
    )


def _as_json(function: Callable[..., Any]) -> Callable[..., Response | Awaitable[Response]]:
    """The function with its content as bytes, made once for the same values until the source changes.

    One that returns a Response (from the workbench, which remembers) is taken as it is. Pages without
    the source, such as the catalog, are made once.
    """
    signature = inspect.signature(function, eval_str=True)
    if signature.return_annotation is Response:
        return function
    follows = "opening" in signature.parameters
    values = queries_of(function)
    asked = inspect.Parameter("asked", inspect.Parameter.KEYWORD_ONLY, annotation=Request)

    @wraps(function)
    async def answer(asked: Request, **parameters: Any) -> Response:
        opening: Opening = asked.app.state.opening
        bodies: PageBodies = asked.app.state.bodies
        key = (function, *(parameters[name] for name in values))
        revision = await run_in_threadpool(opening.revision) if follows else None
        making = bodies.ask(key, revision, lambda: _encoded(function(**parameters)))
        if not await _is_made(making, asked, _wait_seconds(asked)):
            return working_response(f"reading the {opening.kind}", making.seconds)
        body = making.made.result()
        headers = {"etag": f'"{tag_of(body)}"'}
        return Response(body, media_type="application/json", headers=headers)

    answer.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), asked], return_annotation=Response
    )
    return answer


def _apart(function: Callable[..., Response]) -> Callable[..., Awaitable[Response]]:
    """The function in a thread of pages, for what takes as long as they do."""
    signature = inspect.signature(function, eval_str=True)
    asked = inspect.Parameter("asked", inspect.Parameter.KEYWORD_ONLY, annotation=Request)

    @wraps(function)
    async def answer(asked: Request, **parameters: Any) -> Response:
        bodies: PageBodies = asked.app.state.bodies
        making = bodies.run(lambda: function(**parameters))
        if not await _is_made(making, asked, math.inf):
            return working_response("nobody waits", making.seconds)
        return making.made.result()

    answer.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), asked]
    )
    return answer


async def _is_made(making: Making[Any], asked: Request, wait_seconds: float) -> bool:
    """Whether it is made after so long at most; no longer waited for once the client has left."""
    if making.made.done():
        return True
    made = asyncio.wrap_future(making.made)
    made.add_done_callback(_take_fault)
    until = time.monotonic() + wait_seconds
    with making.waited():
        while not making.made.done() and (left := until - time.monotonic()) > 0:
            await asyncio.wait([made], timeout=min(left, _LOOK_SECONDS))
            if await asked.is_disconnected():
                break
    return making.made.done()


def _take_fault(made: asyncio.Future[Any]) -> None:
    """Who asks again is told of it: asyncio must not say that nobody was."""
    if not made.cancelled():
        made.exception()


def _wait_seconds(request: Request) -> float:
    """How long a client would wait (`Prefer: wait=1`, RFC 7240); by default for as long as it takes."""
    said = _PREFER_WAIT.search(request.headers.get("prefer", ""))
    return float(said[1]) if said else math.inf


def _encoded(content: dict[str, Any]) -> bytes:
    """Encoded here: FastAPI's own encoder would walk through it again."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


async def _start() -> Response:
    return RedirectResponse("/flow", status_code=303)


async def _session(opening: OpeningDep, viewer: ViewerDep, request: Request) -> dict[str, Any]:
    """Who asks, what is open, and the pages there are."""
    keeper: Doorkeeper = request.app.state.doorkeeper
    return {
        "role": viewer.role,
        "name": viewer.name,
        "operators": bool(keeper.operators),
        "kind": opening.kind,
        "source": shown_whole(str(opening.path)),
        "version": __version__,
        "pages": [
            {
                "address": page.address,
                "pattern": page.pattern,
                "title": page.title,
                "script": page.script,
                "menu": page.menu,
                "live": page.live,
                "under": page.under or page.address,
            }
            for page in PAGES
        ],
    }


async def _events(
    request: Request,
    viewer: ViewerDep,
    of: Annotated[list[str], Query(min_length=1, max_length=MAX_ADDRESSES)],
    known: Annotated[list[str], Query(max_length=MAX_ADDRESSES)] = [],  # noqa: B006
) -> Response:
    """Server-sent events: the content of each address whenever it changes."""
    events: Broadcaster = request.app.state.events
    keeper: Doorkeeper = request.app.state.doorkeeper
    address = request.client.host if request.client else ""
    latest = request.headers.get("last-event-id")  # of a browser that lost its connection
    parts = events.stream(
        [*map(live_address, of)],
        known if latest is None else [latest],
        viewer.session or address,
        MAX_SESSION_STREAMS if viewer.session else MAX_VIEWERS,
        lambda: keeper.knows(viewer, time.monotonic()),
    )
    return StreamingResponse(parts, media_type="text/event-stream")


def _plotly(request: Request) -> Response:
    if "gzip" in request.headers.get("accept-encoding", ""):
        packed = _DAY | {"content-encoding": "gzip", "vary": "Accept-Encoding"}
        return Response(plotly_packed(), media_type="text/javascript", headers=packed)
    return Response(plotly_bytes(), media_type="text/javascript", headers=_DAY)


def _plotly_marks() -> Response:
    return Response(marks_module(), media_type="text/javascript", headers=_DAY)


def _say_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ComputeFlowError)
    return _plain_json(
        {"error": shown_whole(str(error)), "field": field_of(error)}, status_of(error)
    )


def _say_refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    wait = error.retry_seconds
    return _plain_json(
        {
            "error": shown_whole(error.text),
            "field": error.field if isinstance(error, WrongFieldError) else "",
        },
        error.status,
        headers={} if wait is None else {"retry-after": str(max(round(wait), 1))},
    )


def _say_wrong_fields(_: Request, error: Exception) -> Response:
    """FastAPI's own answer without what was sent, which JSON cannot always hold, and the first wrong
    value in plain words.
    """
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    where = faults[0]["loc"][-1]
    kept = [{name: each[name] for name in ("loc", "msg", "type")} for each in faults]
    field = where if isinstance(where, str) else ""
    said = {"error": limit_words(faults[0]), "field": field, "detail": kept}
    return _plain_json(said, 422)


def _plain_json(content: Any, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """In ASCII: names of files may have characters that no encoding takes."""
    return Response(json.dumps(content), status, headers, media_type="application/json")
