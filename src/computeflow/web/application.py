"""`PageServer`: pages, session, actions, events and static files (FastAPI), behind the guard."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections import Counter
from collections.abc import Hashable, Mapping
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import quote, unquote

from fastapi import FastAPI, Query, Request
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
)
from computeflow.web.page_answers import OpeningDep, ViewerDep
from computeflow.web.page_bodies import PageBodies
from computeflow.web.page_list import PAGES, Page, is_page, live_address
from computeflow.web.page_making import Making, SharedCall
from computeflow.web.page_routes import as_file, as_page, take_fault
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
_DAY = {"cache-control": f"private, max-age={DAY_SECONDS:.0f}"}
_PAGE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The page's content: an answer of the library in `result`, or `empty`.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    },
    202: {"description": "Still computing: `working` says how far it is; ask again."},
    400: {
        "description": "An invalid value, or a recording that cannot be read; the text says which."
    },
    404: {"description": "An unknown name, with the nearest known ones."},
    503: {"description": "The source cannot be read at the moment; the text says why."},
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
        self.events = Broadcaster(self._fetch, self._revision)
        self._routes.state.events = self.events
        shell = (_STATIC / "index.html").read_bytes()
        self.application = Guard(self._routes, doorkeeper, is_page, shell)

    def read_ahead(self) -> None:
        """Begin with what the page of the latest run needs, while its reader opens a browser."""
        opening: Opening = self._routes.state.opening

        def read() -> None:
            for line in opening.runs()[:1]:
                opening.steps(line.id)

        self._routes.state.bodies.run(read)

    def close(self) -> None:
        """End all streams, and what is being computed."""
        self.events.close()
        self._routes.state.revisions.close()
        self._routes.state.bodies.close()
        self._workbench.close()

    async def _revision(self) -> Hashable:
        looking: Making[Hashable] = self._routes.state.revisions.ask()
        made = asyncio.wrap_future(looking.made)
        made.add_done_callback(take_fault)
        try:
            await asyncio.wait([made])  # a task that ends meanwhile ends nobody else's call
            return made.result()
        finally:
            looking.leave(comes_back=False)

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
    application.state.revisions = SharedCall(opening.revision)
    application.state.bodies = PageBodies()
    application.state.waits = Counter[str]()
    application.add_middleware(GZipMiddleware, minimum_size=_GZIP_BYTES, compresslevel=5)
    application.add_exception_handler(ComputeFlowError, _say_error)
    application.add_exception_handler(RefusedError, _say_refusal)
    application.add_exception_handler(RequestValidationError, _say_wrong_fields)
    application.add_exception_handler(400, _say_no_body)  # which FastAPI alone raises
    for page in PAGES:
        _add_page(application, page)
    application.add_api_route("/", _start, include_in_schema=False)
    application.add_api_route("/session", _session, summary="Who you are, and the pages.")
    application.add_api_route("/events", _events, summary="Pages as they change.")
    for name, function in (("plotly.min.js", _plotly), ("plotly_marks.js", _plotly_marks)):
        application.add_api_route(f"/static/{name}", function, include_in_schema=False)
    add_computing(application, _PAGE_RESPONSES)
    application.add_api_route(
        "/trace/{run:path}", as_file(trace_file), response_model=None, responses=_PAGE_RESPONSES
    )
    application.add_api_route(
        "/readings/{run:path}",
        as_page(run_readings),
        response_model=None,
        responses=_PAGE_RESPONSES,
    )
    add_acting(application)
    application.mount("/static", StaticFiles(packages=[("computeflow.web", "static")]))
    return application


def _add_page(application: FastAPI, page: Page) -> None:
    application.add_api_route(
        page.address,
        as_page(page.function),
        response_class=JSONResponse,
        response_model=None,
        summary=(inspect.getdoc(page.function) or page.title).splitlines()[0],
        responses=_PAGE_RESPONSES,
    )


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


def _say_no_body(_: Request, __: Exception) -> Response:
    said = "the request's body cannot be read: it is no JSON, or too deep"
    return _plain_json({"error": said, "field": "", "detail": said}, 400)


def _plain_json(content: Any, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """In ASCII: names of files may have characters that no encoding takes."""
    return Response(json.dumps(content), status, headers, media_type="application/json")
