"""`POST /v1/batches`: a batch is read, checked, put to the journal and answered after the sync."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from computeflow.collection.collector.batch_bounds import read_batch
from computeflow.collection.collector.clients import Clients, RefusedError
from computeflow.collection.collector.collector_options import ClientLimits
from computeflow.collection.collector.intake import Intake
from computeflow.collection.wire.batches import Batch
from computeflow.errors import InputError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_LARGE_BYTES = 128 << 10
"""Bodies from here on are unpacked in a thread: others would wait for them."""


class BatchRoute:
    def __init__(self, intake: Intake, clients: Clients, limits: ClientLimits) -> None:
        self._intake, self._clients, self._limits = intake, clients, limits
        self._reading = 0
        self.refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, content = await self._answer(scope, receive)
            await send_json(send, status, content)
        except RefusedError as error:
            self.refused += 1
            await send_refusal(send, error)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        if scope["method"] != "POST":
            raise RefusedError(405, "batches are posted")
        headers: dict[bytes, bytes] = dict(scope["headers"])
        token = self._clients.authorise(headers.get(b"authorization"))
        address = scope["client"][0] if scope.get("client") else ""
        client = self._clients.admit(token, address, time.monotonic())
        body = await self._body(headers, receive)
        batch = await self._unpacked(body)
        done = asyncio.get_running_loop().create_future()

        def count(new_ranks: int) -> None:
            self._clients.count(client, batch.run, new_ranks, time.monotonic())

        try:
            verdict, ticket = self._intake.submit(batch, body, done, count)
        except InputError as error:
            raise RefusedError(400, str(error)) from None
        if ticket is not None:
            await done
            if ticket.error is not None:
                raise ticket.error
        if verdict == "new":  # nobody can have moved these since
            rows = [f'"{r.rank}.{r.attempt}": {r.first + r.records}' for r in batch.ranks]
            return 200, f'{{"next": {{{", ".join(rows)}}}}}'.encode()
        answer = {"next": self._intake.next_of(batch)} if batch.ranks else {"next": {}}
        return (200 if verdict == "known" else 409), json.dumps(answer).encode()

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        size = headers.get(b"content-length", b"")
        if not size.isdigit() or len(size) > 15:
            raise RefusedError(411, "a batch needs its Content-Length")
        length = int(size)
        if length > self._limits.body_bytes:
            raise RefusedError(
                413, f"a batch of {length:,} bytes: at most {self._limits.body_bytes:,}"
            )
        self._intake.check_room(length + self._reading)
        self._reading += length
        try:
            return await _received(length, receive)
        finally:
            self._reading -= length

    async def _unpacked(self, body: bytes) -> Batch:
        try:
            if len(body) < _LARGE_BYTES:
                return read_batch(body)
            return await asyncio.to_thread(read_batch, body)
        except InputError as error:
            raise RefusedError(400, str(error)) from None


async def _received(length: int, receive: Receive) -> bytes:
    message = await receive()
    body = message.get("body", b"")
    if not message.get("more_body"):
        if message["type"] == "http.disconnect" or len(body) != length:
            raise RefusedError(400, "a body of another length than it says")
        return bytes(body)
    parts, total = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        parts.append(message.get("body", b""))
        total += len(parts[-1])
        if total > length or message["type"] == "http.disconnect":
            break
    if total != length:
        raise RefusedError(400, "a body of another length than it says")
    return b"".join(parts)


async def send_json(send: Send, status: int, content: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def send_refusal(send: Send, error: RefusedError) -> None:
    content = error.text.replace("\n", " ").encode("utf-8", "backslashreplace") + b"\n"
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(content)).encode()),
    ]
    if error.retry_seconds is not None:
        headers.append((b"retry-after", str(max(round(error.retry_seconds), 1)).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.status in (411, 413):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
