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


class RefusedError(Exception):
    """A collector that did not take a batch."""


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(slots=True)
class FleetSender:
    """Connections to one collector; use it inside of one event loop."""

    host: str
    port: int
    connections: int = 32
    token: str = ""
    statuses: Counter[int] = field(default_factory=Counter)
    bytes_sent: int = 0
    waited_seconds: float = 0.0
    """How long bodies waited because the collector asked for it, all together."""
    _free: asyncio.Queue[_Connection] = field(default_factory=asyncio.Queue)

    async def open(self) -> None:
        for _ in range(self.connections):
            reader, writer = await asyncio.open_connection(self.host, self.port)
            self._free.put_nowait(_Connection(reader, writer))

    async def close(self) -> None:
        while not self._free.empty():
            connection = self._free.get_nowait()
            connection.writer.close()

    async def send_all(self, bodies: Iterable[bytes], *, over_seconds: float = 0.0) -> None:
        """Send bodies side by side, spread over a time; returns when all of them were taken."""
        loop = asyncio.get_running_loop()
        content = list(bodies)
        began = loop.time()
        tasks = []
        for place, body in enumerate(content):
            due = began + over_seconds * place / len(content)
            if due - loop.time() > 0.002:
                await asyncio.sleep(due - loop.time())
            connection = await self._free.get()
            tasks.append(asyncio.create_task(self._send(connection, body)))
        await asyncio.gather(*tasks)

    async def _send(self, connection: _Connection, body: bytes) -> None:
        try:
            while True:
                status, wait, text = await self._ask(connection, body)
                self.statuses[status] += 1
                if status not in _BUSY:
                    break
                self.waited_seconds += wait
                await asyncio.sleep(wait)
        finally:
            self._free.put_nowait(connection)
        if status != 200:
            raise RefusedError(f"{status}: {text[:300]!r}")
        self.bytes_sent += len(body)

    async def _ask(self, connection: _Connection, body: bytes) -> tuple[int, float, bytes]:
        token = f"Authorization: Bearer {self.token}\r\n" if self.token else ""
        head = (
            f"POST /v1/batches HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n{token}"
            f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
        )
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
            connection.writer.close()
            connection.reader, connection.writer = await asyncio.open_connection(
                self.host, self.port, limit=_MAX_HEAD_BYTES
            )
        return int(lines[0].split()[1]), wait, text
