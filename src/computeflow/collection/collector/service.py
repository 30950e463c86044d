"""`make_application`: the collector's HTTP, as an ASGI application.

Batches are the one route that thousands of nodes call every second, and do not go through the router;
the others are Starlette's. Whatever a client sends, the answer is a status and one line, or JSON.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from computeflow import codec
from computeflow.collection.collector.batch_route import (
    BatchRoute,
    Receive,
    Scope,
    Send,
    send_refusal,
)
from computeflow.collection.collector.clients import Clients, RefusedError
from computeflow.collection.collector.collector_options import ClientLimits
from computeflow.collection.collector.intake import Intake
from computeflow.collection.collector.loop import LiveView
from computeflow.collection.collector.watching import LiveWatch
from computeflow.collection.outputs.metrics import CONTENT_TYPE, render_metrics
from computeflow.collection.store.state_database import StateDatabase
from computeflow.errors import InputError, UnavailableError
from computeflow.units import WEEK_SECONDS

Application = Callable[[Scope, Receive, Send], Awaitable[None]]
_MAX_SILENCE_BYTES = 4096
_MAX_SILENCE_SECONDS = 4 * WEEK_SECONDS


class CollectorService:
    """What the routes answer from."""

    def __init__(
        self,
        intake: Intake,
        state: StateDatabase,
        watch: LiveWatch | None,
        tokens: tuple[bytes, ...],
        limits: ClientLimits,
    ) -> None:
        self.intake, self.state, self.watch = intake, state, watch
        self.clients = Clients(tokens, limits)
        self.batches = BatchRoute(intake, self.clients, limits)
        self.began = time.monotonic()

    def figures(self) -> dict[str, float]:
        """Figures of the collector itself, for `/metrics`."""
        counts = asdict(self.intake.counts)
        view = self.watch.view() if self.watch is not None else None
        return {
            **{name: float(value) for name, value in counts.items()},
            "refused": float(counts["refused"] + self.batches.refused),
            "uptime_seconds": time.monotonic() - self.began,
            "watch_running": float(self.watch is not None and self.watch.is_running),
            "watch_restarts": float(self.watch.restarts if self.watch is not None else 0),
            "watched_batches": float(view.batches if view else 0),
            "tick_seconds": view.tick_seconds if view else 0.0,
            **{
                name.replace(" ", "_"): float(value)
                for name, value in self.state.counters().items()
            },
        }

    async def positions(self, request: Any) -> Any:
        run = request.query_params.get("run", "")
        if not run:
            raise RefusedError(400, "which run: /v1/positions?run=ID")
        ticket = self.intake.barrier(asyncio.get_running_loop().create_future())
        if ticket is not None:
            assert isinstance(ticket.done, asyncio.Future)
            await ticket.done
        return {"next": self.intake.next_of_run(run)}

    async def runs(self, _: Any) -> Any:
        return {"runs": codec.encode(self._view().runs)}

    async def findings(self, _: Any) -> Any:
        return {"findings": codec.encode(self._view().findings)}

    async def nodes(self, _: Any) -> Any:
        return {"nodes": codec.encode(self._view().nodes)}

    async def silence(self, request: Any) -> Any:
        size = request.headers.get("content-length", "")
        if not size.isdigit() or int(size) > _MAX_SILENCE_BYTES:
            raise RefusedError(413, 'a silence is {"seconds": N}')
        try:
            data = codec.from_json(await request.body(), "silence")
        except InputError as error:
            raise RefusedError(400, str(error)) from None
        seconds = data.get("seconds") if isinstance(data, dict) else None
        if not isinstance(seconds, int | float) or not 0 <= seconds <= _MAX_SILENCE_SECONDS:
            raise RefusedError(400, f"seconds: a number from 0 to {_MAX_SILENCE_SECONDS:.0f}")
        now = time.time()
        try:
            self.state.add_silence(request.path_params["key"], now + seconds, now)
        except InputError as error:
            raise RefusedError(404, str(error)) from None
        return {"key": request.path_params["key"], "silenced_until": now + seconds}

    async def health(self, _: Any) -> Any:
        counts = self.intake.counts
        return {
            "ok": True,
            "batches": counts.batches,
            "queue_bytes": counts.queue_bytes,
            "watched": self.watch is not None and self.watch.is_running,
        }

    def metrics(self) -> tuple[bytes, str]:
        view = self.watch.view() if self.watch is not None else LiveView(at=0.0)
        figures = self.figures()
        try:
            content = render_metrics(view.runs, view.findings, view.nodes, figures | view.sent)
        except UnavailableError:
            return plain_metrics(figures), "text/plain; version=0.0.4"
        return content, CONTENT_TYPE

    def _view(self) -> LiveView:
        if self.watch is None:
            raise RefusedError(503, "this collector does not watch runs", 60.0)
        return self.watch.view()


def plain_metrics(figures: dict[str, float]) -> bytes:
    """Figures of the collector alone, in Prometheus' text format."""
    lines = [f"computeflow_collector_{name} {value:.15g}" for name, value in figures.items()]
    return ("\n".join(lines) + "\n").encode()


def make_application(service: CollectorService) -> Application:
    try:
        from starlette.applications import Starlette
        from starlette.responses import Response
        from starlette.routing import Route
    except ImportError:
        raise UnavailableError(
            "collect needs starlette and uvicorn: pip install 'computeflow[collect]'"
        ) from None

    def answer(function: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Response]]:
        async def endpoint(request: Any) -> Response:
            try:
                content = json.dumps(await function(request), allow_nan=False)
            except RefusedError as error:
                return Response(f"{error.text}\n", error.status, media_type="text/plain")
            return Response(content, media_type="application/json")

        return endpoint

    async def metrics(_: Any) -> Response:
        content, kind = await asyncio.to_thread(service.metrics)
        return Response(content, headers={"content-type": kind})

    router = Starlette(
        routes=[
            Route("/v1/positions", answer(service.positions), methods=["GET"]),
            Route("/v1/runs", answer(service.runs), methods=["GET"]),
            Route("/v1/findings", answer(service.findings), methods=["GET"]),
            Route("/v1/nodes", answer(service.nodes), methods=["GET"]),
            Route("/v1/findings/{key}/silence", answer(service.silence), methods=["POST"]),
            Route("/healthz", answer(service.health), methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
        ]
    )

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/v1/batches":
            await service.batches(scope, receive, send)
            return
        try:
            if scope["path"] != "/healthz":
                service.clients.authorise(dict(scope["headers"]).get(b"authorization"))
            await router(scope, receive, send)
        except RefusedError as error:
            await send_refusal(send, error)

    return application
