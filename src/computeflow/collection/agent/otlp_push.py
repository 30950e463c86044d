"""Readings to an OpenTelemetry collector by OTLP over HTTP: `OtlpPush`.

A thread of its own sends the last look; while it is busy, looks in between are left out.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from computeflow import __version__
from computeflow.collection.agent.exposition import is_counter
from computeflow.collection.wire.batches import NodeReading
from computeflow.errors import InputError, UnavailableError
from computeflow.files.names import shown

_TIMEOUT_SECONDS = 5
_SAID_SECONDS = 60.0


class OtlpPush:
    def __init__(self, url: str, node: str, say: Callable[[str], None]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"--otlp {shown(url)}: write http://HOST:4318")
        endpoint = url if parts.path.strip("/") else f"{url.rstrip('/')}/v1/metrics"
        self._exporter = _exporter(endpoint)
        self._node, self._say = node, say
        self._said = -_SAID_SECONDS
        self._queue: queue.Queue[Sequence[NodeReading] | None] = queue.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def push(self, readings: Sequence[NodeReading]) -> None:
        if readings and not self._queue.full():
            self._queue.put(readings)

    def close(self) -> None:
        """Send what is queued, and end."""
        self._queue.put(None)
        self._thread.join(2 * _TIMEOUT_SECONDS)
        self._exporter.shutdown()

    def _run(self) -> None:
        while (readings := self._queue.get()) is not None:
            try:
                arrived = self._exporter.export(metrics_data(readings, self._node)).value == 0
            except Exception as error:  # of requests and of protobuf; a look is lost, no more
                logging.getLogger(__name__).debug("otlp", exc_info=error)
                arrived = False
            if not arrived and time.monotonic() - self._said >= _SAID_SECONDS:
                self._said = time.monotonic()
                self._say("--otlp: the last readings did not arrive")


def _exporter(endpoint: str) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError:
        raise UnavailableError(
            "--otlp needs OpenTelemetry's exporter: pip install 'computeflow[otel]'"
        ) from None
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # we say it once a minute
    return OTLPMetricExporter(
        endpoint=endpoint, timeout=_TIMEOUT_SECONDS, compression=Compression.Gzip
    )


def metrics_data(readings: Sequence[NodeReading], node: str) -> Any:
    """Readings as OpenTelemetry's own values."""
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    points: dict[str, list[Any]] = defaultdict(list)
    for reading in readings:
        points[reading.name].append(
            export.NumberDataPoint(
                attributes=reading.labels,
                start_time_unix_nano=0,
                time_unix_nano=reading.at * 1000,
                value=reading.value,
            )
        )
    metrics = [
        export.Metric(
            name=name,
            description="",
            unit="",
            data=export.Sum(some, export.AggregationTemporality.CUMULATIVE, True)
            if is_counter(name)
            else export.Gauge(some),
        )
        for name, some in points.items()
    ]
    scope = InstrumentationScope("computeflow.agent", __version__)
    resource = Resource({"service.name": "computeflow-agent", "host.name": node})
    return export.MetricsData(
        [
            export.ResourceMetrics(
                resource=resource,
                scope_metrics=[export.ScopeMetrics(scope=scope, metrics=metrics, schema_url="")],
                schema_url="",
            )
        ]
    )
