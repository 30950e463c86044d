"""A Prometheus or VictoriaMetrics server, queried with PromQL over its HTTP API.

Names are read first, then every known metric over the window in pieces of bounded size. Only GET,
only this address: a redirect to another is refused, proxies are not used, answers are limited in
size and time. The token in COMPUTEFLOW_PROMETHEUS_TOKEN is sent over TLS or to this machine only.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import math
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlencode, urljoin, urlsplit

from computeflow import codec
from computeflow.errors import InputError
from computeflow.files.limits import (
    METRIC_ANSWER_BYTES,
    METRIC_ANSWER_SAMPLES,
    METRIC_SAMPLES,
    REDIRECTS,
)
from computeflow.files.names import shown
from computeflow.telemetry.metrics.exporter_fields import ACTIVITY
from computeflow.telemetry.metrics.metrics_source import new_fleet, observe_metrics
from computeflow.telemetry.metrics.prometheus_json import add_result, result_of, rows
from computeflow.telemetry.metrics.samples import SampledFleet, gpu_field, node_of
from computeflow.telemetry.source_reports import SourceReport, SourceRequest
from computeflow.units import HOUR_SECONDS, format_seconds

TOKEN = "COMPUTEFLOW_PROMETHEUS_TOKEN"
_WINDOW_SECONDS = HOUR_SECONDS
"""Length of the window where no start is given."""
REQUEST_SECONDS = 30.0
_TOTAL_SECONDS = 300.0
_MAX_POINTS = 1440
_RANGE_POINTS = 10_000
"""Prometheus answers at most 11,000 points a series."""
_CLOSEST_SECONDS = 300
_ADDRESS = re.compile(r"[!-~]{1,2000}")
"""Characters that a request line can carry."""
_STEPS = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    *(hours * HOUR_SECONDS for hours in (1, 2, 4, 12, 24)),
)
_NAMES = '{__name__=~"DCGM_FI_.+|dcgm_.+|(amd_)?(gpu|pcie)_.+|GPU_.+|PCIE_.+"}'
_DEVICES = 'device!~"lo|docker.*|veth.*|cali.*|cni.*|br-.*|virbr.*|flannel.*|tunl.*"'
_INFINIBAND = "node_infiniband_port_data"
_BY = "instance, node, nodename, Hostname"
_NODE_QUERIES = {
    "cpus_busy": 'rate(node_cpu_seconds_total{{mode!="idle"}}[{window}s])',
    "network_received_bytes_per_second": "rate(node_network_receive_bytes_total{{"
    + _DEVICES
    + "}}[{window}s])",
    "network_sent_bytes_per_second": "rate(node_network_transmit_bytes_total{{"
    + _DEVICES
    + "}}[{window}s])",
    "infiniband_received_bytes_per_second": f"rate({_INFINIBAND}_received_bytes_total[{{window}}s])",
    "infiniband_sent_bytes_per_second": f"rate({_INFINIBAND}_transmitted_bytes_total[{{window}}s])",
    "memory_used_share": "1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes",
}


def observe_server(address: str, request: SourceRequest) -> list[SourceReport]:
    server = connect(address)
    end = request.end if request.end is not None else server.now()
    start = request.start if request.start is not None else end - _WINDOW_SECONDS
    if not start < end:
        raise InputError(
            f"{server.name}: the window ends at {end:g}, before it starts at {start:g}"
        )
    names = [name for name in server.names(start, end) if gpu_field(name) is not None]
    if not names:
        raise InputError(
            f"{server.name}: no GPU metrics between {start:.0f} and {end:.0f} (looked for "
            "dcgm-exporter's and AMD's device-metrics-exporter's names)"
        )
    first = min(names, key=_order)
    series = server.count_series(first, start, end)
    points = max(2, min(_MAX_POINTS, METRIC_SAMPLES // max(series * len(names), 1)))
    step = _step(end - start, points, server.interval(first, start, end))
    fleet = new_fleet(request)
    for name in names:
        server.read(name, fleet, start, end, step, series)
    server.read_nodes(fleet, start, end)
    notes = [f"{server.name}: values every {format_seconds(step)}", *server.warnings]
    return [observe_metrics(fleet, [server.name], request, notes=notes)]


def _order(name: str) -> int:
    """Sort key: activity first, which has about one series per GPU and workload."""
    known = gpu_field(name)
    return ACTIVITY.index(known.name) if known and known.name in ACTIVITY else len(ACTIVITY)


def _step(window: float, points: int, interval: float) -> float:
    """Seconds between points: no finer than the samples, nor than `points` allows."""
    finest = window / points
    fine = max((step for step in _STEPS if step <= interval), default=_STEPS[0])
    return float(next((step for step in _STEPS if step >= max(finest, fine)), math.ceil(finest)))


@dataclass(slots=True)
class MetricsServer:
    address: SplitResult
    token: str = field(default="", repr=False)
    warnings: list[str] = field(default_factory=list)
    deadline: float = field(default_factory=lambda: time.monotonic() + _TOTAL_SECONDS)

    @property
    def name(self) -> str:
        return self.address.geturl()

    def now(self) -> float:
        """The server's own clock, so that ours need not be right."""
        data = self.ask("query", {"query": "time()"})
        return next((values[0][1] for _, values in rows(data, self.name) if values), 0.0)

    def names(self, start: float, end: float) -> list[str]:
        names = self.ask(
            "label/__name__/values",
            {"match[]": _NAMES, "start": f"{start:.3f}", "end": f"{end:.3f}"},
        )
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"{self.name}: not in the format of Prometheus' answers")
        return names

    def count_series(self, name: str, start: float, end: float) -> int:
        match = {"match[]": name, "start": f"{start:.3f}", "end": f"{end:.3f}"}
        series = self.ask("series", match)
        return max(len(series), 1) if isinstance(series, list) else 1

    def interval(self, name: str, start: float, end: float) -> float:
        """Seconds between samples, where they lie closest."""
        span = max(min(_CLOSEST_SECONDS, int(end - start)), 1)
        counts = f"count_over_time({name}[{span}s])[{math.ceil(end - start)}s:{span}s]"
        data = self.ask("query", {"query": f"max(max_over_time({counts}))", "time": f"{end:.3f}"})
        most = [values[-1][1] for _, values in rows(data, self.name) if values]
        return span / max(most[0] - 1, 1) if most else float(span)

    def read(
        self, name: str, fleet: SampledFleet, start: float, end: float, step: float, series: int
    ) -> None:
        """Read the metric over the window, in answers of bounded size."""
        points = max(1, min(METRIC_ANSWER_SAMPLES // series, _RANGE_POINTS))
        at = end - math.floor((end - start) / step) * step
        while at <= end + step / 2:
            last = min(at + (points - 1) * step, end)
            piece = {"query": name, "start": f"{at:.3f}", "end": f"{last:.3f}", "step": f"{step:g}"}
            data = self.ask(
                "query_range", piece | {"nocache": "1"}
            )  # else VictoriaMetrics moves it
            add_result(data, fleet, self.name, name)
            at = last + step

    def read_nodes(self, fleet: SampledFleet, start: float, end: float) -> None:
        for figure, query in _NODE_QUERIES.items():
            window = max(int(end - start), 1)
            text = f"sum by ({_BY}) ({query.format(window=window)})"
            data = self.ask("query", {"query": text, "time": f"{end:.3f}"})
            for labels, values in rows(data, self.name):
                if values and math.isfinite(values[-1][1]):
                    fleet.node_values.setdefault(node_of(labels), {})[figure] = values[-1][1]

    def ask(self, path: str, parameters: Mapping[str, str]) -> Any:
        url = f"{self.name.rstrip('/')}/api/v1/{path}?{urlencode(parameters)}"
        for _ in range(REDIRECTS + 1):
            status, location, body = self._get(url)
            if status not in (301, 302, 303, 307, 308):
                break
            url = self._same_origin(urljoin(url, location))
        else:
            raise InputError(f"{self.name}: redirected without end")
        if status in (401, 403):
            raise InputError(f"{self.name}: refused with {status}; set {TOKEN} to a token it takes")
        if status != 200 and not body.lstrip().startswith(b"{"):
            raise InputError(f"{self.name}: answered {status}; is it a Prometheus server?")
        answer = codec.from_json(body, self.name, once=True)
        for words in answer.get("warnings") or () if isinstance(answer, dict) else ():
            if len(self.warnings) < 10:
                self.warnings.append(f"{self.name} warns: {' '.join(str(words).split())[:200]}")
        return result_of(answer, self.name)

    def _same_origin(self, url: str) -> str:
        try:
            new = urlsplit(url)
            same = _origin(new) == _origin(self.address)
        except ValueError:
            same = False
        if not same:
            raise InputError(f"{self.name}: redirects to another address, which is not followed")
        return url

    def _get(self, url: str) -> tuple[int, str, bytes]:
        left = min(REQUEST_SECONDS, self.deadline - time.monotonic())
        if left <= 0:
            raise InputError(f"{self.name}: gave up after {_TOTAL_SECONDS:.0f} s")
        headers = {"Accept": "application/json", "User-Agent": "computeflow"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        parts = urlsplit(url)
        connection = _connection(parts, left)
        expired = threading.Event()
        try:
            connection.connect()
            with _watch(connection.sock, left, expired):
                connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
                response = connection.getresponse()
                body = response.read(METRIC_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            words = _words(error)
            if expired.is_set() or isinstance(error, TimeoutError):
                words = f"no answer within {left:.0f} s"
            raise InputError(f"{self.name}: {words}") from None
        finally:
            connection.close()
        if expired.is_set():
            raise InputError(f"{self.name}: no answer within {left:.0f} s")
        if len(body) > METRIC_ANSWER_BYTES:
            raise InputError(
                f"{self.name}: an answer of more than {METRIC_ANSWER_BYTES >> 20} MiB; "
                "ask for less time"
            )
        return response.status, response.headers.get("Location", ""), body


def connect(address: str) -> MetricsServer:
    """Check the address; nothing is sent yet."""
    named = f"'{shown(address)}'"
    if not _ADDRESS.fullmatch(address):
        raise InputError(f"{named} is no address of a server: write http://host:port, in ASCII")
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"{named} is no address: {shown(str(error))}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"{named} is no address of a server: write http://host:port")
    if parts.username is not None or parts.query or parts.fragment:
        raise InputError(
            f"{host}: write the address without user, query or fragment; {TOKEN} names a token"
        )
    if port == 0:
        raise InputError(f"{named}: port 0 is none")
    token = os.environ.get(TOKEN, "").strip()
    if not (token.isascii() and token.isprintable()):
        raise InputError(f"{TOKEN} holds characters that no token has")
    if token and parts.scheme == "http" and not _is_local(host):
        raise InputError(f"{address}: {TOKEN} is not sent in the clear; write https://")
    return MetricsServer(address=parts._replace(path=parts.path.rstrip("/")), token=token)


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    usual = {"http": 80, "https": 443}
    return parts.scheme, parts.hostname, parts.port or usual.get(parts.scheme)


def _connection(parts: SplitResult, seconds: float) -> http.client.HTTPConnection:
    host = parts.hostname or ""
    if parts.scheme == "https":
        return http.client.HTTPSConnection(
            host, parts.port, timeout=seconds, context=ssl.create_default_context()
        )
    return http.client.HTTPConnection(host, parts.port, timeout=seconds)


@contextlib.contextmanager
def _watch(held: socket.socket, seconds: float, expired: threading.Event) -> Iterator[None]:
    """Cut off a server that keeps sending a little, which restarts a socket's own timeout."""

    def cut() -> None:
        expired.set()
        with contextlib.suppress(OSError):
            held.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, UnicodeError):
        return "not the name of a host"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return f"not an HTTP answer ({type(error).__name__})"
