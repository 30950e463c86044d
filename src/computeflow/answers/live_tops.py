"""`top`: what goes on right now, from a collector or its store."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import File
from computeflow.collection.outputs.snapshots import (
    TOKEN,
    LiveSnapshot,
    read_collector,
    read_store,
)
from computeflow.errors import InputError
from computeflow.views.live_runs import (
    SortBy,
    sorted_findings,
    sorted_runs,
    top_headline,
    top_tables,
)
from computeflow.views.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TopAnswer(Answer):
    snapshot: LiveSnapshot
    sort: SortBy = "cost"

    @property
    def title(self) -> str:
        return f"Runs of {self.snapshot.source}"

    @property
    def headline(self) -> str:
        return top_headline(self.snapshot)

    def tables(self) -> list[Table]:
        return top_tables(self.snapshot, self.sort)

    def _data(self) -> dict[str, Any]:
        snapshot = self.snapshot
        return {
            "schema": "computeflow.top/1",
            "source": snapshot.source,
            "taken": snapshot.taken,
            "runs": codec.encode(sorted_runs(snapshot)),
            "findings": codec.encode(sorted_findings(snapshot, self.sort)),
            "closed": codec.encode([f for f in snapshot.findings if not f.is_open]),
            "nodes": codec.encode(snapshot.nodes),
            "silent": snapshot.silent,
            "left_out": list(snapshot.left_out),
        }


@checked
def top(
    *,
    store: File | None = None,
    collector: str | None = None,
    once: bool = False,
    sort: SortBy = "cost",
) -> TopAnswer:
    """Look once at the runs of a collector, by its address or in its store.

    The command looks again every second, on a terminal and without `once`.
    """
    if (store is None) == (collector is None):
        raise InputError("top needs one of --store DIR and --collector URL")
    if collector is not None:
        token = os.environ.get(TOKEN, "").strip()
        return TopAnswer(snapshot=read_collector(collector, token), sort=sort)
    snapshot = read_store(Path(store or ""))
    return TopAnswer(snapshot=snapshot.shown_at(snapshot.taken), sort=sort)
