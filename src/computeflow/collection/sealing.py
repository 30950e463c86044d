"""`seal`: the files of a run's ranks as Parquet, for DuckDB, pandas and whoever reads columns.

One row for each step, span, collective and event (the schema is in docs/sources/run-folder.md). A table
is written beside its name, brought to the disk and then renamed. The files of the ranks stay: they are
what `audit` reads.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import ComputeFlowError, InputError, UnavailableError
from computeflow.files.limits import RUN_BYTES
from computeflow.files.parquet import parquet_engine
from computeflow.files.writing import write_file
from computeflow.telemetry.run_folders.arrivals import UNKNOWN
from computeflow.telemetry.run_folders.phases import Ints, name_of, place_of
from computeflow.telemetry.run_folders.rank_file import RankFile
from computeflow.telemetry.run_folders.rank_reading import read_rank_file
from computeflow.telemetry.run_folders.run_folder_source import ENDING

_KEY = "rank INTEGER, attempt INTEGER"
_TABLES = {
    "steps": f"{_KEY}, step BIGINT, optimizer_step BIGINT, start TIMESTAMP, seconds DOUBLE, "
    "tokens BIGINT, samples BIGINT, profiled BOOLEAN, loss DOUBLE, collections BIGINT, "
    "collecting_seconds DOUBLE",
    "spans": f"{_KEY}, step BIGINT, phase VARCHAR, place VARCHAR, start TIMESTAMP, seconds DOUBLE",
    "collectives": f"{_KEY}, process_group VARCHAR, operation VARCHAR, sequence BIGINT, "
    "arrival TIMESTAMP, finish TIMESTAMP, bytes BIGINT, every BIGINT",
    "events": f"{_KEY}, start TIMESTAMP, seconds DOUBLE, what VARCHAR, text VARCHAR, bytes BIGINT",
}
"""Columns of each table; rows are in the order of rank, attempt and time."""
_ORDER = {"steps": "step", "spans": "start", "collectives": "arrival", "events": "start"}
Column = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """What was written of a run folder."""

    rows: Mapping[str, int]
    """By file."""
    left_out: tuple[str, ...]


def seal(folder: Path) -> Sealed:
    """Write the tables of a run folder, over older ones; without DuckDB nothing, and say so."""
    files = sorted(folder.glob(f"*{ENDING}"))
    if not files:
        raise InputError(f"{folder}: no files of ranks in it")
    left_out: list[str] = []
    try:
        with TemporaryDirectory(prefix="computeflow-seal-") as place:
            return Sealed(
                rows=_sealed(folder, files, Path(place), left_out), left_out=tuple(left_out)
            )
    except UnavailableError as error:
        return Sealed(rows={}, left_out=(str(error),))


def _sealed(
    folder: Path, files: Sequence[Path], place: Path, left_out: list[str]
) -> dict[str, int]:
    rows: dict[str, int] = {}
    with parquet_engine("sealing a run folder", str(place / "run.db")) as (engine, engine_error):
        try:
            for name, columns in _TABLES.items():
                engine.execute(f"CREATE TABLE {name} ({columns})")
            for path in files:
                _insert(engine, path, left_out)
            for name in _TABLES:
                ((rows[f"{name}.parquet"],),) = engine.execute(
                    f"SELECT count(*) FROM {name}"
                ).fetchall()
                _publish(engine, name, folder, place / f"{name}.parquet")
        except engine_error as error:
            raise InputError(f"{folder}: {str(error).splitlines()[0][:300]}") from None
    return rows


def _insert(engine: Any, path: Path, left_out: list[str]) -> None:
    try:
        file = read_rank_file(path, RUN_BYTES)
    except ComputeFlowError as error:
        left_out.append(str(error))
        return
    left_out += file.left_out
    for name, table in _tables(file).items():
        if len(next(iter(table.values()))):
            count = len(next(iter(table.values())))
            key = {
                "rank": np.full(count, file.start.rank),
                "attempt": np.full(count, file.start.attempt),
            }
            engine.register("new_rows", key | table)
            engine.execute(f"INSERT INTO {name} BY NAME SELECT * FROM new_rows")
            engine.unregister("new_rows")


def _publish(engine: Any, name: str, folder: Path, made: Path) -> None:
    order = f"SELECT * FROM {name} ORDER BY rank, attempt, {_ORDER[name]}"
    target = str(made).replace("'", "''")
    engine.execute(f"COPY ({order}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")

    def copy(file: BinaryIO) -> None:
        with made.open("rb") as source:
            shutil.copyfileobj(source, file, 1 << 20)

    write_file(folder / made.name, copy, "seal", force=True)


def _tables(file: RankFile) -> dict[str, dict[str, Column]]:
    steps, pieces, arrivals = file.steps, file.pieces, file.arrivals
    row = np.minimum(np.searchsorted(steps.end, pieces.start, side="right"), len(steps) - 1)
    return {
        "steps": {
            "step": steps.number,
            "optimizer_step": _known(steps.own),
            "start": _moments(steps.begin),
            "seconds": (steps.end - steps.begin) / 1e6,
            "tokens": _known(steps.tokens),
            "samples": _known(steps.samples),
            "profiled": steps.profiled,
            "loss": np.ma.masked_invalid(steps.loss),
            "collections": steps.collections,
            "collecting_seconds": steps.collecting / 1e6,
        },
        "spans": {
            "step": steps.number[row],
            "phase": _words(pieces.kind, [name_of(int(k), file.names) for k in _kinds(file)]),
            "place": _words(pieces.kind, [place_of(int(k), file.names) for k in _kinds(file)]),
            "start": _moments(pieces.start),
            "seconds": (pieces.end - pieces.start) / 1e6,
        },
        "collectives": {
            "process_group": _texts([name for name, _ in arrivals.groups], arrivals.group),
            "operation": _texts([operation for _, operation in arrivals.groups], arrivals.group),
            "sequence": arrivals.sequence,
            "arrival": _moments(arrivals.at),
            "finish": np.ma.masked_array(_moments(arrivals.end), arrivals.end == UNKNOWN),
            "bytes": arrivals.bytes,
            "every": arrivals.every,
        },
        "events": {
            "start": _moments(np.array([event.start for event in file.events], np.int64)),
            "seconds": np.array([(event.end - event.start) / 1e6 for event in file.events]),
            "what": np.array([event.what for event in file.events], object),
            "text": np.array([event.text for event in file.events], object),
            "bytes": _known(
                np.array([_or_unknown(event.bytes) for event in file.events], np.int64)
            ),
        },
    }


def _or_unknown(value: int | None) -> int:
    return UNKNOWN if value is None else value


def _known(values: Ints) -> Column:
    return np.ma.masked_array(values, values < 0)


def _moments(micros: Ints) -> Column:
    return micros.astype("datetime64[us]")


def _kinds(file: RankFile) -> Ints:
    return np.unique(file.pieces.kind)


def _words(kinds: Ints, words: Sequence[str]) -> Column:
    """The word of each kind; `words` are in the order of the kinds."""
    _, place = np.unique(kinds, return_inverse=True)
    return _texts(words, place)


def _texts(words: Sequence[str], place: Ints) -> Column:
    return np.array([*words, ""], object)[place]
