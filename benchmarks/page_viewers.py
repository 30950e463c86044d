"""Viewers of the page without a browser: `python -m benchmarks.page_viewers JSON`, and `run_viewers`.

Each has a connection of its own and reads the server-sent events of one page, as a browser does. How
late an event is: from when the collector last heard of the run to when all of the event has come.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from urllib.parse import urlsplit

PAGES = ("/flow", "/runs", "/runs/fleet")
"""Pages that change while a run goes on; the run of `fleet_load` is called fleet."""
_MAX_EVENT = 64 << 20
_UPDATED = re.compile(rb'"updated": ?([0-9.]+)')
_SAMPLE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewing:
    late_seconds: list[float] = field(default_factory=list)
    least: int = 0
    most: int = 0
    """Events of a viewer."""
    ended: int = 0
    """Viewers whose connection ended by itself, or never had an event."""


def run_viewers(
    address: str, token: str, count: int, seconds: float, sample: Callable[[], None]
) -> Viewing:
    """So many viewers in a process of their own; `sample` is called every two seconds."""
    words = json.dumps({"address": address, "token": token, "count": count, "seconds": seconds})
    command = [sys.executable, "-m", "benchmarks.page_viewers", words]
    with tempfile.TemporaryFile() as output, subprocess.Popen(command, stdout=output) as process:
        while process.poll() is None:
            sample()
            time.sleep(_SAMPLE_SECONDS)
        output.seek(0)
        return Viewing(**json.loads(output.read()))


@dataclass(slots=True)
class _Viewer:
    late_seconds: list[float] = field(default_factory=list)
    ended: bool = False

    async def view(self, address: str, token: str, page: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None and parts.port is not None
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=_MAX_EVENT)
        head = (
            f"GET /events?of={page} HTTP/1.1\r\nHost: {parts.hostname}:{parts.port}\r\n"
            f"Authorization: Bearer {token}\r\nAccept: text/event-stream\r\n\r\n"
        )
        writer.write(head.encode())
        try:
            while line := await reader.readline():
                if line.startswith(b"data: "):
                    self._take(line)
            self.ended = True
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            self.ended = True
        finally:
            writer.close()

    def _take(self, line: bytes) -> None:
        heard = [float(number) for number in _UPDATED.findall(line)]
        if heard:
            self.late_seconds.append(time.time() - max(heard))


async def _drive(address: str, token: str, count: int, seconds: float) -> Viewing:
    viewers = [_Viewer() for _ in range(count)]
    tasks = [
        asyncio.create_task(viewer.view(address, token, PAGES[place % len(PAGES)]))
        for place, viewer in enumerate(viewers)
    ]
    await asyncio.sleep(seconds)
    ended = sum(viewer.ended or not viewer.late_seconds for viewer in viewers)
    for task in tasks:
        task.cancel()
    counts = [len(viewer.late_seconds) for viewer in viewers]
    return Viewing(
        late_seconds=[round(late, 3) for viewer in viewers for late in viewer.late_seconds],
        least=min(counts),
        most=max(counts),
        ended=ended,
    )


def main() -> None:
    print(json.dumps(asdict(asyncio.run(_drive(**json.loads(sys.argv[1]))))))


if __name__ == "__main__":
    main()
