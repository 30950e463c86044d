"""`StoreOpening`: a collector's runs, findings, nodes and actions (SQLite), and its steps (Parquet)."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np

from computeflow.answers.action_lists import ActionsAnswer, list_actions
from computeflow.answers.audits import AuditAnswer
from computeflow.answers.live_tops import TopAnswer, top
from computeflow.collection.online.live_values import LiveRun
from computeflow.collection.outputs.snapshots import STATE_FILE
from computeflow.economics import usd_per_hour
from computeflow.errors import InputError
from computeflow.files.parquet import parquet_engine
from computeflow.web.opening import AuditOptions, Kind, RunLine
from computeflow.web.remembered import Remembered
from computeflow.web.step_table import StepTable

_FILES = (STATE_FILE, f"{STATE_FILE}-wal")
_MAX_ROWS = 20_000_000
"""Steps of all ranks of a run that are read at once: 1,024 ranks and 10,000 steps are 10 million."""


class StoreOpening:
    kind: Kind = "store"

    def __init__(self, path: Path, options: AuditOptions) -> None:
        self.path, self._options = path, options
        self._remembered = Remembered()

    def revision(self) -> Hashable:
        return tuple(_stamp(self.path / name) for name in _FILES)

    def runs(self) -> list[RunLine]:
        runs = self.top().snapshot.runs
        return [self._line(run) for run in sorted(runs, key=lambda run: -run.updated)]

    def runs_answer(self) -> TopAnswer:
        return self.top()

    def audit(self, run: str) -> AuditAnswer | None:
        return None

    def top(self) -> TopAnswer:
        return self._remembered.get("top", self.revision(), lambda: top(store=self.path))

    def actions(self) -> ActionsAnswer:
        return self._remembered.get(
            "actions", self.revision(), lambda: list_actions(store=self.path)
        )

    def steps(self, run: str) -> StepTable | None:
        files = sorted(map(str, self.path.glob("parquet/*/steps/*/segment-*.parquet")))
        return self._remembered.get(("steps", run), tuple(files), lambda: read_steps(run, files))

    def _line(self, run: LiveRun) -> RunLine:
        price = run.usd_per_gpu_hour or self._options.price
        return RunLine(
            id=run.run,
            name=run.name or run.run,
            state=run.state,
            gpus=run.world,
            device=run.gpu or run.device,
            started=run.started,
            updated=run.updated,
            step=run.step,
            step_seconds=run.step_seconds,
            tokens_per_second=run.tokens_per_second,
            mfu=run.mfu,
            goodput=run.goodput,
            restarts=run.attempt,
            usd_per_hour=None if price is None else usd_per_hour(run.world, 1.0, price),
        )


def read_steps(run: str, files: list[str]) -> StepTable | None:
    """Steps of one run in sealed Parquet; what is in the journal yet is not among them."""
    if not files:
        return None
    with parquet_engine("reading steps") as (engine, engine_error):
        try:
            found: dict[str, Any] = engine.execute(
                "SELECT rank, attempt, step, seconds FROM read_parquet(?) WHERE run = ? "
                f"ORDER BY attempt, step LIMIT {_MAX_ROWS}",
                [files, run],
            ).fetchnumpy()
        except engine_error as error:
            raise InputError(f"steps of {run}: {error}") from None
    if not len(found["rank"]):
        return None
    attempt = found["attempt"].astype(np.int64)
    keys, column = np.unique((attempt << 40) | found["step"].astype(np.int64), return_inverse=True)
    ranks, row = np.unique(found["rank"], return_inverse=True)
    table = np.full((len(ranks), len(keys)), np.nan)
    table[row, column] = found["seconds"]
    starts = np.flatnonzero(np.diff(keys >> 40, prepend=-1))
    return StepTable(
        ranks=tuple(ranks.tolist()),
        steps=tuple((keys & ((1 << 40) - 1)).tolist()),
        seconds=table,
        waits_missing="waits are in the audit of the run's own folder",
        attempts=tuple(starts.tolist()),
    )


def _stamp(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns
