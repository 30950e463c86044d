"""The kernel's messages as signals of a node: `KernelSignals` follows /dev/kmsg, or a file.

Xids, SXids, machine checks, links that flap: what `telemetry.kernel_logs` knows, and nothing else. A
message that comes a thousand times is said twenty times a minute.
"""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from computeflow.collection.agent.node_sources import NodeLook
from computeflow.collection.wire.batches import NodeSignal
from computeflow.telemetry.kernel_logs.line_stamps import Stamp, stamp_of
from computeflow.telemetry.kernel_logs.messages import SMALL, classify_message, hints

KMSG = Path("/dev/kmsg")
_RECENT_SECONDS = 600.0
"""Messages before the agent's start that are still worth saying."""
_TAIL_BYTES = 256 << 10
_MAX_READ_BYTES = 1 << 20
_MAX_LINES = 20_000
"""Lines, or records of /dev/kmsg, in one look."""
_RECORD_BYTES = 8192
_MAX_OF_A_KIND = 20
_MAX_OF_ALL = 200
_MINUTE = 60.0


class KernelSignals:
    def __init__(self, path: Path = KMSG) -> None:
        self._path = path
        self._number: int | None = None
        self._identity = (0, 0)
        self._offset = 0
        self._rest = b""
        self._began: float | None = None
        self._minute = 0.0
        self._said: Counter[tuple[str, str]] = Counter()
        self._dropped = 0

    def look(self, at: int) -> NodeLook:
        now = at / 1e6
        first = self._began is None
        self._began = now if self._began is None else self._began
        self._new_minute(now)
        signals: list[NodeSignal] = []
        try:
            for line in self._lines():
                signal = self._signal(line, now, first)
                if signal is not None and self._may_say(signal):
                    signals.append(signal)
        except OSError as error:
            self._close()
            reason = f"{self._path}: {error.strerror or error}"
            return NodeLook(signals=tuple(signals), missing={"kernel log": reason})
        return NodeLook(signals=tuple(signals))

    def _new_minute(self, now: float) -> None:
        if abs(now - self._minute) >= _MINUTE:  # a clock may be put back
            self._minute = now
            self._said.clear()

    def _may_say(self, signal: NodeSignal) -> bool:
        self._said[signal.what, signal.gpu] += 1
        self._said["", ""] += 1
        return (
            self._said[signal.what, signal.gpu] <= _MAX_OF_A_KIND
            and self._said["", ""] <= _MAX_OF_ALL
        )

    def _signal(self, line: str, now: float, first: bool) -> NodeSignal | None:
        if not any(hint in line for hint in hints()):
            return None
        stamp = stamp_of(line)
        text = stamp.text if stamp else line
        message = classify_message(text)
        if message is None:
            return None
        seconds = _seconds(stamp, now)
        if first and (seconds is None or now - seconds > _RECENT_SECONDS):
            return None
        when = now if seconds is None else min(seconds, now)
        device = f"{message.device}: " if message.device and not message.on_gpu else ""
        return NodeSignal(
            at=max(round(when * 1e6), 0),
            what=message.sign.what,
            detail=f"{device}{text}"[:SMALL],
            gpu=message.device if message.on_gpu else "",
            fault=message.sign.fault,
        )

    def _lines(self) -> Iterator[str]:
        if self._number is None:
            self._open()
        if self._identity == (0, 0):
            yield from self._records()
        else:
            yield from self._file_lines()

    def _open(self) -> None:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        self._number = os.open(self._path, flags)
        kind = os.fstat(self._number)
        self._identity, self._rest = (0, 0), b""
        if stat.S_ISREG(kind.st_mode):
            self._identity = (kind.st_dev, kind.st_ino)
            self._offset = max(kind.st_size - _TAIL_BYTES, 0)

    def _close(self) -> None:
        if self._number is not None:
            os.close(self._number)
        self._number = None

    def _records(self) -> Iterator[str]:
        """Records of /dev/kmsg; one that was overwritten before it was read is passed over."""
        assert self._number is not None
        for _ in range(_MAX_LINES):
            try:
                record = os.read(self._number, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue
            if not record:
                return
            yield record.decode("utf-8", "replace").partition("\n")[0]

    def _file_lines(self) -> Iterator[str]:
        """Whole lines that have come; a file that was rotated is read to its end, then the new one."""
        assert self._number is not None
        size = os.fstat(self._number).st_size
        if size < self._offset:  # emptied
            self._offset, self._rest = 0, b""
        content = os.pread(self._number, _MAX_READ_BYTES, self._offset)
        self._offset += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        self._rest = self._rest[:_RECORD_BYTES]
        for line in lines[:_MAX_LINES]:
            yield line.decode("utf-8", "replace").rstrip("\r")
        if not content and self._was_rotated():
            self._close()

    def _was_rotated(self) -> bool:
        try:
            now = os.stat(self._path)  # noqa: PTH116
        except OSError:
            return False
        return (now.st_dev, now.st_ino) != self._identity


def _seconds(stamp: Stamp | None, now: float) -> float | None:
    """Unix time of a line; None where it does not say."""
    if stamp is None or stamp.clock in ("none", "no year"):
        return None
    if stamp.clock == "unix":
        return stamp.seconds
    return now - time.monotonic() + stamp.seconds  # counted from boot
