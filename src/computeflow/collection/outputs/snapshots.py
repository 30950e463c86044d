"""`LiveSnapshot`: runs, findings and nodes at one moment, from a collector's store or its address.

    read_store(Path("store"))                       its state.sqlite, opened to read only
    read_collector("http://127.0.0.1:8471", token)  GET /v1/runs, /v1/findings, /v1/nodes

A row that cannot be read is left out with its reason; the others are shown.
"""

from __future__ import annotations

import http.client
import ipaddress
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from computeflow import codec
from computeflow.collection.online.live_values import LiveFinding, LiveNode, LiveRun
from computeflow.collection.outputs.posting import Address, connection_to, read_address
from computeflow.collection.store.state_reading import read_state
from computeflow.diagnosis.rules.live_states import SILENT_SECONDS
from computeflow.errors import InputError
from computeflow.files.names import shown
from computeflow.units import HOUR_SECONDS

STATE_FILE = "state.sqlite"
TOKEN = "COMPUTEFLOW_TOKEN"
_MAX_ROWS = 5_000
_MAX_CLOSED = 50
_MAX_ANSWER_BYTES = 64 << 20
_SECONDS = 10.0
_MAX_LEFT_OUT = 5
_QUERIES = {
    "runs": "SELECT data FROM runs ORDER BY updated DESC LIMIT ?",
    "nodes": "SELECT data FROM nodes ORDER BY updated DESC LIMIT ?",
    "findings": "SELECT data FROM findings WHERE closed IS NULL ORDER BY opened DESC LIMIT ?",
    "closed": "SELECT data FROM findings WHERE closed IS NOT NULL ORDER BY closed DESC LIMIT ?",
}
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSnapshot:
    source: str
    taken: float
    runs: tuple[LiveRun, ...] = ()
    findings: tuple[LiveFinding, ...] = ()
    """Open ones, and those that closed last."""
    nodes: tuple[LiveNode, ...] = ()
    left_out: tuple[str, ...] = ()
    silent: dict[str, float] = field(default_factory=dict)
    """Runs that are not over and of which nothing is heard, and since when: `shown_at` finds them. What
    their findings cost was so then; whether it is lost now is not known."""

    def shown_at(self, now: float) -> LiveSnapshot:
        """What a store says, as it reads at a moment: its collector may have stopped long ago."""
        silent = {
            run.run: run.updated
            for run in self.runs
            if run.state != "ended" and now - run.updated > SILENT_SECONDS
        }
        runs = (replace(run, state="silent") if run.run in silent else run for run in self.runs)
        return replace(self, taken=now, runs=tuple(runs), silent=silent)

    def priced(self, usd_per_gpu_hour: float | None) -> LiveSnapshot:
        """With this price for runs, and their findings, of a collector that had none."""
        if usd_per_gpu_hour is None:
            return self
        gpus = {run.run: run.world for run in self.runs if run.usd_per_gpu_hour is None}
        runs = (
            replace(run, usd_per_gpu_hour=usd_per_gpu_hour) if run.run in gpus else run
            for run in self.runs
        )
        findings = (
            replace(
                finding,
                usd_per_hour=finding.share * gpus[finding.run] * usd_per_gpu_hour,
                usd=finding.gpu_seconds / HOUR_SECONDS * usd_per_gpu_hour,
            )
            if finding.usd_per_hour is None and finding.run in gpus
            else finding
            for finding in self.findings
        )
        return replace(self, runs=tuple(runs), findings=tuple(findings))

    def usd_per_hour(self, *, silent: bool = False) -> float | None:
        """What open findings cost; of silent runs, what they cost when last heard of."""
        found = [
            finding.usd_per_hour
            for finding in self.open_findings
            if finding.usd_per_hour is not None and (finding.run in self.silent) == silent
        ]
        return sum(found) if found else None

    @property
    def open_findings(self) -> tuple[LiveFinding, ...]:
        return tuple(finding for finding in self.findings if finding.is_open)


