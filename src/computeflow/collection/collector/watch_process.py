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
from computeflow.collection.collector.loop import LiveView, MakeWatcher, WatchLoop
from computeflow.collection.collector.sinks import ChangeSink, LiveWatcher
from computeflow.collection.online.live_values import LiveFinding
from computeflow.collection.store.processes import parent_gone, say_line
from computeflow.collection.store.store_folder import open_store
from computeflow.errors import UnavailableError

TICK_SECONDS = 1.0
_PAUSE_SECONDS = 0.05
WATCHER = "computeflow.collection.online.watcher"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    store: str
    shared: str | None = None
    price_usd_per_gpu_hour: float | None = None
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


def make_sinks(_: WatchSettings) -> tuple[ChangeSink, ...]:
    """Where findings go beside the store and `/metrics`; none yet."""
    return ()


def run_watch(
    loop: WatchLoop, show: Callable[[LiveView], None], is_over: Callable[[], bool]
) -> None:
    """Read the journal and tick once a second, until it is over."""
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
    loop = WatchLoop(store, maker, make_sinks(settings))
    with suppress(BrokenPipeError):  # the service has gone
        run_watch(loop, _show, is_over)
    loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
