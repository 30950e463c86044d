"""The agent as a process: what it serves, pushes and costs, and its TLS."""

from __future__ import annotations

import gzip
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from benchmarks.measure_agent import measure
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from agent_collector import CollectorDouble, _Handler, serving
from computeflow.collection.agent.exposition import ReadingsServer
from computeflow.collection.agent.node_agent import AgentOptions, NodeAgent
from computeflow.collection.wire.batches import NodeReading

pytestmark = pytest.mark.live
NVML = Path(__file__).parent / "data" / "nvml" / "h200-made.json"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def wait_for(what: Callable[[], Any], seconds: float = 300.0) -> Any:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def fetch(address: tuple[Any, ...], path: str = "/metrics", **headers: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{address[1]}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def test_a_scrape_gives_readings_that_the_reference_parser_reads(tmp_path: Path) -> None:
    options = AgentOptions(
        listen="127.0.0.1:0", nvml=NVML, state=tmp_path / "s", runs=(tmp_path,), node="n1"
    )
    agent = NodeAgent(options, print)
    try:
        agent.tick(0.0, time.time_ns() // 1000)
        assert agent.metrics_address
        page = fetch(agent.metrics_address, Accept=OPENMETRICS)
        families = {family.name: family for family in text_string_to_metric_families(page)}  # type: ignore[no-untyped-call]
        plain = fetch(agent.metrics_address)
    finally:
        agent.close()
    power = families["DCGM_FI_DEV_POWER_USAGE"].samples
    assert [sample.labels["gpu"] for sample in power] == ["0", "1"]
    assert power[0].value == pytest.approx(704, abs=1)
    assert families["node_cpu_seconds"].type == "counter"
    missing = {sample.labels["signal"] for sample in families["computeflow_agent_missing"].samples}
    assert {"amdsmi", "infiniband"} <= missing
    assert "computeflow_agent_resident_bytes" in plain and page.endswith("# EOF\n")


def test_another_address_than_this_machine_wants_the_token() -> None:
    server = ReadingsServer("0.0.0.0:0", "secret")
    try:
        server.show([NodeReading(at=0, name="x", value=1.0)])
        with pytest.raises(urllib.error.HTTPError, match="401"):
            fetch(server.address)
        assert "x 1.0" in fetch(server.address, Authorization="Bearer secret")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(server.address, "/etc/passwd", Authorization="Bearer secret")
    finally:
        server.close()


@contextmanager
def otlp_sink() -> Iterator[tuple[str, list[ExportMetricsServiceRequest]]]:
    """A server that decodes what is pushed to it."""
    came: list[ExportMetricsServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/metrics"
            came.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Tests look at what came."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", came
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_readings_are_pushed_as_opentelemetry_has_them(tmp_path: Path) -> None:
    with otlp_sink() as (url, came):
        options = AgentOptions(
            otlp=url, nvml=NVML, state=tmp_path / "s", runs=(tmp_path,), node="n1"
        )
        agent = NodeAgent(options, print)
        agent.tick(0.0, 1_000_000)
        wait_for(lambda: came)
        agent.close()
    (resource,) = came[0].resource_metrics
    names = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert names == {"service.name": "computeflow-agent", "host.name": "n1"}
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    points = metrics["DCGM_FI_DEV_POWER_USAGE"].gauge.data_points
    assert len(points) == 2 and points[0].time_unix_nano == 1_000_000_000
    assert points[0].as_double == pytest.approx(704, abs=1)
    assert metrics["node_cpu_seconds_total"].sum.is_monotonic


def test_a_push_that_does_not_arrive_is_said_and_stops_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    options = AgentOptions(otlp="http://127.0.0.1:9", state=tmp_path / "s", runs=(tmp_path,))
    agent = NodeAgent(options, said.append)
    for tick in range(10):
        agent.tick(5.0 * tick, tick)
    wait_for(lambda: said)
    agent.close()
    assert said == ["--otlp: the last readings did not arrive"]


def certificate(folder: Path) -> Path:
    """A key and a certificate for 127.0.0.1 in one file."""
    both = folder / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    key = folder / "key.pem"
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(both)], check=True, capture_output=True
    )
    return both


@contextmanager
def secure(double: CollectorDouble, folder: Path) -> Iterator[str]:
    pem = certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, folder / "key.pem")
    server = HTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"double": double}))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_collector_is_trusted_by_its_certificate_alone(tmp_path: Path) -> None:
    double, said = CollectorDouble(), list[str]()
    with secure(double, tmp_path) as url:
        for ca in (tmp_path / "server.pem", None):
            options = AgentOptions(
                collector=url, ca=ca, state=tmp_path / "s", runs=(tmp_path,), node="n1"
            )
            agent = NodeAgent(options, said.append)
            agent.tick(0.0, 1)
            agent.close()
    assert len(double.batches) == 1
    assert "certificate" in " ".join(said).lower()


def test_the_agent_costs_little_beside_eight_ranks() -> None:
    cost = measure(15.0, 8)
    assert cost.records == cost.written
    assert cost.cpu_share < 0.10  # 0.01 on a machine with nothing else to do: docs/agent.md
    assert cost.resident_mb < 90.0


def test_an_agent_that_is_asked_to_stop_ends_at_once_with_all_shipped(tmp_path: Path) -> None:
    double = CollectorDouble()
    with serving(double) as url:
        words = ["--collector", url, "--runs", str(tmp_path), "--state", str(tmp_path / "s")]
        process = subprocess.Popen([sys.executable, "-m", "computeflow", "agent", *words])
        try:
            wait_for(lambda: double.batches)
            process.terminate()
            assert process.wait(300) == 0
        finally:
            process.kill()


def test_an_agent_imports_nothing_that_it_does_not_need() -> None:
    code = (
        "import sys; import computeflow.collection.agent.node_agent;"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"duckdb", "rich", "torch", "scipy", "pandas", "opentelemetry", "prometheus_client"}
    assert not heavy & set(done.stdout.split())
