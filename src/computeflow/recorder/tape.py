"""The file of this rank: a bounded buffer that training fills, and a thread that writes it.

Training never waits for it, not even to open the file: what does not fit is dropped and counted, what
the disk refuses is tried again from the byte at which it stopped, and a broken disk ends nothing but
the recording.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from computeflow.recorder.frames import MAGIC, Record, packed

FLUSH_SECONDS = 0.4
"""A killed process loses what it noted since: less than a second."""
MAX_WAITING = 8000
"""Most records that wait for the disk: minutes of steps, about 20 MB of them."""
MAX_ERRORS = 50
MAX_ATTEMPTS = 1000
_BATCH = 500
"""Records that are written at once."""
_RETRY_SECONDS = 2.0

Encode = Callable[[Any], Record | None]
Watch = Callable[[], list[Record]]


class Tape:
    """Takes anything by `put`; `encode` makes it a record, on the writer's thread.

    `first`, the first record, names the rank and the attempt; where a file of that attempt is there
    already, the next free number is taken.
    """

    def __init__(
        self, folder: Path, first: Record, encode: Encode, idle: Watch, last: Watch
    ) -> None:
        self._folder, self._first = folder, first
        self.path = self._path(first["attempt"])
        self._encode, self._idle, self._last = encode, idle, last
        self._waiting: deque[Any] = deque()
        self._dropped = 0
        self._told = (0, 0)
        self._errors: dict[str, list[Any]] = {}
        self._file = -1
        self._unwritten = b""
        self._wake = threading.Event()
        self._ended = False
        self._end: Record | None = None
        self._thread = threading.Thread(target=self._run, name="computeflow-recorder", daemon=True)

    def _path(self, attempt: int) -> Path:
        return self._folder / f"rank-{self._first['rank']:05d}.attempt-{attempt}.cfr"

    def start(self) -> None:
        self._thread.start()

    def put(self, item: Any) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._dropped += 1
        else:
            self._waiting.append(item)

    def error(self, place: str, error: BaseException) -> None:
        """Count an error of the recorder's own; the first text of each place is kept."""
        if place in self._errors or len(self._errors) < MAX_ERRORS:
            self._errors.setdefault(place, [0, described(error)])[0] += 1

    def errors_at(self, place: str) -> int:
        return int(self._errors[place][0]) if place in self._errors else 0

    def close(self, last: Record, seconds: float = 1.0) -> None:
        """Write what is left, for a second at most."""
        if self._ended:
            return
        self._end = last
        self._ended = True
        self._wake.set()
        self._thread.join(seconds)

    def abandon(self) -> None:
        """In a forked child: the file and its thread are the parent's."""
        self._ended = True
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = -1

    # The writer's thread

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # signals are for the threads of the user
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ended = False
        while not ended:
            self._wake.wait(FLUSH_SECONDS)
            ended = self._ended
            try:
                self._flush(ended)
            except OSError as error:
                self.error("disk", error)
                self._wake.wait(_RETRY_SECONDS)
            except Exception as error:
                self.error("write", error)
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)

    def _flush(self, ended: bool) -> None:
        if self._file < 0:
            self._open()
        self._write(b"")
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH))]
            self._write(b"".join(self._frames(batch)))
        self._write(b"".join(self._more(ended)))

    def _open(self) -> None:
        """Create the file: under the first number that is free."""
        self._folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_APPEND
        for attempt in range(self._first["attempt"], self._first["attempt"] + MAX_ATTEMPTS):
            with contextlib.suppress(FileExistsError):
                self._file = os.open(self._path(attempt), flags, 0o644)
                self.path = self._path(attempt)
                self._unwritten = MAGIC + packed(self._first | {"attempt": attempt})
                return
        raise OSError(f"{MAX_ATTEMPTS} files of rank {self._first['rank']} are there")

    def _frames(self, items: list[Any]) -> list[bytes]:
        frames = []
        for number, item in enumerate(items):
            try:
                record = item if isinstance(item, dict) else self._encode(item)
                if record is not None:
                    frames.append(packed(record))
            except Exception as error:
                self._dropped += 1
                self.error("encode", error)
            if number % 8 == 7:
                time.sleep(0)  # gives the interpreter back to training
        return frames

    def _more(self, ended: bool) -> list[bytes]:
        """What the writer's thread sees itself; what was lost; the end."""
        records: list[Record] = []
        try:
            records += self._last() if ended else self._idle()
        except Exception as error:
            self.error("watch", error)
        errors = {place: list(known) for place, known in list(self._errors.items())}
        told = (self._dropped, sum(count for count, _ in errors.values()))
        if told != self._told:
            self._told = told
            records.append({"k": "x", "dropped": told[0], "errors": errors})
        if ended and self._end is not None:
            records.append(self._end | ({"dropped": told[0]} if told[0] else {}))
        return self._frames(records)

    def _write(self, data: bytes) -> None:
        """Append, after what the disk has refused so far; OSError where it refuses more."""
        self._unwritten += data
        while self._unwritten:
            self._unwritten = self._unwritten[os.write(self._file, self._unwritten) :]


def described(error: BaseException) -> str:
    """An error in a line, whatever its text is made of."""
    try:
        return f"{type(error).__name__}: {error}".replace("\n", " ")[:200]
    except Exception:
        return type(error).__name__
