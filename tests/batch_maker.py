"""Batches as an agent sends them, from made run folders; `Sender` posts them to a collector."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from computeflow.collection.wire.batches import Batch, RankPart, make_batch, pack_batch
from computeflow.telemetry.run_folders.rank_reading import RankFollower


def batches_of(
    folder: Path, *, records: int = 10, run: str = "run-1", agent: str = "agent-1", node: str = "n1"
) -> list[Batch]:
    """All batches of a run folder, so many records of each rank at a time."""
    readers = [RankFollower(path) for path in sorted(folder.glob("*.cfr"))]
    found: list[Batch] = []
    while parts := list(_parts(readers, records)):
        number = len(found) + 1
        sent = 1_790_000_000_000_000 + number
        about = {"name": "made"} if number == 1 else {}
        found.append(
            make_batch(
                parts, agent=agent, number=number, node=node, sent=sent, run=run, about=about
            )
        )
    for reader in readers:
        reader.close()
    return found


def _parts(readers: Sequence[RankFollower], records: int) -> Iterator[RankPart]:
    for reader in readers:
        first = reader.records
        part = reader.read(records)
        if part is not None:
            yield RankPart(first=first, records=reader.records - first, file=part)


@dataclass
class Reply:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> Any:
        return json.loads(self.body)


class Sender:
    """One client of a collector, with one connection that it keeps."""

    def __init__(self, address: str, token: str = "", context: Any = None) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        kind: Any = http.client.HTTPConnection
        more: dict[str, Any] = {}
        if parts.scheme == "https":
            kind, more = http.client.HTTPSConnection, {"context": context}
        self._connection = kind(parts.hostname, parts.port, timeout=60, **more)
        self._token = token

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        return Reply(answer.status, answer.read(), {k.lower(): v for k, v in answer.getheaders()})

    def post(self, batch: Batch | bytes) -> Reply:
        body = batch if isinstance(batch, bytes) else pack_batch(batch)
        return self.ask("POST", "/v1/batches", body)

    def close(self) -> None:
        self._connection.close()


def wait_for(condition: Any, seconds: float = 300.0) -> Any:
    """The first true value of a condition."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:g} s")
