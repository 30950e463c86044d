"""`stored_spans`: one step of a run in a collector's store along time.

Sealed ones are in Parquet, the last minutes in the journal; a step that is in both counts once. Spans
and arrivals at collectives of all ranks are read, with some steps around, and become files of ranks as
a run folder has them: the same code draws both and finds who waited for whom. Where they are more than
can be read, the ranks in which the step takes longest are found first, and spans of those alone are
read; their waits are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.files.parquet import parquet_engine
from computeflow.telemetry.run_folders.arrivals import UNKNOWN
from computeflow.telemetry.run_folders.attempt_time import measure_attempt
from computeflow.telemetry.run_folders.rank_file import RankFile
from computeflow.web.sources.row_columns import Columns, join_columns
from computeflow.web.sources.step_spans import StepSpans, recorded_spans
from computeflow.web.sources.store.stored_ranks import ARRIVALS, LEADS, SPANS, rank_files, rows_of

MAX_SPANS = 200_000
"""Spans that are read for one drawing; of ranks that have more, fewer are drawn."""
MAX_ARRIVALS = 400_000
MAX_RANKS_READ = 1_024
"""Ranks among which it is looked who waited for whom: a second of a core."""
AROUND = 4
"""Steps before and after, which show how a group's collectives behave and how far clocks are apart."""
_SUMS = dict.fromkeys(("attempt", "rank", "start", "end", "count"), np.int64)
_BEFORE_SECONDS = 1.0
"""So long before a step, and as long again as the step, a device may have got its last work."""
_MOMENTS = {
    "start": "epoch_us(start) AS start",
    "arrival": "epoch_us(arrival) AS arrival",
    "finish": f"coalesce(epoch_us(finish), {UNKNOWN}) AS finish",
}
_TOO_MANY = "this step has more ranks, phases or collectives than are read for a drawing"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedStep:
    run: str
    step: int
    attempt: int | None
    """The last one that has the step, without it."""
    most: int
    """Ranks."""


Files = Callable[[str], Sequence[str]]
"""The sealed ones of a table."""


def stored_spans(
    asked: AskedStep, files: Files, unsealed: Mapping[str, Columns]
) -> StepSpans | None:
    """One step along time, of the ranks in which it takes longest; None where no rank has it.

    `unsealed` are `spans` of the step and of those around it, `leads` and `collectives` of about
    its time.
    """
    loose = unsealed.get("spans", {})
    mine = rows_of(loose, loose["step"] == asked.step) if loose else {}
    sums = join_columns([_sealed_sums(asked, files("spans")), _sums_of(mine)], _SUMS)
    if asked.attempt is not None:
        sums = rows_of(sums, sums["attempt"] == asked.attempt)
    if not len(sums["rank"]):
        return None
    attempt = int(sums["attempt"].max())
    sums = _by_rank(rows_of(sums, sums["attempt"] == attempt))
    rows = _StoredRows(asked, attempt, files, unsealed)
    spans = int(sums["count"].sum())
    if spans <= MAX_SPANS and len(sums["rank"]) <= MAX_RANKS_READ:
        around = AROUND if spans * (2 * AROUND + 1) <= MAX_SPANS else 0
        found, whole = rows.read(sums, around)
        return _drawn(asked, attempt, found, "" if whole else _TOO_MANY)
    shown = rows_of(sums, _longest(sums, asked.most))
    found, _ = rows.read(shown, None)
    drawn = _drawn(asked, attempt, found, _TOO_MANY)
    began, ended = int(sums["start"].min()), int(sums["end"].max())
    return drawn and replace(
        drawn, began=began / 1e6, seconds=(ended - began) / 1e6, ranks_total=len(sums["rank"])
    )


def _drawn(
    asked: AskedStep, attempt: int, files: Sequence[RankFile], missing: str
) -> StepSpans | None:
    drawn = recorded_spans([measure_attempt(attempt, files)], asked.step, asked.most)
    return replace(drawn, waits_missing=missing) if drawn and missing else drawn


