"""A collector as an agent meets it: takes each record once, in order, and can be made to misbehave."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from computeflow.collection.wire.batches import Batch, rank_files, unpack_batch
from computeflow.errors import InputError
from computeflow.telemetry.run_folders.rank_file import RankFile, RankStart

Trouble = Callable[[int], tuple[int, dict[str, str]] | str | None]
"""By the number of the request: a status with headers, "cut" before or "cut after" taking, or None."""


def no_trouble(request: int) -> None:
    return None


class CollectorDouble:
    def __init__(self, trouble: Trouble = no_trouble, token: str = "") -> None:
        self.trouble, self.token = trouble, token
        self.requests = 0
        self.next: dict[str, dict[str, int]] = defaultdict(dict)
        """The next record by run, then by `RANK.ATTEMPT`."""
        self.files: dict[tuple[str, int, int], list[RankFile]] = defaultdict(list)
        self.starts: dict[str, dict[tuple[int, int], RankStart]] = defaultdict(dict)
        self.batches: list[Batch] = []
        """Every batch that came, also those that came again."""
        self.statuses: Counter[int] = Counter()
        self.max_bytes = 1 << 30
        self.lock = threading.Lock()

    def take(self, body: bytes) -> tuple[int, dict[str, Any]]:
        with self.lock:
            if len(body) > self.max_bytes:
                return 413, {"error": "too large"}
            try:
                batch = unpack_batch(body)
            except InputError as error:
                return 400, {"error": str(error)}
            self.batches.append(batch)
            return self._take(batch)

    def _take(self, batch: Batch) -> tuple[int, dict[str, Any]]:
        known = self.next[batch.run]
        names = [f"{rows.rank}.{rows.attempt}" for rows in batch.ranks]
        gaps = [
            name
            for name, rows in zip(names, batch.ranks, strict=True)
            if rows.first > known.get(name, 0)
        ]
        if gaps:
            return 409, {"next": {name: known.get(name, 0) for name in names}}
        for rows in batch.ranks:
            if rows.news and rows.news.start:
                self.starts[batch.run][rows.rank, rows.attempt] = rows.news.start
        for name, part in zip(names, rank_files(batch, self.starts[batch.run]), strict=True):
            if part.first + part.records <= known.get(name, 0):
                continue  # it came before
            assert part.first == known.get(name, 0), "agents send whole batches again"
            known[name] = part.first + part.records
            rank = part.file.start.rank
            self.files[batch.run, rank, part.file.start.attempt].append(part.file)
        return 200, {"next": {name: known[name] for name in names}}

    def steps(self, rank: int, attempt: int = 0) -> list[int]:
        """Numbers of the steps of a rank in the order in which they came, of all runs."""
        with self.lock:
            return [
                int(number)
                for (_, some, tried), files in self.files.items()
                if (some, tried) == (rank, attempt)
                for file in files
                for number in file.steps.number
            ]

    def signals(self) -> list[str]:
        with self.lock:
            return [signal.what for batch in self.batches for signal in batch.signals]

    def runs(self) -> set[str]:
        with self.lock:
            return {batch.run for batch in self.batches} - {""}


class _Handler(BaseHTTPRequestHandler):
    double: CollectorDouble
    protocol_version = "HTTP/1.1"
    timeout = 30
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._handle(lambda: self.double.take(body))

    def do_GET(self) -> None:
        (run,) = parse_qs(urlsplit(self.path).query)["run"]
        self._handle(lambda: (200, {"next": dict(self.double.next[run])}))

    def _handle(self, answer: Callable[[], tuple[int, dict[str, Any]]]) -> None:
        double = self.double
        with double.lock:
            number = double.requests
            double.requests += 1
        trouble = double.trouble(number)
        if double.token and self.headers.get("Authorization") != f"Bearer {double.token}":
            self._answer(401, {"error": "no token"}, {})
        elif isinstance(trouble, tuple):
            self._answer(trouble[0], {}, trouble[1])
        elif trouble == "cut":
            self._cut()
        else:
            status, data = answer()
            if trouble is not None:
                self._cut()
            else:
                self._answer(status, data, {})

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, status: int, data: dict[str, Any], headers: dict[str, str]) -> None:
        self.double.statuses[status] += 1
        content = json.dumps(data).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests look at what came."""

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()


@contextmanager
def serving(double: CollectorDouble, port: int = 0) -> Iterator[str]:
    """Serve it on 127.0.0.1; its address."""
    handler = type("Handler", (_Handler,), {"double": double})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
