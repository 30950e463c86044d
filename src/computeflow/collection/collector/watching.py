"""`LiveWatch`: the watch process as the service sees it; its latest view, and a new one if it dies."""

from __future__ import annotations

import struct
import threading
from typing import IO

from computeflow import codec
from computeflow.collection.collector.loop import LiveView
from computeflow.collection.collector.watch_process import WatchSettings
from computeflow.collection.store.processes import HelperProcess, say_line
from computeflow.errors import InputError

_MODULE = "computeflow.collection.collector.watch_process"
_READY_SECONDS = 60.0
_AGAIN_SECONDS = 5.0
_MAX_VIEW_BYTES = 256 << 20


class LiveWatch:
    def __init__(self, settings: WatchSettings) -> None:
        self._settings = settings
        self._latest: bytes | None = None
        self._decoded: tuple[bytes, LiveView] | None = None
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._helper: HelperProcess | None = None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.restarts = 0

    def start(self) -> None:
        """Start it and wait until it has opened the journal, so that nothing is sealed before."""
        self._thread.start()
        self._ready.wait(_READY_SECONDS)

    def stop(self) -> None:
        self._stopping.set()
        if self._helper is not None:
            self._helper.stop()
        self._thread.join()

    @property
    def is_running(self) -> bool:
        return self._helper is not None and self._helper.is_running

    def view(self) -> LiveView:
        latest = self._latest
        if latest is None:
            return LiveView(at=0.0)
        if self._decoded is None or self._decoded[0] is not latest:
            self._decoded = (latest, codec.from_bytes(LiveView, latest, "watch"))
        return self._decoded[1]

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._helper = HelperProcess(_MODULE, self._settings)
            if self._stopping.is_set():
                self._helper.stop()
            assert self._helper.process.stdout is not None
            said_something = self._read(self._helper.process.stdout)
            code = self._helper.process.wait()
            self._ready.set()
            if self._stopping.is_set() or not said_something:
                return
            self.restarts += 1
            say_line(f"the watch ended with {code} and starts again")
            self._stopping.wait(_AGAIN_SECONDS)

    def _read(self, output: IO[bytes]) -> bool:
        """Keep the latest view until the process ends; whether there was any."""
        some = False
        while head := output.read(4):
            size = struct.unpack("<I", head)[0] if len(head) == 4 else _MAX_VIEW_BYTES + 1
            if size > _MAX_VIEW_BYTES:
                raise InputError(f"watch: a view of {size:,} bytes")
            content = output.read(size)
            if len(content) < size:
                break
            some = True
            self._latest = content
            self._ready.set()
        return some
