"""`CellReader`: the step times of one run in a store as a small picture, rank by step.

Cells of sealed steps are made where the rows are, in one pass of DuckDB: ten million steps are half a
second and a few hundred thousand numbers, which are kept until more is sealed. Steps that are not
sealed yet are added each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.files.parquet import parquet_engine
from computeflow.web.sources.row_columns import Columns, join_columns
from computeflow.web.sources.step_table import COLUMNS, ROWS, AttemptColumns, Matrix, cells

_BEHIND = 64
"""Steps behind the first from which on a rank has fallen silent: ranks that train come together."""
_NAMES = {"rank": np.int64, "attempt": np.int64, "step": np.int64, "seconds": np.float64}


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
    longest_steps: NDArray[np.int64]
    """The number of the longest step of each cell."""
    mean: Matrix
    attempts: tuple[AttemptColumns, ...]
    heard_last: dict[int, int]
    """The last step that all ranks have come to, by attempt, where news of it is not sealed yet."""
    waits_missing: str = (
        "a collector works them out for the last steps alone, as medians of ranks; "
        "the timeline of a step has its own"
    )

    def picture(self, which: str) -> dict[str, Any]:
        """The cells as they were read: whole steps. Who waited is not worked out for all of them."""
        offsets = np.where(np.isnan(self.longest), 0, self.longest_steps - np.array(self.steps))
        return {
            "of": "seconds",
            "ranks": list(self.ranks),
            "steps": list(self.steps),
            "ranks_per_row": self.ranks_per_row,
            "attempts": [asdict(each) for each in self.attempts],
            "steps_per_column": self.steps_per_column,
            **cells(self.longest),
            "longest": offsets.tolist() if self.steps_per_column > 1 else None,
        }

    def last_step(self, attempt: AttemptColumns) -> int:
        return self.heard_last.get(attempt.number, attempt.last)

    def slowest_step(self, attempt: AttemptColumns, judged: int | None) -> int:
        """The longest of the last `judged` steps that all ranks have come to; of all but the first
        without a number. Of a cell its longest step alone is known.
        """
        last = self.last_step(attempt)
        since = max(attempt.first + 1, 0 if judged is None else last - judged + 1)
        later = [each.column for each in self.attempts if each.column > attempt.column]
        columns = slice(attempt.column, min([*later, len(self.steps)]))
        numbers, longest = self.longest_steps[:, columns], self.longest[:, columns]
        inside = (numbers >= since) & (numbers <= last) & ~np.isnan(longest)
        if not inside.any():
            return last
        return int(numbers.flat[np.argmax(np.where(inside, longest, -np.inf))])

    def curve(self) -> dict[str, Any]:
        """Step times over the run, as of a `StepTable`: median over rows of ranks, and the slowest."""
        there = np.flatnonzero(~np.isnan(self.longest).all(axis=0))
        rows = np.nanargmax(self.longest[:, there], axis=0) if len(there) else there
        return {
            "steps": [self.steps[column] for column in there],
            "slowest_steps": self.longest_steps[rows, there].tolist(),
            "middle_seconds": np.nanmedian(self.mean[:, there], axis=0).tolist(),
            "slowest_seconds": self.longest[rows, there].tolist(),
            "steps_per_point": self.steps_per_column,
            "one_rank": len(self.ranks) * self.ranks_per_row == 1,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Steps and ranks that one attempt has."""

    first: int
    last: int
    lowest: int
    highest: int

    def joined(self, other: _Range) -> _Range:
        return _Range(
            first=min(self.first, other.first),
            last=max(self.last, other.last),
            lowest=min(self.lowest, other.lowest),
            highest=max(self.highest, other.highest),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """Where steps of ranks lie in the picture."""

    lowest: int
    """The first rank."""
    per_row: int
    per_column: int
    attempts: tuple[tuple[int, int, int], ...]
    """Number, first step and first column of each."""

    def place(self, steps: Columns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows and columns."""
        numbers, first, column = np.array(self.attempts, np.int64).T
        at = np.searchsorted(numbers, steps["attempt"])
        rows = (steps["rank"] - self.lowest) // self.per_row
        return rows, column[at] + (steps["step"] - first[at]) // self.per_column


class CellReader:
    """Reads the picture of one run: at most so many rows, and about so many columns."""

    def __init__(self, run: str, rows: int = ROWS, columns: int = COLUMNS) -> None:
        self._run, self._rows, self._columns = run, rows, columns
        self._files: tuple[str, ...] = ()
        self._ranges: dict[int, _Range] = {}
        self._grid: _Grid | None = None
        self._sealed: Columns = {}

    def read(self, files: Sequence[str], unsealed: Sequence[Columns]) -> StepCells | None:
        """None where there is no step of this run.

        `unsealed` are columns of steps that are not in the files yet, or not all of them.
        """
        loose = join_columns(unsealed, _NAMES)
        try:
            if tuple(files) != self._files:
                self._ranges, self._grid = self._read_ranges(files), None
                self._files = tuple(files)
            ranges = dict(self._ranges)
            for attempt, found in _ranges_of(loose).items():
                ranges[attempt] = found.joined(ranges.get(attempt, found))
            if not ranges:
                return None
            grid, shape = self._lay_out(ranges)
            if grid != self._grid:
                self._sealed, self._grid = self._read_sealed(grid), grid
        except InputError:
            self._files, self._grid = (), None
            raise
        attempts = tuple(
            AttemptColumns(number=number, column=column, first=first, last=ranges[number].last)
            for number, first, column in grid.attempts
        )
        parts = [self._sealed, _cells_of(loose, grid, shape)]
        return _picture(grid, shape, attempts, _heard_last(loose), parts)

    def _lay_out(self, ranges: dict[int, _Range]) -> tuple[_Grid, tuple[int, int]]:
        count = sum(each.last - each.first + 1 for each in ranges.values())
        per_column = max(1, -(-count // self._columns))
        lowest = min(each.lowest for each in ranges.values())
        ranks = max(each.highest for each in ranges.values()) - lowest + 1
        per_row = max(1, -(-ranks // self._rows))
        attempts, at = [], 0
        for number, each in sorted(ranges.items()):
            attempts.append((number, each.first, at))
            at += (each.last - each.first) // per_column + 1
        grid = _Grid(
            lowest=lowest, per_row=per_row, per_column=per_column, attempts=tuple(attempts)
        )
        return grid, (-(-ranks // per_row), at)

    def _read_ranges(self, files: Sequence[str]) -> dict[int, _Range]:
        found = self._query(
            "SELECT attempt, min(step) AS first, max(step) AS last, min(rank) AS lowest, "
            "max(rank) AS highest FROM read_parquet($files) WHERE run = $run GROUP BY attempt",
            files,
        )
        names = ("first", "last", "lowest", "highest")
        return {
            int(attempt): _Range(**{name: int(found[name][row]) for name in names})
            for row, attempt in enumerate(found.get("attempt", ()))
        }

    def _read_sealed(self, grid: _Grid) -> Columns:
        places = ", ".join(map(str, grid.attempts))
        return self._query(
            f"SELECT (rank - {grid.lowest}) // {grid.per_row} AS row, "
            f"a.place + (step - a.first) // {grid.per_column} AS place, "
            "max(seconds) AS longest, arg_max(step, seconds) AS step, "
            "sum(seconds) AS total, count(*) AS count "
            f"FROM read_parquet($files) JOIN (VALUES {places}) a(attempt, first, place) "
            "USING (attempt) WHERE run = $run GROUP BY ALL",
            self._files,
        )

    def _query(self, query: str, files: Sequence[str]) -> Columns:
        if not files:
            return {}
        with parquet_engine("reading steps", threads=2) as (engine, engine_error):
            try:
                values = {"files": list(files), "run": self._run}
                found: Columns = engine.execute(query, values).fetchnumpy()
            except engine_error as error:
                text = str(error).splitlines()[0][:300]
                raise InputError(f"steps of {self._run}: {text}; ask again") from None
        return found


def _ranges_of(steps: Columns) -> dict[int, _Range]:
    found = {}
    for attempt in np.unique(steps["attempt"]).tolist():
        rows = steps["attempt"] == attempt
        numbers, ranks = steps["step"][rows], steps["rank"][rows]
        found[attempt] = _Range(
            first=int(numbers.min()),
            last=int(numbers.max()),
            lowest=int(ranks.min()),
            highest=int(ranks.max()),
        )
    return found


def _heard_last(steps: Columns) -> dict[int, int]:
    """The last step that ranks have come to, by attempt: those that fell silent long before aside."""
    found = {}
    for attempt in np.unique(steps["attempt"]).tolist():
        mine = steps["attempt"] == attempt
        ranks = np.unique(steps["rank"][mine], return_inverse=True)[1]
        last = np.full(ranks.max() + 1, -1, np.int64)
        np.maximum.at(last, ranks, steps["step"][mine])
        found[attempt] = int(last[last > last.max() - _BEHIND].min())
    return found


def _cells_of(steps: Columns, grid: _Grid, shape: tuple[int, int]) -> Columns:
    """The same columns as of sealed steps."""
    row, place = grid.place(steps)
    flat = row * shape[1] + place
    order = np.lexsort((steps["seconds"], flat))
    found, first, count = np.unique(flat[order], return_index=True, return_counts=True)
    if not len(found):
        return {}
    seconds, last = steps["seconds"][order], first + count - 1
    return {
        "row": found // shape[1],
        "place": found % shape[1],
        "longest": seconds[last],
        "step": steps["step"][order][last],
        "total": np.add.reduceat(seconds, first),
        "count": count,
    }


def _picture(
    grid: _Grid,
    shape: tuple[int, int],
    attempts: tuple[AttemptColumns, ...],
    heard_last: dict[int, int],
    parts: Sequence[Columns],
) -> StepCells:
    longest, total, count = np.full(shape, -np.inf), np.zeros(shape), np.zeros(shape)
    numbers = np.zeros(shape, np.int64)
    for part in parts:
        if part:
            at = part["row"], part["place"]
            longer = part["longest"] > longest[at]
            numbers[at] = np.where(longer, part["step"], numbers[at])
            longest[at] = np.maximum(longest[at], part["longest"])
            total[at] += part["total"]
            count[at] += part["count"]
    kept = count.any(axis=1)  # without rows of ranks that were never heard of
    known = count > 0
    ends = [each.column for each in attempts[1:]] + [shape[1]]
    return StepCells(
        ranks=tuple((grid.lowest + grid.per_row * np.flatnonzero(kept)).tolist()),
        steps=tuple(
            each.first + grid.per_column * place
            for each, end in zip(attempts, ends, strict=True)
            for place in range(end - each.column)
        ),
        ranks_per_row=grid.per_row,
        steps_per_column=grid.per_column,
        longest=np.where(known, longest, np.nan)[kept],
        longest_steps=numbers[kept],
        mean=np.divide(total, count, out=np.full(shape, np.nan), where=known)[kept],
        attempts=attempts,
        heard_last=heard_last,
    )
