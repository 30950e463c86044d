"""`StoredSteps`: the step times of a run in a store as the page draws them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from computeflow.collection.store.step_cells import StepCells
from computeflow.web.step_table import quantiles

ROWS, COLUMNS = 256, 800
"""Cells that are read: no screen shows more."""


@dataclass(frozen=True, slots=True)
class StoredSteps:
    cells: StepCells

    def picture(self, which: str, rows: int, columns: int) -> dict[str, Any]:
        """The cells as they were read; time without waits is not in a store."""
        cells = self.cells
        micros = np.where(np.isnan(cells.longest), -1.0, np.round(cells.longest * 1e6))
        return {
            "of": "seconds",
            "ranks": list(cells.ranks),
            "steps": list(cells.steps),
            "ranks_per_row": cells.ranks_per_row,
            "steps_per_column": cells.steps_per_column,
            "micros": [
                [None if v < 0 else v for v in row] for row in micros.astype(np.int64).tolist()
            ],
            **quantiles(cells.longest[~np.isnan(cells.longest)]),
        }

    def curve(self, points: int) -> dict[str, Any]:
        """Step times over the run: median over rows of ranks, and the slowest rank."""
        cells = self.cells
        there = np.flatnonzero(~np.isnan(cells.longest).all(axis=0))
        return {
            "steps": [cells.steps[column] for column in there],
            "steps_per_point": cells.steps_per_column,
            "middle_seconds": np.nanmedian(cells.mean[:, there], axis=0).tolist(),
            "slowest_seconds": np.nanmax(cells.longest[:, there], axis=0).tolist(),
        }
