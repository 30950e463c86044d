"""`Guard`: the door before every route. An ASGI application around ours.

In this order: the host's name, the token, how often, whether an action may act; then the page for
people, or JSON for `.json` and `Accept: application/json`, of the same address.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from html import escape
from typing import Any
from urllib.parse import parse_qs

from computeflow.collection.collector.clients import RefusedError
from computeflow.web.access.security import MAX_BODY_BYTES, RESPONSE_HEADERS, Doorkeeper, Viewer

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
_FAULT = "The server could not answer; where it runs, its log says why."
_OPENED = b"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>ComputeFlow</title>
<link rel="icon" href="/static/icon.svg">
<meta http-equiv="refresh" content="0;url=/flow"></head>
<body><p><a href="/flow">Continue</a></p></body></html>
"""
"""Our own page goes on: a redirect would belong to the site that the link was on, and a SameSite=Strict
cookie is not sent with it."""


class Guard:
    def __init__(
        self,
        application: Application,
        doorkeeper: Doorkeeper,
        is_page: Callable[[str], bool],
        shell: bytes,
    ) -> None:
        self._application, self._doorkeeper = application, doorkeeper
        self._is_page, self._shell = is_page, shell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        secured = _with_headers(send)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            await self._answer(scope, receive, secured, headers)
        except RefusedError as error:
            await _refuse(secured, error, wants_html=_wants_page(headers))

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]
    ) -> None:
        keeper, now = self._doorkeeper, time.monotonic()
        keeper.check_host(headers)
        address = scope["client"][0] if scope.get("client") else ""
        path, method = scope["path"], scope["method"]
        if path == "/open" and method == "GET":
            token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            await self._open(send, keeper.open_session(token, address, now).session)
            return
        viewer = keeper.viewer(headers, address, now)
        if method == "POST":
            keeper.check_acting(headers)
            receive = _bounded(receive)
        elif method != "GET":
            raise RefusedError(405, "only GET and POST are answered here")
        is_json = path.endswith(".json")
        if method == "GET" and not is_json and self._is_page(path) and _wants_page(headers):
            await _send(send, 200, self._shell, b"text/html; charset=utf-8")
            return
        if method == "GET" and _wants_page(headers):
            send = _readable(send)
        await self._application(_routed(scope, viewer), receive, send)

    async def _open(self, send: Send, session: str) -> None:
        cookie = (b"set-cookie", self._doorkeeper.cookie_line(session).encode())
        await _send(send, 200, _OPENED, b"text/html; charset=utf-8", cookie)


def _routed(scope: Scope, viewer: Viewer) -> Scope:
    """The scope for the routes: who asks is in its state, and the address is without `.json`."""
    path = scope["path"]
    if path.endswith(".json") and not path.startswith("/static/") and path != "/openapi.json":
        path = path.removesuffix(".json")
    return {**scope, "path": path, "raw_path": None, "state": {"viewer": viewer}}


def _wants_page(headers: dict[bytes, bytes]) -> bool:
    """Whether a person's browser asks: HTML is named, and before any JSON."""
    accept = headers.get(b"accept", b"").decode("latin-1").lower()
    kinds = [part.partition(";")[0].strip() for part in accept.split(",")]
    if "text/html" not in kinds:
        return False
    return "application/json" not in kinds[: kinds.index("text/html")]


def _readable(send: Send) -> Send:
    """Refusals of our routes as a page: a browser asked for an address that has none."""
    refused: int | None = None
    body = b""

    async def readable(message: MutableMapping[str, Any]) -> None:
        nonlocal refused, body
        if message["type"] == "http.response.start" and message["status"] >= 400:
            refused = message["status"]
        elif refused is None:
            await send(message)
        else:
            body += message.get("body", b"")
            if not message.get("more_body", False):
                page = _REFUSED_PAGE.format(
                    status=refused, text=escape(_said(refused, body)), more=_BACK
                )
                await _send(send, refused, page.encode(), b"text/html; charset=utf-8")

    return readable


def _said(status: int, body: bytes) -> str:
    """The error in a refusal of our routes, which is JSON; FastAPI's own has a `detail`."""
    try:
        content = json.loads(body)
    except ValueError:
        return _FAULT if status >= 500 else "There is no such page."
    said = content.get("error") or content.get("detail")
    if isinstance(said, list):
        said = "; ".join(str(each.get("msg", "")) for each in said)
    return "There is no such page." if said in (None, "Not Found") else str(said)


def _with_headers(send: Send) -> Send:
    async def secured(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            given = list(message.get("headers", ()))
            names = {name for name, _ in given}
            added = [pair for pair in RESPONSE_HEADERS if pair[0] not in names]
            if b"cache-control" not in names:
                added.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*given, *added]}
        await send(message)

    return secured


def _bounded(receive: Receive) -> Receive:
    """The body, cut off where it is longer than it may be, whatever its header said."""
    taken = 0

    async def bounded() -> MutableMapping[str, Any]:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MAX_BODY_BYTES:
            raise RefusedError(413, f"the request is larger than {MAX_BODY_BYTES:,} bytes")
        return message

    return bounded


async def _send(
    send: Send, status: int, content: bytes, kind: bytes, *more: tuple[bytes, bytes]
) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(content)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


_BACK = '<p><a href="/flow">Flow</a></p>'
_REFUSED_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>ComputeFlow</title>
<link rel="icon" href="data:,"></head>
<body><h1>{status}</h1><p>{text}</p>{more}</body></html>
"""


async def _refuse(send: Send, error: RefusedError, *, wants_html: bool) -> None:
    """Our own words alone: nothing of the request is in them."""
    more: list[tuple[bytes, bytes]] = []
    if error.retry_seconds is not None:
        more.append((b"retry-after", str(max(round(error.retry_seconds), 1)).encode()))
    if error.status == 401:
        more.append((b"www-authenticate", b"Bearer"))
    if wants_html:
        page = _REFUSED_PAGE.format(status=error.status, text=error.text, more="")
        await _send(send, error.status, page.encode(), b"text/html; charset=utf-8", *more)
    else:
        text = f"{error.text}\n".encode()
        await _send(send, error.status, text, b"text/plain; charset=utf-8", *more)
