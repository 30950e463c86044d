"""The watch as a process: `python -m computeflow.collection.collector.watch_process SETTINGS`.

It writes its view to standard output after every tick: length (u32, little-endian), MessagePack of a
`LiveView`.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.collection.collector.live_watcher import LiveWatcher
from computeflow.collection.collector.loop import LiveView, MakeWatcher, WatchLoop
from computeflow.collection.online.live_values import LiveFinding
from computeflow.collection.outputs.alertmanager import AlertmanagerSink
from computeflow.collection.outputs.metrics import render_metrics
from computeflow.collection.outputs.remote_write import MetricsPush
from computeflow.collection.outputs.sinks import Sink
from computeflow.collection.outputs.webhook import WebhookSink, read_webhook
from computeflow.collection.store.processes import parent_gone, say_line
from computeflow.collection.store.store_folder import open_store
from computeflow.errors import InputError, UnavailableError

TICK_SECONDS = 0.5
"""A tick over 16,384 ranks takes 0.1 s of CPU, over one run of some ranks milliseconds."""
_PAUSE_SECONDS = 0.05
WATCHER = "computeflow.collection.online.watcher"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    store: str
    shared: str | None = None
    price_usd_per_gpu_hour: float | None = None
    alertmanager: str | None = None
    webhook_file: str | None = None
    push_metrics: str | None = None
    watcher: str = WATCHER
    """Module that has `Watcher` and `WatchOptions`."""


def watcher_maker(settings: WatchSettings) -> MakeWatcher:
    try:
        module: Any = import_module(settings.watcher)
    except ImportError as error:
        raise UnavailableError(f"runs are kept and not watched: {error}") from None
    options = module.WatchOptions(price_usd_per_gpu_hour=settings.price_usd_per_gpu_hour)

    def make(findings: Sequence[LiveFinding]) -> LiveWatcher:
        watcher: LiveWatcher = module.Watcher(options, findings)
        return watcher

    return make


def make_sinks(settings: WatchSettings, findings: Sequence[LiveFinding]) -> list[Sink]:
    """Where findings go beside the store; `findings` were told before a restart."""
    sinks: list[Sink] = []
    if settings.alertmanager is not None:
        sinks.append(AlertmanagerSink(settings.alertmanager, findings))
    if settings.webhook_file is not None:
        sinks.append(WebhookSink(read_webhook(Path(settings.webhook_file)), findings))
    return sinks


class _MetricsOut:
    """Pushes the figures of the last view, where an address for them is given."""

    def __init__(self, address: str | None) -> None:
        self._view = LiveView(at=0.0)
        self._push = None if address is None else MetricsPush(address, self._render)

    def show(self, view: LiveView) -> None:
        self._view = view

    def _render(self) -> bytes:
        view = self._view
        figures = {"tick_seconds": view.tick_seconds, "batches_total": float(view.batches)}
        return render_metrics(view.runs, view.findings, view.nodes, figures, text=True)

    def close(self) -> None:
        if self._push is not None:
            self._push.close()


def run_watch(
    loop: WatchLoop, show: Callable[[LiveView], None], is_over: Callable[[], bool]
) -> None:
    """Read the journal and tick twice a second, until it is over."""
    show(LiveView(at=time.time()))
    ticked = time.monotonic()
    while not is_over():
        count = loop.read()
        if time.monotonic() - ticked >= TICK_SECONDS:
            ticked = time.monotonic()
            view = loop.tick(time.time())
            show(replace(view, tick_seconds=time.monotonic() - ticked))
        if not count:
            time.sleep(_PAUSE_SECONDS)


def _show(view: LiveView) -> None:
    content = codec.to_bytes(view)
    data = memoryview(struct.pack("<I", len(content)) + content)
    while data:
        data = data[os.write(1, data) :]


def main() -> int:
    settings = codec.decode(WatchSettings, codec.from_json(sys.argv[1], "watch"), "watch")
    is_over = parent_gone()
    store = open_store(Path(settings.store), Path(settings.shared) if settings.shared else None)
    try:
        maker = watcher_maker(settings)
    except UnavailableError as error:
        say_line(str(error))
        return 1
    loop = WatchLoop(store, maker)
    try:
        loop.sinks += make_sinks(settings, loop.watcher.findings())
        out = _MetricsOut(settings.push_metrics)
    except InputError as error:
        say_line(str(error))
        return 1

    def show(view: LiveView) -> None:
        out.show(view)
        _show(view)

    with suppress(BrokenPipeError):  # the service has gone
        run_watch(loop, show, is_over)
    out.close()
    loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
