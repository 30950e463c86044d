"""`read_state`: look into a collector's database and leave the folder as it was.

SQLite makes a log and an index beside a database with a write-ahead log for everybody who opens it,
and who only reads cannot remove them. So a database without a writer is read as a file that does not
change, for which SQLite makes nothing. Whether a writer changed it meanwhile is looked at afterwards.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from computeflow.errors import ComputeFlowError

_BUSY_SECONDS = 5.0
T = TypeVar("T")


def read_state(path: Path, look: Callable[[sqlite3.Connection], T]) -> T:
    """What `look` makes of the database; it may be called twice, and keeps no cursor.

    A log with content is that of a writer, alive or killed: it is read, too. On a disk that cannot be
    written the database is read as it lies there.
    """
    log, before = _stamp(path.with_name(f"{path.name}-wal")), _stamp(path)
    if log is None or log[1] == 0:
        try:
            found = _look(path, "immutable=1", look)
        except (sqlite3.Error, ComputeFlowError):
            if _stamp(path) == before:
                raise
        else:
            if _stamp(path) == before:
                return found
    try:
        return _look(path, "mode=ro", look)
    except sqlite3.OperationalError:
        if os.access(path.parent, os.W_OK):
            raise
        return _look(path, "immutable=1", look)


def _look(path: Path, how: str, look: Callable[[sqlite3.Connection], T]) -> T:
    name = f"file:{quote(str(path))}?{how}"
    with closing(sqlite3.connect(name, uri=True, timeout=_BUSY_SECONDS)) as database:
        return look(database)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What differs once a file was written; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
