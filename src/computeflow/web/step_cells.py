"""`read_cells`: the step times of one run in a store as a small picture, rank by step.

The cells are made where the rows are, in one pass of DuckDB: ten million steps are half a second and a
few hundred thousand numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.files.parquet import parquet_engine
from computeflow.web.step_table import Matrix, quantiles

ROWS, COLUMNS = 256, 800
"""Cells of a picture: no screen shows more."""
_NAMES = {"rank": np.int64, "attempt": np.int64, "step": np.int64, "seconds": np.float64}
_PICKED = ", ".join(_NAMES)


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

    def picture(self, which: str, rows: int, columns: int) -> dict[str, Any]:
        """The cells as they were read; time without waits is not in a store."""
        micros = np.where(np.isnan(self.longest), -1.0, np.round(self.longest * 1e6))
        return {
            "of": "seconds",
            "ranks": list(self.ranks),
            "steps": list(self.steps),
            "ranks_per_row": self.ranks_per_row,
            "steps_per_column": self.steps_per_column,
            "micros": [
                [None if v < 0 else v for v in row] for row in micros.astype(np.int64).tolist()
            ],
            **quantiles(self.longest[~np.isnan(self.longest)]),
        }

    def curve(self, points: int) -> dict[str, Any]:
        """Step times over the run: median over rows of ranks, and the slowest rank."""
        there = np.flatnonzero(~np.isnan(self.longest).all(axis=0))
        return {
            "steps": [self.steps[column] for column in there],
            "steps_per_point": self.steps_per_column,
            "middle_seconds": np.nanmedian(self.mean[:, there], axis=0).tolist(),
            "slowest_seconds": np.nanmax(self.longest[:, there], axis=0).tolist(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    number: int
    first: int
    """Its first step."""
    column: int
    columns: int


def read_cells(
    run: str,
    files: Sequence[str],
    unsealed: Sequence[dict[str, NDArray[Any]]],
    rows: int = ROWS,
    columns: int = COLUMNS,
) -> StepCells | None:
    """At most so many rows, and about so many columns; None where there is no step of this run.

    `unsealed` are columns of steps that are not in the files yet, or not all of them.
    """
    with parquet_engine("reading steps", threads=2) as (engine, engine_error):
        try:
            engine.register("unsealed", _joined(unsealed))
            sources = [f"SELECT {_PICKED} FROM unsealed"]
            if files:
                names = ", ".join("'" + name.replace("'", "''") + "'" for name in files)
                sources.append(f"SELECT {_PICKED} FROM read_parquet([{names}]) WHERE run = $run")
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


def _joined(parts: Sequence[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {
        name: np.concatenate([np.zeros(0, kind), *(part[name] for part in parts)]).astype(kind)
        for name, kind in _NAMES.items()
    }


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
    return StepCells(
        ranks=tuple((lowest + per_row * np.flatnonzero(kept)).tolist()),
        steps=tuple(
            each.first + per_column * place for each in attempts for place in range(each.columns)
        ),
        ranks_per_row=per_row,
        steps_per_column=per_column,
        longest=longest[kept],
        mean=mean[kept],
        attempts=tuple(each.column for each in attempts),
    )
