"""`read_step_cells`: the step times of one run in a store as a small picture, rank by step.

The cells are made where the rows are, in one pass of DuckDB: ten million steps are half a second and a
few hundred thousand numbers. What is in the journal and not sealed yet is among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.collection.store.journal import journal_numbers, journal_path, read_frames
from computeflow.collection.wire.batches import unpack_known
from computeflow.errors import InputError
from computeflow.files.parquet import parquet_engine

Matrix = NDArray[np.float64]
_MAX_JOURNALS = 3
"""Files that are not sealed yet and are read; a collector that keeps up has one or two."""
_COLUMNS = "rank, attempt, step, seconds"
_UNSEALED = {"rank": np.int64, "attempt": np.int64, "step": np.int64, "seconds": np.float64}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCells:
    """Cells of some ranks and some steps each; NaN where no rank has such a step."""

    ranks: tuple[int, ...]
    """The first rank of each row."""
    steps: tuple[int, ...]
    """The first step of each column."""
    ranks_per_row: int
    steps_per_column: int
    longest: Matrix
    mean: Matrix
    attempts: tuple[int, ...]
    """Columns in which an attempt begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    number: int
    first: int
    """Its first step."""
    column: int
    columns: int


def step_files(store: Path) -> list[Path]:
    """What the steps of a store are read from, sealed or not."""
    sealed = sorted(store.glob("parquet/*/steps/*/segment-*.parquet"))
    numbers = journal_numbers(store / "journal")[-_MAX_JOURNALS:]
    return [*sealed, *(journal_path(store / "journal", number) for number in numbers)]


def read_step_cells(store: Path, run: str, rows: int, columns: int) -> StepCells | None:
    """At most so many rows, and about so many columns; None where there is no step of this run."""
    unsealed = _unsealed_steps(
        store, run
    )  # first: what is sealed meanwhile is there twice, not never
    files = [str(path) for path in step_files(store) if path.suffix == ".parquet"]
    with parquet_engine("reading steps") as (engine, engine_error):
        try:
            engine.register("unsealed", unsealed)
            sources = [f"SELECT {_COLUMNS} FROM unsealed"]
            if files:
                names = ", ".join("'" + name.replace("'", "''") + "'" for name in files)
                sources.append(f"SELECT {_COLUMNS} FROM read_parquet([{names}]) WHERE run = $run")
            union = " UNION ALL ".join(sources)
            values = {"run": run} if files else {}
            found = engine.execute(
                "SELECT attempt, min(step), max(step), min(rank), max(rank) "
                f"FROM ({union}) GROUP BY attempt ORDER BY attempt",
                values,
            ).fetchall()
            if not found:
                return None
            return _cells(engine, union, values, found, rows, columns)
        except engine_error as error:
            text = str(error).splitlines()[0][:300]
            raise InputError(f"steps of {run}: {text}; ask again") from None


def _cells(
    engine: Any, union: str, values: dict[str, str], found: list[Any], rows: int, columns: int
) -> StepCells:
    per_column = max(1, -(-sum(last - first + 1 for _, first, last, *_ in found) // columns))
    lowest, highest = min(row[3] for row in found), max(row[4] for row in found)
    per_row = max(1, -(-(highest - lowest + 1) // rows))
    attempts: list[_Attempt] = []
    at = 0
    for number, first, last, *_ in found:
        count = (last - first) // per_column + 1
        attempts.append(_Attempt(number=number, first=first, column=at, columns=count))
        at += count
    places = ", ".join(f"({each.number}, {each.first}, {each.column})" for each in attempts)
    cells = engine.execute(
        f"SELECT (rank - {lowest}) // {per_row} AS row, "
        f"a.place + (step - a.first) // {per_column} AS place, "
        "max(seconds) AS longest, avg(seconds) AS mean "
        f"FROM ({union}) JOIN (VALUES {places}) a(attempt, first, place) USING (attempt) "
        "GROUP BY ALL",
        values,
    ).fetchnumpy()
    shape = ((highest - lowest) // per_row + 1, at)
    longest, mean = np.full(shape, np.nan), np.full(shape, np.nan)
    longest[cells["row"], cells["place"]] = cells["longest"]
    mean[cells["row"], cells["place"]] = cells["mean"]
    kept = ~np.isnan(longest).all(axis=1)  # rows of ranks that were never heard of
    firsts = lowest + per_row * np.flatnonzero(kept)
    return StepCells(
        ranks=tuple(firsts.tolist()),
        steps=tuple(
            each.first + per_column * place for each in attempts for place in range(each.columns)
        ),
        ranks_per_row=per_row,
        steps_per_column=per_column,
        longest=longest[kept],
        mean=mean[kept],
        attempts=tuple(each.column for each in attempts),
    )


def _unsealed_steps(store: Path, run: str) -> dict[str, NDArray[Any]]:
    """Steps of a run that are in the journal; a file that was sealed meanwhile is left out."""
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in _UNSEALED}
    for path in step_files(store):
        if path.suffix == ".parquet":
            continue
        try:
            with path.open("rb") as file:
                for frame in read_frames(file):
                    _add_steps(parts, unpack_known(frame.body), run)
        except FileNotFoundError:
            continue
    return {
        name: np.concatenate([np.zeros(0, kind), *parts[name]]).astype(kind)
        for name, kind in _UNSEALED.items()
    }


def _add_steps(parts: dict[str, list[NDArray[Any]]], batch: Any, run: str) -> None:
    if batch.run != run or not batch.steps:
        return
    counts = [rows.steps for rows in batch.ranks]
    parts["rank"].append(np.repeat([rows.rank for rows in batch.ranks], counts))
    parts["attempt"].append(np.repeat([rows.attempt for rows in batch.ranks], counts))
    parts["step"].append(batch.steps["number"])
    parts["seconds"].append((batch.steps["end"] - batch.steps["begin"]) / 1e6)