@dataclass(frozen=True, slots=True)
class _StoredRows:
    """Rows of one attempt, sealed and not."""

    asked: AskedStep
    attempt: int
    files: Files
    unsealed: Mapping[str, Columns]

    def read(self, sums: Columns, around: int | None) -> tuple[list[RankFile], bool]:
        """Files of these ranks with so many steps around, and whether their arrivals are whole;
        without arrivals where `around` is None.
        """
        ranks, step = sums["rank"].tolist(), self.asked.step
        steps = [step - (around or 0), step + (around or 0)]
        spans = self._rows("spans", SPANS, ranks, "AND step BETWEEN ? AND ?", steps)
        spans = rows_of(spans, (spans["step"] >= steps[0]) & (spans["step"] <= steps[1]))
        begin, end = int(spans["start"].min()), int(sums["end"].max())
        last = max(end, int((spans["start"] + np.round(spans["seconds"] * 1e6)).max()))
        arrivals = self._arrivals(ranks, begin, last) if around is not None else None
        whole = arrivals is not None and len(arrivals["rank"]) <= MAX_ARRIVALS
        return rank_files(
            spans,
            self._leads(ranks, sums, begin, last),
            arrivals if arrivals is not None and whole else join_columns([], ARRIVALS),
        ), whole

    def _arrivals(self, ranks: list[int], begin: int, end: int) -> Columns:
        found = self._rows(
            "collectives",
            ARRIVALS,
            ranks,
            f"AND epoch_us(arrival) BETWEEN ? AND ? LIMIT {MAX_ARRIVALS + 1}",
            [begin, end],
        )
        return rows_of(found, (found["arrival"] >= begin) & (found["arrival"] <= end))

    def _leads(self, ranks: list[int], sums: Columns, begin: int, end: int) -> Columns:
        """Where the device came to the ends of spans, while these went on and shortly before: the
        last ones of each rank, where there are more than can be read.
        """
        before = end - begin + round(_BEFORE_SECONDS * 1e6)
        each = max(MAX_SPANS // len(ranks), 2 * int(sums["count"].max()))
        return self._rows(
            "leads",
            LEADS,
            ranks,
            "AND epoch_us(start) BETWEEN ? AND ? "
            "QUALIFY row_number() OVER (PARTITION BY rank ORDER BY start DESC) <= ?",
            [begin - before, end, each],
        )

    def _rows(
        self, table: str, kinds: Mapping[str, Any], ranks: list[int], more: str, values: list[Any]
    ) -> Columns:
        of = [self.asked.run, self.attempt, ranks, *values]
        sealed = _read_ranks(kinds, self.files(table), more, of)
        found = join_columns([sealed, self.unsealed.get(table, {})], kinds)
        mine = (found["attempt"] == self.attempt) & np.isin(found["rank"], ranks)
        return rows_of(found, mine)


def _sealed_sums(asked: AskedStep, files: Sequence[str]) -> Columns:
    """When each rank began and ended the step, and how many spans it has of it."""
    return _query(
        "SELECT attempt, rank, min(epoch_us(start)) AS start, count(*) AS count, "
        'max(epoch_us(start) + round(seconds * 1e6)::BIGINT) AS "end" FROM read_parquet(?) '
        "WHERE run = ? AND step = ? GROUP BY attempt, rank",
        files,
        [asked.run, asked.step],
    )


def _sums_of(spans: Columns) -> Columns:
    """The same of spans that are not sealed; each is a sum of one."""
    if not spans:
        return {}
    end = spans["start"] + np.round(spans["seconds"] * 1e6).astype(np.int64)
    kept = {name: spans[name] for name in ("attempt", "rank", "start")}
    return kept | {"end": end, "count": np.ones(len(end), np.int64)}


def _by_rank(sums: Columns) -> Columns:
    sums = rows_of(sums, np.argsort(sums["rank"], kind="stable"))
    ranks, first = np.unique(sums["rank"], return_index=True)
    return {
        "rank": ranks,
        "start": np.minimum.reduceat(sums["start"], first),
        "end": np.maximum.reduceat(sums["end"], first),
        "count": np.add.reduceat(sums["count"], first),
    }


def _longest(sums: Columns, most: int) -> NDArray[np.int64]:
    """Rows of at most so many ranks, and of so many spans; always one."""
    order = np.argsort(sums["start"] - sums["end"], kind="stable")[:most]
    fit = np.cumsum(sums["count"][order]) <= MAX_SPANS
    return order[: max(int(fit.sum()), 1)]


def _read_ranks(
    names: Mapping[str, Any], files: Sequence[str], more: str, values: list[Any]
) -> Columns:
    """Columns of a run, an attempt and some ranks."""
    columns = ", ".join(_MOMENTS.get(name, name) for name in names)
    return _query(
        f"SELECT {columns} FROM read_parquet(?) "
        f"WHERE run = ? AND attempt = ? AND rank IN (SELECT unnest(?)) {more}",
        files,
        values,
    )


def _query(query: str, files: Sequence[str], values: list[Any]) -> Columns:
    if not files:
        return {}
    with parquet_engine("reading steps") as (engine, engine_error):
        try:
            found: Columns = engine.execute(query, [[*files], *values]).fetchnumpy()
        except engine_error as error:
            raise InputError(f"steps of this run: {error}") from None
    return found
