"""Sealed Parquet: a journal becomes one file for each table, many small files become one.

A file is written in `.work`, brought to the disk and then renamed, so that whoever lists the tables
finds whole files. Sealing a journal again gives the same names. Merging replaces the folder of a day:
for the moment between two renames the day is not there, and never there twice.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from computeflow.collection.store.journal import sync_folder
from computeflow.collection.store.segment_tables import (
    ORDERS,
    SCHEMAS,
    WORDS,
    Columns,
    SegmentTables,
)
from computeflow.collection.store.state_database import Segment
from computeflow.collection.store.store_folder import StoreFolder
from computeflow.errors import InputError, OutputError
from computeflow.files.parquet import parquet_engine

_SPILL = "spill"
"""Where DuckDB puts what its memory does not hold."""
_UNWRITABLE = ("ConversionException", "InvalidInputException", "OutOfRangeException")
_MOMENTS = ("start", "arrival", "finish", "time")
_OPTIONS = "FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 122880"


def day_of(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).strftime("%Y%m%d")


def write_segments(
    store: StoreFolder, tables: SegmentTables, number: int, day: str, last: int
) -> list[Segment]:
    """Write the tables of a journal, over those of an earlier try; `InputError` where its values do
    not fit their columns, which no later try would change.
    """
    columns = tables.tables()
    made = []
    with parquet_engine("sealing a journal", spill=store.work / _SPILL) as (engine, engine_error):
        try:
            words = np.array([*tables.words.places, ""], object)
            engine.register("new_words", {"n": np.arange(len(words)), "word": words})
            engine.execute("CREATE TABLE words AS SELECT * FROM new_words")
            for name in list(columns):
                table = columns.pop(name)  # one after the other goes from memory
                target = Path(name) / day / f"segment-{number:06d}.parquet"
                rows = _write_table(engine, name, table, store.work / f"{name}-{number}.partial")
                size = _publish(store.work / f"{name}-{number}.partial", store.parquet / target)
                made.append(
                    Segment(
                        path=target.as_posix(), name=name, day=day, rows=rows, bytes=size, last=last
                    )
                )
        except engine_error as error:
            text = f"{store.parquet}: {str(error).splitlines()[0][:300]}"
            if type(error).__name__ in _UNWRITABLE:
                raise InputError(text) from None
            raise OutputError(text) from None
        except OSError as error:
            raise OutputError(f"{store.parquet}: {error.strerror or error}") from None
    return made


def _write_table(engine: Any, name: str, columns: Columns, made: Path) -> int:
    engine.register("new_rows", columns)
    picks, joins = [], []
    for column, kind in (part.split() for part in SCHEMAS[name].split(", ")):
        value = f"r.{column}"
        if column in WORDS[name]:
            value = f"w_{column}.word"
            joins.append(f"JOIN words w_{column} ON w_{column}.n = r.{column}")
        elif column in _MOMENTS:
            value = f"make_timestamp(r.{column}::BIGINT)"
        elif column == "fault":
            value = "r.fault <> 0"
        picks.append(f"({value})::{kind} AS {column}")
    rows = f"SELECT {', '.join(picks)} FROM new_rows r {' '.join(joins)} ORDER BY {ORDERS[name]}"
    engine.execute(f"COPY ({rows}) TO {_quoted(made)} ({_OPTIONS})")
    engine.unregister("new_rows")
    return len(next(iter(columns.values())))


def merge_day(
    store: StoreFolder,
    name: str,
    day: str,
    parts: Sequence[Segment],
    kept: Iterable[Segment],
    number: int,
) -> Segment:
    """Make one sorted file of `parts`; the other files of the day stay as they are."""
    folder = store.parquet / name / day
    fresh, old = store.work / f"new-{name}-{day}", store.work / f"old-{name}-{day}"
    for left in (fresh, old):
        shutil.rmtree(left, ignore_errors=True)
    fresh.mkdir()
    target = fresh / f"segment-{number:06d}.parquet"
    with parquet_engine("merging segments", spill=store.work / _SPILL) as (engine, engine_error):
        try:
            files = ", ".join(_quoted(store.parquet / part.path) for part in parts)
            ((rows,),) = engine.execute(
                f"COPY (SELECT * FROM read_parquet([{files}]) ORDER BY {ORDERS[name]}) "
                f"TO {_quoted(target)} ({_OPTIONS})"
            ).fetchall()
        except engine_error as error:
            raise OutputError(f"{folder}: {str(error).splitlines()[0][:300]}") from None
    if rows != sum(part.rows for part in parts):
        raise OutputError(f"{folder}: {rows:,} rows of merged files instead of those they had")
    _sync(target)
    for part in kept:
        _link(store.parquet / part.path, fresh / Path(part.path).name)
    sync_folder(fresh)
    folder.rename(old)
    fresh.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
    return Segment(
        path=f"{name}/{day}/{target.name}",
        name=name,
        day=day,
        rows=rows,
        bytes=(folder / target.name).stat().st_size,
        last=max(part.last for part in parts),
    )


def mend(store: StoreFolder) -> None:
    """Finish what a merge left behind when its process was killed, and drop unfinished files."""
    for fresh in store.work.glob("new-*"):
        _, name, day = fresh.name.split("-")
        folder = store.parquet / name / day
        if folder.exists():  # it was not yet put aside
            shutil.rmtree(fresh, ignore_errors=True)
        else:
            fresh.rename(folder)
    for old in store.work.glob("old-*"):
        _, name, day = old.name.split("-")
        if not (store.parquet / name / day).exists():
            old.rename(store.parquet / name / day)
        else:
            shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(store.work / _SPILL, ignore_errors=True)
    for partial in store.work.glob("*.partial"):
        partial.unlink(missing_ok=True)


def found_segments(store: StoreFolder, known: Mapping[str, Segment], sealed: int) -> list[Segment]:
    """Sealed files that are there, as the folders show them; new ones are read for their rows.

    A file of a journal that is not yet marked as sealed is left to that: it is written again.
    """
    found = []
    for path in sorted(store.parquet.glob("*/*/segment-*.parquet")):
        name, day, file = path.parts[-3:]
        relative = f"{name}/{day}/{file}"
        number = int(file.removeprefix("segment-").removesuffix(".parquet"))
        if relative in known:
            found.append(known[relative])
        elif name in SCHEMAS and not sealed < number < MERGED:
            with parquet_engine("reading a segment") as (engine, _):
                ((rows,),) = engine.execute(
                    f"SELECT count(*) FROM read_parquet({_quoted(path)})"
                ).fetchall()
            when = path.stat()
            found.append(
                Segment(
                    path=relative,
                    name=name,
                    day=day,
                    rows=rows,
                    bytes=when.st_size,
                    last=int(when.st_mtime * 1e6),
                )
            )
    return found


MERGED = 1_000_000_000
"""Numbers of merged files begin here; below, a file has the number of its journal."""


def remove_segment(store: StoreFolder, segment: Segment) -> None:
    path = store.parquet / segment.path
    path.unlink(missing_ok=True)
    with suppress(OSError):  # not empty
        path.parent.rmdir()


def _publish(made: Path, target: Path) -> int:
    _sync(made)
    size = made.stat().st_size
    target.parent.mkdir(parents=True, exist_ok=True)
    made.replace(target)
    sync_folder(target.parent)
    return size


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
        _sync(target)


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
