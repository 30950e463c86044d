"""`runs`: the history of recorded runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, File, open_catalog
from computeflow.auditing.run_history import RunHistory, read_history
from computeflow.economics import GpuPrice, find_price
from computeflow.telemetry.source_reports import SourceRequest
from computeflow.views.run_histories import runs_headline, runs_table
from computeflow.views.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunsAnswer(Answer):
    folder: str
    history: RunHistory
    price: GpuPrice | None

    @property
    def title(self) -> str:
        return f"Recorded runs in {self.folder}"

    @property
    def headline(self) -> str:
        return runs_headline(self.history)

    def tables(self) -> list[Table]:
        return [runs_table(self.title, self.history, self.price)]

    def _data(self) -> dict[str, Any]:
        history = self.history
        return {
            "schema": "computeflow.runs/1",
            "folder": self.folder,
            "runs": codec.encode(history.rows),
            "against": None if history.against is None else codec.encode(history.against),
            "price": None if self.price is None else codec.encode(self.price),
            "left_out": list(history.left_out),
        }


@checked
def runs(
    folder: File | None = None,
    *,
    against: str | None = None,
    price: str | float | None = None,
    on: str | None = None,
    catalog: CatalogFiles = (),
    progress: Callable[[str], None] | None = None,
) -> RunsAnswer:
    """List recorded runs, the latest first; `folder` holds them, by default the user's own."""
    facts = open_catalog(catalog)
    device = None if on is None else facts.accelerators[on]
    found = None if price is None else find_price(price, facts, on)
    place = own_runs() if folder is None else Path(folder)
    history = read_history(
        place,
        SourceRequest(catalog=facts, accelerator=device),
        usd_per_gpu_hour=None if found is None else found.usd,
        against=against,
        say=progress,
    )
    return RunsAnswer(folder=str(place), history=history, price=found)


def own_runs() -> Path:
    """Where `record` keeps runs that are given no folder."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "computeflow" / "runs"
