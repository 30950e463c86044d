"""Synthetic fleets as dcgm-exporter writes them, and real servers on loopback that hold them.

Prometheus gets a history by `promtool tsdb create-blocks-from openmetrics`, VictoriaMetrics by its
import; an exporter of our own serves `/metrics` for a live scrape. Every server runs in a temporary
folder and is stopped by its process id.
"""

from __future__ import annotations

import http.client
import math
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

START = 1_760_000_000.0
POWER_CAP, HARDWARE_SLOWDOWN, HARDWARE_THERMAL = 0x4, 0x8, 0x40
_READY_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """A fleet of H100 in nodes of eight under one training job, sampled every `step` seconds."""

    gpus: int = 16
    seconds: float = 3600.0
    step: float = 15.0
    start: float = START
    seed: int = 0
    throttled: frozenset[int] = frozenset()
    idle: frozenset[int] = frozenset()
    xid: frozenset[int] = frozenset()
    free: frozenset[int] = frozenset()
    """GPUs that nobody holds."""
    labels: bool = True
    """Whether the exporter names pods."""
    without: frozenset[str] = frozenset()
    """Metrics that the exporter does not have."""
    deep: float = 0.35
    """Share by which the clock of a throttled GPU falls."""
    spread: float = 0.01
    """Spread of clocks between healthy GPUs."""
    reasons: int = HARDWARE_SLOWDOWN | HARDWARE_THERMAL
    model: str = "NVIDIA H100 80GB HBM3"

    @property
    def end(self) -> float:
        return self.start + self.seconds

    def times(self) -> list[float]:
        return [self.start + i * self.step for i in range(int(self.seconds / self.step) + 1)]

    def label_text(self, gpu: int) -> str:
        pairs = {
            "gpu": str(gpu % 8),
            "UUID": f"GPU-{gpu:08d}-0000-0000-0000-000000000000",
            "device": f"nvidia{gpu % 8}",
            "modelName": self.model,
            "Hostname": f"node-{gpu // 8}",
        }
        if self.labels and gpu not in self.free:
            pod = f"notebook-{gpu}" if gpu in self.idle else f"llama-worker-{gpu // 8}"
            pairs |= {"namespace": "research", "pod": pod, "container": "main"}
        return ",".join(f'{name}="{value}"' for name, value in pairs.items())

    def values(self, gpu: int, at: float) -> dict[str, float]:
        """Values that dcgm-exporter would show for a GPU at a time."""
        noise = random.Random(f"{self.seed}/{gpu}/{at}")
        usual = random.Random(f"{self.seed}/{gpu}").gauss(1.0, self.spread)
        busy = gpu not in self.idle | self.free
        clock = 1_755 * usual * (1 + noise.uniform(-0.005, 0.005)) if busy else 345
        usual_watts = 640.0 if busy else 72.0
        if gpu in self.throttled:
            clock, usual_watts = clock * (1 - self.deep), usual_watts * (1 - 0.7 * self.deep)
        watts = usual_watts + (noise.gauss(0, 12) if busy else 0)
        reasons = POWER_CAP if busy and noise.random() < 0.4 else 0 if busy else 1
        found = {
            "DCGM_FI_DEV_GPU_UTIL": noise.choice([99, 100]) if busy else 0,
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.97 if busy else 0.0,
            "DCGM_FI_PROF_SM_ACTIVE": 0.71 + noise.uniform(-0.03, 0.03) if busy else 0.0,
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.42 + noise.uniform(-0.02, 0.02) if busy else 0.0,
            "DCGM_FI_DEV_POWER_USAGE": watts,
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1e9 + 1e3 * usual_watts * (at - self.start),
            "DCGM_FI_DEV_SM_CLOCK": 15 * round(clock / 15),
            "DCGM_FI_DEV_MAX_SM_CLOCK": 1980,
            "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": self.reasons if gpu in self.throttled else reasons,
            "DCGM_FI_DEV_GPU_TEMP": 86 if gpu in self.throttled else 58 if busy else 33,
            "DCGM_FI_DEV_MEMORY_TEMP": 9223372036854775794,
            "DCGM_FI_DEV_FB_USED": 0 if gpu in self.free else 71_000 if busy else 24_000,
            "DCGM_FI_DEV_FB_FREE": 81_000 - (71_000 if busy else 24_000),
            "DCGM_FI_DEV_XID_ERRORS": 79
            if gpu in self.xid and at >= self.start + self.seconds / 2
            else 0,
            "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0,
        }
        return {name: value for name, value in found.items() if name not in self.without}

    def lines(self, at: float | None = None, *, stamp: str = "") -> Iterator[str]:
        """One scrape; `stamp` is written behind each value."""
        moment = self.start if at is None else at
        for gpu in range(self.gpus):
            labels = self.label_text(gpu)
            for name, value in self.values(gpu, moment).items():
                yield f"{name}{{{labels}}} {value:.17g}{stamp}"

    def history(self) -> str:
        """All scrapes as Prometheus text, times in milliseconds."""
        return "".join(
            f"{line}\n" for at in self.times() for line in self.lines(at, stamp=f" {at * 1000:.0f}")
        )

    def openmetrics(self) -> str:
        """All scrapes as OpenMetrics: by metric, times in seconds, `# EOF` at the end."""
        by_name: dict[str, list[str]] = {}
        for at in self.times():
            for line in self.lines(at, stamp=f" {at:.3f}"):
                by_name.setdefault(line.partition("{")[0], []).append(line)
        parts = [f"# TYPE {name} gauge\n" + "\n".join(found) for name, found in by_name.items()]
        return "\n".join([*parts, "# EOF", ""])


def needed(program: str) -> str:
    """The path of a server program, or a skip with the line that installs it."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed: make system")
    return found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def running(command: list[str], port: int, ready: str, folder: Path) -> Iterator[str]:
    """A server process until the end of the block; its address."""
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        until = time.monotonic() + _READY_SECONDS
        while not _answers(port, ready):
            if process.poll() is not None or time.monotonic() > until:
                tail = (folder / "server.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{command[0]} did not start: {tail}")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@contextmanager
def prometheus(
    folder: Path, fleet: Synthetic | None = None, scrape: str | None = None
) -> Iterator[str]:
    """A Prometheus with a fleet's history, or one that scrapes `host:port` every second."""
    program = needed("prometheus")
    data = folder / "data"
    data.mkdir(parents=True)
    if fleet is not None:
        history = folder / "history.om"
        history.write_text(fleet.openmetrics())
        subprocess.run(
            [needed("promtool"), "tsdb", "create-blocks-from", "openmetrics", history.name, "data"],
            check=True,
            capture_output=True,
            timeout=120,
            cwd=folder,
        )
    job = f'[{{job_name: dcgm, static_configs: [{{targets: ["{scrape}"]}}]}}]' if scrape else "[]"
    settings = f"global: {{scrape_interval: 1s}}\nscrape_configs: {job}\n"
    (folder / "prometheus.yml").write_text(settings)
    port = free_port()
    command = [
        program,
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with running(command, port, "/-/ready", folder) as address:
        yield address


@contextmanager
def victoria(folder: Path, fleet: Synthetic) -> Iterator[str]:
    program = needed("victoria-metrics")
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [
        program,
        "-storageDataPath=data",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-search.latencyOffset=0s",
        "-retentionPeriod=100y",
        "-memory.allowedBytes=200MB",
    ]
    with running(command, port, "/health", folder) as address:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/api/v1/import/prometheus", body=fleet.history().encode())
        assert connection.getresponse().status in (200, 204)
        connection.close()
        assert _answers(port, "/internal/force_flush")
        yield address


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """A small HTTP server in this process; its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class Quiet(BaseHTTPRequestHandler):
    """Handler that answers every GET by `answer`."""

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        self.reply(b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def reply(self, body: bytes, kind: str = "application/json", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def exporter(fleet: Synthetic) -> Iterator[str]:
    """`/metrics` of a fleet as dcgm-exporter serves it; its host and port."""

    class Metrics(Quiet):
        def answer(self) -> None:
            text = "".join(f"{line}\n" for line in fleet.lines(math.floor(time.time())))
            self.reply(text.encode(), "text/plain; version=0.0.4")

    with serving(Metrics) as port:
        yield f"127.0.0.1:{port}"
