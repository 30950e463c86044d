"""`StepTable`: seconds of every step of every rank, and small pictures of it for a screen."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
ROWS, COLUMNS = 256, 800
"""Cells of a picture, and points of a curve: no screen shows more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptColumns:
    """An attempt of a run: its number, the column in which it begins, its first and last step."""

    number: int
    column: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    seconds: Matrix
    """A row for each rank, a column for each step; NaN where a rank has no such step."""
    own_seconds: Matrix | None = None
    """The same without waits for others; None where waits are not known."""
    waits_missing: str = ""
    """Why they are not."""
    attempts: tuple[AttemptColumns, ...]

    def picture(self, which: str, rows: int = ROWS, columns: int = COLUMNS) -> dict[str, Any]:
        """Cells for at most so many rows and about so many columns: the longest step of each cell.

        A mean would hide one slow step of one rank among thousands, which is what one looks for.
        """
        table = (
            self.own_seconds if which == "own" and self.own_seconds is not None else self.seconds
        )
        by_row, by_column = _edges(len(self.ranks), rows), self._columns(columns)
        per_row = _per_cell(len(self.ranks), rows)
        per_column = _per_cell(len(self.steps), columns)
        filled = np.where(np.isnan(table), -np.inf, table)
        if per_row > 1:
            filled = np.maximum.reduceat(filled, by_row, axis=0)
        longest = None
        if per_column > 1:
            longest = np.array(self.steps)[_largest(filled, by_column)]
            filled = np.maximum.reduceat(filled, by_column, axis=1)
        first = [self.steps[column] for column in by_column]
        return {
            "of": which,
            "ranks": [self.ranks[row] for row in by_row],
            "steps": first,
            "attempts": [
                asdict(replace(each, column=int(np.searchsorted(by_column, each.column))))
                for each in self.attempts
            ],
            "ranks_per_row": per_row,
            "steps_per_column": per_column,
            **cells(np.where(np.isfinite(filled), filled, np.nan)),
            "longest": None if longest is None else (longest - first).tolist(),
        }

    def last_step(self, attempt: AttemptColumns) -> int:
        return attempt.last

    def slowest_step(self, attempt: AttemptColumns, judged: int | None) -> int:
        """The longest step of an attempt, without its first one, which is start-up, and those that
        were done before; of the last `judged` ones, where so many were.
        """
        later = [each.column for each in self.attempts if each.column > attempt.column]
        low, high = attempt.column, min([*later, len(self.steps)])
        before = [each.last for each in self.attempts if each.column < low]
        done = max(before, default=attempt.first - 1)
        since = max(done + 1, attempt.first + 1, 0 if judged is None else attempt.last - judged + 1)
        numbers = np.array(self.steps[low:high])
        rows = np.flatnonzero(numbers >= min(since, attempt.last))
        with np.errstate(all="ignore"):
            filled = np.where(np.isnan(self.seconds), -np.inf, self.seconds)
            longest = filled[:, low + rows].max(axis=0)
        return int(numbers[rows[np.argmax(longest)]])

    def _columns(self, most: int) -> NDArray[np.int64]:
        """Columns in which cells begin; none has steps of two attempts."""
        size = _per_cell(len(self.steps), most)
        edges = [*(each.column for each in self.attempts), len(self.steps)]
        return np.concatenate([np.arange(low, high, size) for low, high in pairwise(edges)])

    def curve(self, points: int = COLUMNS) -> dict[str, Any]:
        """Step times over the run: median over ranks, and the slowest, for about so many points: where
        a point is of several steps, the mean of their medians, and the longest and its number.
        """
        by_column = self._columns(points)
        with np.errstate(all="ignore"):
            middle = _columns_median(self.seconds)
            slowest = np.nanmax(np.where(np.isnan(self.seconds), -np.inf, self.seconds), axis=0)
        return {
            "steps": [self.steps[column] for column in by_column],
            "slowest_steps": np.array(self.steps)[_largest(slowest[None], by_column)[0]].tolist(),
            "middle_seconds": _means(middle, by_column),
            "slowest_seconds": np.maximum.reduceat(slowest, by_column).tolist(),
            "steps_per_point": _per_cell(len(self.steps), points),
            "one_rank": len(self.ranks) == 1,
        }


def _per_cell(count: int, cells: int) -> int:
    return max(1, -(-count // max(cells, 1)))


def _edges(count: int, cells: int) -> NDArray[np.int64]:
    return np.arange(0, count, _per_cell(count, cells))


def _columns_median(table: Matrix) -> Matrix:
    if not np.isnan(table).any():
        return np.asarray(np.median(table, axis=0))
    return np.asarray(np.nanmedian(table, axis=0))


def _means(values: Matrix, edges: NDArray[np.int64]) -> list[float]:
    sums = np.add.reduceat(values, edges)
    counts = np.diff(np.append(edges, len(values)))
    means: list[float] = (sums / counts).tolist()
    return means


def _largest(table: Matrix, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """The column of the largest value of each cell."""
    parts = pairwise([*edges.tolist(), table.shape[1]])
    return np.stack([low + table[:, low:high].argmax(axis=1) for low, high in parts], axis=1)


def cells(seconds: Matrix) -> dict[str, Any]:
    """Cells of a heat map, and what its colours go from and to."""
    known = seconds[~np.isnan(seconds)]
    middle, high = np.quantile(known, (0.5, 0.99)).tolist() if len(known) else (None, None)
    micros = np.where(np.isnan(seconds), -1.0, np.round(seconds * 1e6)).astype(np.int64)
    return {
        "micros": [[None if value < 0 else value for value in row] for row in micros.tolist()],
        "middle_seconds": middle,
        "high_seconds": high,
    }
