"""`controller_lock`: one controller for one store, and so for the cluster that its collector watches.

The lock is on an open file: it ends with the process that holds it, however that ends. Programs that it
started inherit the file, so that a command in flight keeps the lock until it has ended, and whoever
comes next finds what it did.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from computeflow.errors import InputError, OutputError

_LOOK_SECONDS = 0.1
WAIT_SECONDS = 90.0
"""Longer than any command of an engine may take."""


@contextmanager
def controller_lock(store: Path, *, wait_seconds: float = WAIT_SECONDS) -> Iterator[int]:
    path = store / "controller.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from None
    try:
        until = time.monotonic() + wait_seconds
        while not _taken(descriptor):
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            if _lives(holder) or time.monotonic() >= until:
                raise InputError(
                    f"--store {store}: a controller runs already ({holder}): one for one cluster"
                )
            time.sleep(_LOOK_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{socket.gethostname()} {os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _lives(holder: str) -> bool:
    """Whether the process that took the lock is there; what it started may outlive it for a while."""
    host, _, pid = holder.partition(" ")
    if not pid.isdecimal():
        return False
    return host != socket.gethostname() or Path(f"/proc/{pid}").exists()


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
