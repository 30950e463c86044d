"""Cache of earlier results, for the user alone.

    Cache("traces").get(key)

A stranger's data must not bring its own results along, so nothing is kept beside it: entries lie in a
private folder below the user's cache folder, each behind a sum of its content. Whatever is odd (a
folder of another user, a link, a pipe, a byte that changed) is as if it were not there.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from computeflow.errors import ComputeFlowError
from computeflow.files.limits import CACHE_BYTES, CACHE_ENTRY_BYTES
from computeflow.files.writing import write_file

_SUM = 16
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def cache_home() -> Path:
    """`$XDG_CACHE_HOME/computeflow`, else `~/.cache/computeflow`."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "computeflow"


@dataclass(frozen=True, slots=True)
class Cache:
    """Bytes by their keys, which are names of files."""

    name: str

    def get(self, key: str) -> bytes | None:
        with suppress(OSError), self._folder() as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(key, flags, dir_fd=folder), "rb") as file:
                facts = os.fstat(file.fileno())
                if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
                    return None
                content = file.read(CACHE_ENTRY_BYTES)
                return content[_SUM:] if content[:_SUM] == _sum(key, content[_SUM:]) else None
        return None

    def put(self, key: str, content: bytes) -> None:
        """Where that is possible; a cache that cannot be written to is no failure."""
        if len(content) + _SUM >= CACHE_ENTRY_BYTES:
            return
        with suppress(OSError, ComputeFlowError), self._folder():
            write_file(self._path / key, _sum(key, content) + content, "cache", force=True)

    def trim(self) -> None:
        """The oldest entries go where all together are too large."""
        with suppress(OSError), self._folder() as folder:
            with os.scandir(folder) as entries:
                kept = [(entry.stat(follow_symlinks=False), entry.name) for entry in entries]
            total = sum(facts.st_size for facts, _ in kept)
            for facts, name in sorted(kept, key=lambda entry: entry[0].st_mtime):
                if total <= CACHE_BYTES:
                    return
                os.unlink(name, dir_fd=folder)
                total -= facts.st_size

    @property
    def _path(self) -> Path:
        return cache_home() / self.name

    @contextmanager
    def _folder(self) -> Iterator[int]:
        """Open, the user's own and closed to others; an OSError where it is not."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            facts = os.fstat(folder)
            if facts.st_uid != os.geteuid() or facts.st_mode & _OTHERS:
                raise PermissionError(f"{self._path} is open to others")
            yield folder
        finally:
            os.close(folder)


def _sum(key: str, content: bytes) -> bytes:
    """Digest of key and content: an entry that was given another name is not read."""
    return hashlib.blake2b(key.encode() + b"\0" + content, digest_size=_SUM).digest()