def check_store(folder: Path) -> None:
    """Raise `InputError` where a folder is not a store, without reading its rows."""
    _read_texts(folder, no_rows=True)


def read_store(folder: Path) -> LiveSnapshot:
    left_out: list[str] = []
    texts = _read_texts(folder)
    parsed = {
        name: [_json(text, f"{STATE_FILE}: {name}", left_out) for text in rows]
        for name, rows in texts.items()
    }
    findings = [*parsed["findings"], *parsed["closed"]]
    return _snapshot(str(folder), parsed["runs"], findings, parsed["nodes"], left_out)


def _read_texts(folder: Path, *, no_rows: bool = False) -> dict[str, list[Any]]:
    path = folder / STATE_FILE
    if not path.is_file():
        raise InputError(
            f"--store {shown(str(folder))}: no {STATE_FILE} in it: not a collector's store "
            "(computeflow collect --store DIR)"
        )

    def texts(database: sqlite3.Connection) -> dict[str, list[Any]]:
        return {
            name: [row[0] for row in database.execute(query, (0 if no_rows else _most(name),))]
            for name, query in _QUERIES.items()
        }

    try:
        return read_state(path, texts)
    except sqlite3.Error as error:
        raise InputError(f"--store {shown(str(folder))}: {STATE_FILE}: {error}") from None


def _most(name: str) -> int:
    return _MAX_CLOSED if name == "closed" else _MAX_ROWS


def read_collector(url: str, token: str = "") -> LiveSnapshot:
    address = read_address(url, "--collector", token=token)
    if token and address.scheme == "http" and not _is_local(address.host):
        raise InputError(f"--collector {address}: {TOKEN} is not sent in the clear; write https://")
    left_out: list[str] = []
    parts = {name: _get(address, name) for name in ("runs", "findings", "nodes")}
    source = str(address)
    return _snapshot(source, parts["runs"], parts["findings"], parts["nodes"], left_out)


def _get(address: Address, name: str) -> list[Any]:
    headers = {"Accept": "application/json", "User-Agent": "computeflow"}
    if address.token:
        headers["Authorization"] = f"Bearer {address.token}"
    connection = connection_to(address, _SECONDS)
    try:
        connection.request("GET", f"{address.path.rstrip('/')}/v1/{name}", headers=headers)
        response = connection.getresponse()
        body = response.read(_MAX_ANSWER_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"--collector {address}: {shown(str(words))}") from None
    finally:
        connection.close()
    if response.status in (401, 403):
        raise InputError(
            f"--collector {address}: refused with {response.status}; set {TOKEN} to its token"
        )
    if response.status != 200:
        raise InputError(f"--collector {address}: answered {response.status}; is it a collector?")
    if len(body) > _MAX_ANSWER_BYTES:
        raise InputError(f"--collector {address}: more than {_MAX_ANSWER_BYTES >> 20} MiB")
    answer = codec.from_json(body, f"--collector {address}")
    rows = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise InputError(f"--collector {address}: no list of {name}; is it a collector?")
    return rows


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _snapshot(
    source: str,
    runs: Iterable[Any],
    findings: Iterable[Any],
    nodes: Iterable[Any],
    left_out: list[str],
) -> LiveSnapshot:
    return LiveSnapshot(
        source=source,
        taken=time.time(),
        runs=_values(LiveRun, runs, left_out),
        findings=_values(LiveFinding, findings, left_out),
        nodes=_values(LiveNode, nodes, left_out),
        left_out=tuple(left_out[:_MAX_LEFT_OUT]),
    )


def _json(text: Any, where: str, left_out: list[str]) -> Any:
    try:
        return codec.from_json(text if isinstance(text, str | bytes) else "", where)
    except InputError as error:
        left_out.append(str(error))
        return None


def _values(kind: type[T], rows: Iterable[Any], left_out: list[str]) -> tuple[T, ...]:
    values = []
    for row in rows:
        if row is None:
            continue
        try:
            values.append(codec.decode(kind, row, kind.__name__))
        except InputError as error:
            left_out.append(str(error))
    return tuple(values)
