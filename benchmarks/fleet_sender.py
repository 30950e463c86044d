"""Bodies to a collector over HTTP, many connections in one thread: `FleetSender`.

Requests are prepared bytes on raw sockets, one at a time on each connection, so that what is loaded is
the collector. A body that the collector has no room for (503, 429) is sent again after the time that it
asks for; all others must be taken.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

_MAX_HEAD_BYTES = 1 << 16
_BUSY = (429, 503)
_WAITING = 256
"""Bodies that may wait for a connection: some seconds of its nodes."""


class RefusedError(Exception):
    """A collector that did not take a batch."""


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    waiting: asyncio.Queue[tuple[bytes, float]] = field(
        default_factory=lambda: asyncio.Queue(_WAITING)
    )
    """Bodies, and when each should have been sent."""


@dataclass(slots=True)
class FleetSender:
    """Connections to one collector; use it inside of one event loop.

    Each node has one connection, on which its bodies follow each other; the next step does not wait for
    the answers to the one before.
    """

    host: str
    port: int
    connections: int = 32
    token: str = ""
    statuses: Counter[int] = field(default_factory=Counter)
    bytes_sent: int = 0
    ack_seconds: list[float] = field(default_factory=list)
    """From the moment at which a body was due to its acknowledgement, each of them."""
    _open: list[_Connection] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def open(self) -> None:
        for _ in range(self.connections):
            reader, writer = await asyncio.open_connection(self.host, self.port)
            connection = _Connection(reader, writer)
            self._open.append(connection)
            self._tasks.append(asyncio.create_task(self._work(connection)))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for connection in self._open:
            connection.writer.close()

    async def send_all(self, bodies: Iterable[bytes], *, over_seconds: float = 0.0) -> None:
        """Hand over a body of each node, spread over a time; waits only where too many wait."""
        loop = asyncio.get_running_loop()
        content = list(bodies)
        began = loop.time()
        for place, body in enumerate(content):
            due = began + over_seconds * place / len(content)
            if due - loop.time() > 0.002:
                await asyncio.sleep(due - loop.time())
            self._raise_failures()
            await self._open[place % self.connections].waiting.put((body, due))

    async def drain(self) -> None:
        """Wait until all that was handed over is acknowledged."""
        waiting = asyncio.gather(*(connection.waiting.join() for connection in self._open))
        while not waiting.done():
            await asyncio.wait([waiting], timeout=1.0)
            self._raise_failures()

    def _raise_failures(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def _work(self, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        while True:
            body, due = await connection.waiting.get()
            while True:
                status, wait, text = await self._ask(connection, body)
                self.statuses[status] += 1
                if status not in _BUSY:
                    break
                await asyncio.sleep(wait)
            if status != 200:
                raise RefusedError(f"{status}: {text[:300]!r}")
            self.bytes_sent += len(body)
            self.ack_seconds.append(loop.time() - due)
            connection.waiting.task_done()

    async def _ask(self, connection: _Connection, body: bytes) -> tuple[int, float, bytes]:
        token = f"Authorization: Bearer {self.token}\r\n" if self.token else ""
        head = (
            f"POST /v1/batches HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n{token}"
            f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.writer.write(head.encode() + body)
        try:
            answer = await connection.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):  # closed while nothing was sent
            await self._reopen(connection)
            connection.writer.write(head.encode() + body)
            answer = await connection.reader.readuntil(b"\r\n\r\n")
        lines = answer.decode("latin-1").split("\r\n")
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        text = await connection.reader.readexactly(int(fields.get("content-length", "0")))
        wait = float(fields.get("retry-after", "0.2"))
        if fields.get("connection", "").lower() == "close":
            await self._reopen(connection)
        return int(lines[0].split()[1]), wait, text

    async def _reopen(self, connection: _Connection) -> None:
        connection.writer.close()
        connection.reader, connection.writer = await asyncio.open_connection(
            self.host, self.port, limit=_MAX_HEAD_BYTES
        )
