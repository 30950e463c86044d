"""`StepTable`: seconds of every step of every rank, and small pictures of it for a screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


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
    attempts: tuple[int, ...] = (0,)
    """Columns in which an attempt begins: the first, and one after each restart."""

    def picture(self, which: str, rows: int, columns: int) -> dict[str, Any]:
        """Cells for at most so many rows and columns: the longest step of those in a cell.

        A mean would hide one slow step of one rank among thousands, which is what one looks for.
        """
        table = (
            self.own_seconds if which == "own" and self.own_seconds is not None else self.seconds
        )
        by_row, by_column = _edges(len(self.ranks), rows), _edges(len(self.steps), columns)
        filled = np.where(np.isnan(table), -np.inf, table)
        if filled.size:
            filled = np.maximum.reduceat(filled, by_row, axis=0)
            filled = np.maximum.reduceat(filled, by_column, axis=1)
        known = filled[np.isfinite(filled)]
        return {
            "of": which,
            "ranks": [self.ranks[row] for row in by_row],
            "steps": [self.steps[column] for column in by_column],
            "ranks_per_row": _per_cell(len(self.ranks), rows),
            "steps_per_column": _per_cell(len(self.steps), columns),
            "micros": [
                [round(v * 1e6) if v >= 0 else None for v in row] for row in filled.tolist()
            ],
            **quantiles(known),
        }

    def curve(self, points: int) -> dict[str, Any]:
        """Step times over the run: median over ranks, and the slowest, for at most so many points."""
        by_column = _edges(len(self.steps), points)
        if not self.seconds.size:
            return {"steps": [], "middle_seconds": [], "slowest_seconds": []}
        with np.errstate(all="ignore"):
            middle = _columns_median(self.seconds)
            slowest = np.nanmax(np.where(np.isnan(self.seconds), -np.inf, self.seconds), axis=0)
        return {
            "steps": [self.steps[column] for column in by_column],
            "steps_per_point": _per_cell(len(self.steps), points),
            "middle_seconds": _means(middle, by_column),
            "slowest_seconds": np.maximum.reduceat(slowest, by_column).tolist(),
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


def quantiles(known: Matrix) -> dict[str, float | None]:
    """What the colours of a heat map go from and to."""
    if not len(known):
        return {"low_seconds": None, "middle_seconds": None, "high_seconds": None}
    low, middle, high = np.quantile(known, (0.01, 0.5, 0.99)).tolist()
    return {"low_seconds": low, "middle_seconds": middle, "high_seconds": high}
