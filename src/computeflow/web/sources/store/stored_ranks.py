"""`rank_files`: rows of a collector's store about some steps as files of ranks, as they once came.

So waits in them are found by the code that finds those of a run folder.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.run_folders.arrivals import UNKNOWN, Arrivals
from computeflow.telemetry.run_folders.phases import kinds_by_words, named_kind
from computeflow.telemetry.run_folders.rank_file import (
    Pieces,
    RankFile,
    RankStart,
    StepRows,
    fill_holes,
)
from computeflow.web.sources.row_columns import Columns

SPANS = {
    "rank": np.int64,
    "node": object,
    "attempt": np.int64,
    "step": np.int64,
    "phase": object,
    "place": object,
    "start": np.int64,
    "seconds": np.float64,
}
LEADS = {name: SPANS[name] for name in ("rank", "attempt", "phase", "start", "seconds")}
ARRIVALS = {
    "rank": np.int64,
    "attempt": np.int64,
    "process_group": object,
    "operation": object,
    "sequence": np.int64,
    "arrival": np.int64,
    "finish": np.int64,
    "bytes": np.int64,
    "every": np.int64,
}
"""Columns of the tables; times are Unix microseconds."""


def rows_of(columns: Columns, which: Any) -> Columns:
    return {name: values[which] for name, values in columns.items()}


def rank_files(spans: Columns, leads: Columns, arrivals: Columns) -> list[RankFile]:
    """A file for each rank that has spans; all rows are of one attempt, and there in any order."""
    spans = _sorted(spans, "start")
    leads, arrivals = _sorted(leads, "start"), _sorted(arrivals, "arrival")
    files = []
    for rank in np.unique(spans["rank"]).tolist():
        mine = [_of_rank(table, rank) for table in (spans, leads, arrivals)]
        files.append(_file(rank, *mine))
    return files


def _sorted(rows: Columns, moment: str) -> Columns:
    """By rank and time."""
    return rows_of(rows, np.lexsort((rows[moment], rows["rank"])))


def _of_rank(rows: Columns, rank: int) -> Columns:
    low, high = np.searchsorted(rows["rank"], [rank, rank + 1])
    return rows_of(rows, slice(low, high))


def _file(rank: int, spans: Columns, leads: Columns, arrivals: Columns) -> RankFile:
    _, once = np.unique(spans["start"], return_index=True)  # sealed meanwhile, one is there twice
    spans = rows_of(spans, once)
    names: dict[str, int] = {}
    on_host = [*zip(map(str, spans["phase"]), map(str, spans["place"]), strict=True)]
    places = dict(on_host)
    on_device = [(name, places.get(name, "")) for name in map(str, leads["phase"])]
    pieces = fill_holes(_pieces(spans, on_host, names))
    attempt = int(spans["attempt"][0])
    return RankFile(
        path="",
        start=_start(rank, attempt, str(spans["node"][0]), int(pieces.start[0])),
        steps=_steps(spans),
        pieces=pieces,
        leads=_pieces(leads, on_device, names),
        names=tuple(names),
        arrivals=_arrivals(arrivals),
        events=(),
        beats=(),
        memory={},
        parameters=None,
        config={},
        dtype="",
        dropped=0,
        errors={},
        ended=None,
        last=int(pieces.end[-1]),
        left_out=(),
    )


def _start(rank: int, attempt: int, node: str, at: int) -> RankStart:
    return RankStart(
        rank=rank,
        world=0,
        attempt=attempt,
        host=node,
        device="",
        gpu="",
        gpu_uuid="",
        framework={},
        versions={},
        epoch=at,
        began=0,
    )


def _pieces(rows: Columns, words: list[tuple[str, str]], names: dict[str, int]) -> Pieces:
    """Spans or leads; phases that the user named are added to `names`."""
    known = kinds_by_words()
    by_name = {name: kind for (name, _), kind in known.items() if name != "gap"}
    kinds = {}
    for name, place in dict.fromkeys(words):
        kind = known.get((name, place), None if place else by_name.get(name))
        kinds[name, place] = (
            named_kind(names.setdefault(name, len(names))) if kind is None else kind
        )
    start = rows["start"].astype(np.int64)
    return Pieces(
        start=start,
        end=start + _micros(rows["seconds"]),
        kind=np.array([kinds[each] for each in words], np.int64),
    )


def _micros(seconds: NDArray[Any]) -> NDArray[np.int64]:
    return np.round(seconds * 1e6).astype(np.int64)


def _steps(spans: Columns) -> StepRows:
    """Steps from their spans, which fill them."""
    number, first = np.unique(spans["step"], return_index=True)
    order = np.argsort(first)
    number, first = number[order], first[order]
    ends = spans["start"] + _micros(spans["seconds"])
    unknown = np.full(len(number), UNKNOWN, np.int64)
    return StepRows(
        number=number,
        own=unknown,
        begin=spans["start"][first],
        end=np.maximum.reduceat(ends, first),
        tokens=unknown,
        samples=unknown,
        profiled=np.zeros(len(number), bool),
        loss=np.full(len(number), np.nan),
        collections=np.zeros(len(number), np.int64),
        collecting=np.zeros(len(number), np.int64),
    )


def _arrivals(rows: Columns) -> Arrivals:
    words = [*zip(map(str, rows["process_group"]), map(str, rows["operation"]), strict=True)]
    groups = {key: place for place, key in enumerate(dict.fromkeys(words))}
    group = np.array([groups[key] for key in words], np.int64)
    key = np.stack([group, rows["sequence"], rows["arrival"]])
    _, once = np.unique(key, axis=1, return_index=True)
    once.sort()
    rows = rows_of(rows, once)
    return Arrivals(
        group=group[once],
        sequence=rows["sequence"],
        at=rows["arrival"],
        end=rows["finish"],
        bytes=rows["bytes"],
        every=rows["every"],
        groups=tuple(groups),
        members={},
        timed=bool(len(once)) and bool((rows["finish"] != UNKNOWN).all()),
    )
