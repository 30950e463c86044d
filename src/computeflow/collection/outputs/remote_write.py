"""`MetricsPush`: the exposition, pushed to a VictoriaMetrics, a vmagent or a Pushgateway.

    MetricsPush("http://metrics:8428/api/v1/import/prometheus", render)

Where Prometheus scrapes `/metrics`, nothing of this is needed: `computeflow export prometheus` prints
the configuration that scrapes and writes on (docs/alerts.md). Why there is no remote-write client here
is in docs/design.md.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable

from computeflow.collection.outputs.metrics import TEXT_CONTENT_TYPE
from computeflow.collection.outputs.posting import read_address
from computeflow.collection.outputs.sender import Sender

IMPORT_PATH = "/api/v1/import/prometheus"
EVERY_SECONDS = 15.0


class MetricsPush:
    """Pushes the newest state every few seconds; what could not be sent is not kept."""

    def __init__(
        self,
        url: str,
        render: Callable[[], bytes],
        *,
        every_seconds: float = EVERY_SECONDS,
        token: str = "",
        first_wait_seconds: float = 1.0,
    ) -> None:
        """`render` gives Prometheus' text format; an address without a path gets VictoriaMetrics'."""
        self._render = render
        self._every = every_seconds
        bare = read_address(url, "--push-metrics", token=token)
        path = IMPORT_PATH if bare.path == "/" else ""
        self._sender = Sender(
            "push",
            read_address(url, "--push-metrics", path=path, token=token),
            self._work,
            first_wait_seconds=first_wait_seconds,
        )
        self._sender.start()

    def counts(self) -> dict[str, float]:
        return self._sender.counts()

    def close(self, seconds: float = 5.0) -> None:
        self._sender.close(seconds)

    def _work(self, now: float) -> float:
        body = gzip.compress(self._render(), 1)
        self._sender.deliver(body, TEXT_CONTENT_TYPE, {"Content-Encoding": "gzip"})
        return self._every
