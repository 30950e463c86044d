"""Readings for Prometheus to scrape: `ReadingsServer` serves the last look as OpenMetrics or text."""

from __future__ import annotations

import contextlib
import hmac
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from computeflow.collection.wire.batches import NodeReading
from computeflow.errors import InputError, UnavailableError
from computeflow.files.names import shown

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_TIMEOUT_SECONDS = 5.0
_HELP = "see docs/agent.md"


def address_of(listen: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, [HOST]:PORT or PORT; 127.0.0.1 without a host."""
    host, colon, port = listen.rpartition(":")
    host = host.strip("[]") if colon else "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535 or (colon and not host):
        raise InputError(f"--listen {shown(listen)}: write HOST:PORT (127.0.0.1:9471)")
    return host, int(port)


class ReadingsServer:
    """One thread that answers one scrape after the other: a slow reader costs five seconds at most."""

    def __init__(self, listen: str, token: str = "") -> None:
        host, port = address_of(listen)
        if host not in LOOPBACK and not token:
            raise InputError(
                f"--listen {shown(listen)}: other machines can reach it; add --token-file, or listen "
                "on 127.0.0.1"
            )
        _require_library()
        self._readings: tuple[NodeReading, ...] = ()
        handler = type("Handler", (_Handler,), {"owner": self, "token": token})
        try:
            self._server = HTTPServer((host, port), handler)
        except OSError as error:
            raise InputError(f"--listen {shown(listen)}: {error.strerror or error}") from None
        self.address: tuple[Any, ...] = self._server.server_address
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def show(self, readings: Iterable[NodeReading]) -> None:
        self._readings = tuple(readings)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def page(self, accept: str) -> tuple[bytes, str]:
        """The readings in the format that a scraper accepts, and the name of the format."""
        from prometheus_client.exposition import choose_encoder

        encode, kind = choose_encoder(accept)
        return encode(_Families(self._readings)), kind


class _Families:
    """Readings as families of metrics, which is all that an encoder asks a registry for."""

    def __init__(self, readings: Iterable[NodeReading]) -> None:
        self._readings = readings

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.core import UnknownMetricFamily as Untyped

        families: dict[str, Any] = {}
        seen: set[tuple[Any, ...]] = set()
        for reading in self._readings:
            series = (reading.name, *sorted(reading.labels.items()))
            if series in seen:
                continue
            seen.add(series)
            if reading.name not in families:
                kind: Any = GaugeMetricFamily
                if reading.name.endswith("_total"):
                    kind = CounterMetricFamily
                elif is_counter(reading.name):  # DCGM's counters do not end as OpenMetrics wants
                    kind = Untyped
                families[reading.name] = kind(reading.name.removesuffix("_total"), _HELP)
            families[reading.name].add_sample(reading.name, reading.labels, reading.value)
        return families.values()

    def restricted_registry(self, names: Iterable[str]) -> _Families:
        wanted = set(names)
        return _Families([reading for reading in self._readings if reading.name in wanted])


def is_counter(name: str) -> bool:
    """Whether a figure only grows, by its name."""
    dcgm = ("_TOTAL", "_COUNTER", "_CONSUMPTION", "_VIOLATION", "_REMAPPED_ROWS", "_SBE", "_DBE")
    return name.endswith("_total") or (name.startswith("DCGM_") and name.endswith(dcgm))


class _Handler(BaseHTTPRequestHandler):
    owner: ReadingsServer
    token: str
    timeout = _TIMEOUT_SECONDS
    server_version = "computeflow-agent"
    sys_version = ""

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "")
        if self.token and not hmac.compare_digest(given, f"Bearer {self.token}"):
            self._answer(401, b"a token is needed\n", "text/plain")
        elif self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"see /metrics\n", "text/plain")
        else:
            page, kind = self.owner.page(self.headers.get("Accept", ""))
            self._answer(200, page, kind)

    def _answer(self, status: int, content: bytes, kind: str) -> None:
        with contextlib.suppress(OSError):  # the reader has gone
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line."""


def _require_library() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise UnavailableError(
            "--listen needs prometheus-client: pip install 'computeflow[metrics]'"
        ) from None
