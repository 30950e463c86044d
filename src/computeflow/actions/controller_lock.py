"""One controller for one store (`controller_lock`), and one that acts for one cluster (`ClusterLock`).

A lock is on an open file: it ends with the process that holds it, however that ends. Programs that it
started inherit the file, so that a command in flight keeps the lock until it has ended, and whoever
comes next finds what it did.

The lock of a cluster lies on this machine, named after the cluster: controllers on two machines do not
see each other's.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from computeflow.errors import InputError, OutputError

_LOOK_SECONDS = 0.1
WAIT_SECONDS = 90.0
"""Longer than any command of an engine may take."""
_FOLDERS = ("/run/lock", "/var/lock")
"""Where users of a machine share locks; else the folder for temporary files."""


class SecondControllerError(InputError):
    """Another controller has the lock."""


@contextmanager
def controller_lock(store: Path, *, wait_seconds: float = WAIT_SECONDS) -> Iterator[int]:
    with _locked(store / "controller.lock", f"--store {store}", wait_seconds) as descriptor:
        yield descriptor


class ClusterLock:
    """Taken once the engine has said its name; `held` are the descriptors that programs inherit."""

    def __init__(self, name: Callable[[], str], held: list[int], stack: ExitStack) -> None:
        self._name, self._held, self._stack, self._taken = name, held, stack, False

    def take(self) -> None:
        if self._taken:
            return
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", self._name())
        folders = [Path(each) for each in _FOLDERS if os.access(each, os.W_OK)]
        folder = next(iter(folders), Path(tempfile.gettempdir()))
        path = folder / f"computeflow-{name}.lock"
        lock = _locked(path, f"cluster {name}", WAIT_SECONDS)
        self._held.append(self._stack.enter_context(lock))
        self._taken = True


@contextmanager
def _locked(path: Path, what: str, wait_seconds: float) -> Iterator[int]:
    descriptor, mine = _opened(path)
    try:
        until = time.monotonic() + wait_seconds
        while not _taken(descriptor):
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            if _lives(holder) or time.monotonic() >= until:
                raise SecondControllerError(
                    f"{what}: a controller runs already ({holder}): one for one cluster"
                )
            time.sleep(_LOOK_SECONDS)
        if mine:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{socket.gethostname()} {os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _opened(path: Path) -> tuple[int, bool]:
    """A lock file, and whether it may be written to: another user's can be locked all the same."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644), True
    except PermissionError:
        pass
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from None
    try:
        return os.open(path, os.O_RDONLY | flags), False
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from None


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
