"""`open_store`: the folder of one collector, and its locks.

    collector.json               who owns the folder: an id that was drawn once, and the version
    journal/000001.cfj           batches as they came, synced before they are acknowledged
    state.sqlite                 runs, ranks, findings, silences, actions, segments
    parquet/ID/TABLE/YYYYMMDD/   sealed tables; with a shared folder they lie below that instead

Names of files come from the id and from counters alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from computeflow import codec
from computeflow.errors import InputError, OutputError
from computeflow.files.parsing import parse_json
from computeflow.files.reading import read_text
from computeflow.files.writing import write_file

SCHEMA = "computeflow.store/1"
_ID = re.compile(r"[0-9a-f]{12}")
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFolder:
    path: Path
    collector: str
    parquet: Path
    """This collector's own folder of sealed tables."""

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def state(self) -> Path:
        return self.path / "state.sqlite"

    @property
    def work(self) -> Path:
        """Files that have no name yet; beside the tables, so that a rename gives them one."""
        return self.parquet / ".work"


def open_store(path: Path, shared: Path | None = None) -> StoreFolder:
    """Open the folder of a collector; one that is new or empty is made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        about = path / "collector.json"
        if not about.exists():
            if any(path.iterdir()):
                raise InputError(
                    f"--store {path}: holds files and no collector.json: name an empty folder"
                )
            fresh = {"schema": SCHEMA, "collector": secrets.token_hex(6)}
            write_file(about, codec.to_json(fresh) + "\n", "--store")
        collector = _owner(about)
        folder = StoreFolder(
            path=path, collector=collector, parquet=(shared or path / "parquet") / collector
        )
        for made in (folder.journal, folder.work):
            made.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"--store {path}: {error.strerror or error}") from None
    return folder


def store_id(path: Path) -> str:
    """The id of the collector that a store is of: the same as long as there is the store."""
    return _owner(path / "collector.json")


def _owner(about: Path) -> str:
    data = parse_json(read_text(about), str(about))
    schema, collector = (
        (data.get("schema"), data.get("collector")) if isinstance(data, dict) else (None, None)
    )
    if schema != SCHEMA:
        raise InputError(f"{about}: schema {schema!r}: this version reads {SCHEMA}")
    if not isinstance(collector, str) or not _ID.fullmatch(collector):
        raise InputError(f"{about}: collector {collector!r}: 12 hexadecimal digits")
    return collector


@contextmanager
def lock_store(store: StoreFolder, name: str, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold `name`.lock of a store while inside; `InputError` where another process keeps it."""
    path = store.path / f"{name}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        until = time.monotonic() + wait_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise InputError(
                        f"--store {store.path}: another process holds {path.name}: "
                        "one collector for one folder; several share Parquet by --shared"
                    ) from None
                time.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(descriptor)
