"""One step of a run in a collector's store along time: `sealed_spans`, `make_spans`.

Sealed ones are in Parquet, the last minutes in the journal; a step that is in both counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from computeflow.errors import InputError
from computeflow.files.parquet import parquet_engine
from computeflow.telemetry.run_folders.phases import account_of
from computeflow.web.step_spans import RankSpans, StepSpans, make_span

Columns = dict[str, Any]
SPAN_COLUMNS = ("rank", "node", "attempt", "phase", "place", "start", "seconds")
_MAX_SPANS = 200_000
_NO_PHASE = ("gap", "gc", "profiler", "user")


def sealed_spans(run: str, step: int, files: Sequence[str]) -> Columns:
    columns = ", ".join(SPAN_COLUMNS).replace("start", "epoch_us(start) AS start")
    return _read(
        f"SELECT {columns} FROM read_parquet(?) WHERE run = ? AND step = ? LIMIT {_MAX_SPANS}",
        [*files],
        [run, step],
    )


def make_spans(parts: Sequence[Columns], step: int, most: int) -> StepSpans | None:
    """One step along time, in the last attempt that has it."""
    found = _joined(parts, SPAN_COLUMNS)
    if not len(found["rank"]):
        return None
    attempt = int(found["attempt"].max())
    kept = np.flatnonzero(found["attempt"] == attempt)
    order = kept[np.lexsort((found["start"][kept], found["rank"][kept]))]
    columns = {name: values[order] for name, values in found.items()}
    columns["start"] = columns["start"] / 1e6
    began = float(columns["start"].min())
    ranks, first = np.unique(columns["rank"], return_index=True)
    lines = [
        _rank_spans(columns, slice(low, high), began)
        for low, high in pairwise([*first.tolist(), len(order)])
    ]
    longest = sorted(lines, key=lambda line: -line.seconds)[:most]
    return StepSpans(
        step=step,
        attempt=attempt,
        began=began,
        seconds=float((columns["start"] + columns["seconds"]).max()) - began,
        ranks=tuple(sorted(longest, key=lambda line: line.rank)),
        ranks_total=len(ranks),
    )


def _rank_spans(columns: Columns, rows: slice, began: float) -> RankSpans:
    starts, lengths = columns["start"][rows] - began, columns["seconds"][rows]
    words = zip(columns["phase"][rows], columns["place"][rows], strict=True)
    pieces = {
        (float(start), str(name)): make_span(
            str(name), _account(str(name)), float(start), float(seconds), str(place)
        )
        for (name, place), start, seconds in zip(words, starts, lengths, strict=True)
    }
    return RankSpans(
        rank=int(columns["rank"][rows][0]),
        node=str(columns["node"][rows][0]),
        start_seconds=float(starts.min()),
        seconds=float((starts + lengths).max() - starts.min()),
        spans=tuple(pieces.values()),
    )


def _account(phase: str) -> str:
    return "host" if phase in _NO_PHASE else account_of(phase)


def _joined(parts: Sequence[Columns], names: Sequence[str]) -> Columns:
    if not parts:
        return {name: np.zeros(0) for name in names}
    return {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in names}


def _read(query: str, files: list[str], values: list[Any]) -> Columns:
    with parquet_engine("reading steps") as (engine, engine_error):
        try:
            found: Columns = engine.execute(query, [files, *values]).fetchnumpy()
        except engine_error as error:
            raise InputError(f"steps of this run: {error}") from None
    return found
