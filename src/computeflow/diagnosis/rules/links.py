"""Rules on communication: exposed communication and slow links."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from computeflow.diagnosis.robust import median_and_spread
from computeflow.diagnosis.rule import NO_DEVICE, Draft, Missing, Outcome, report, seconds_evidence
from computeflow.diagnosis.rules.ranks import FAR
from computeflow.diagnosis.rules.ranks_together import missing_ranks
from computeflow.diagnosis.trace_case import PRACTICAL, TraceCase
from computeflow.ledger import Remedy
from computeflow.telemetry.traces.rank_measurements import RankMeasurement

SLOWER = 1.3
"""A link is slow from this multiple of the usual transfer time of similar groups."""
_MAX_TRANSFERS = 200
"""Transfers of one message in one group: enough for a median, and memory stays bounded."""
_MIN_SECONDS = 50e-6
"""Shorter transfers are latency."""
_MIN_GROUPS = 3
"""Fewest groups that send the same messages: with two, nothing shows which is the slow one."""


def exposed_comm(case: TraceCase) -> Outcome:
    """Communication far beyond what the predictor leaves exposed for the same layout."""
    if not any(len(rank.collectives.start) for rank in case.ranks):
        return []
    if (missing := missing_ranks(case, "straggler")) is not None:
        return missing
    if case.replay is None or not case.on_device:
        return Missing(case.why_not) if case.why_not else NO_DEVICE
    measured, least = case.ledger.booked("comm"), 2 * PRACTICAL * case.ledger.gpu_seconds
    if measured < least:
        return []
    predicted = case.replay.predict()
    scale = case.steps * len(case.ranks) / predicted.ledger.gpus
    expected = predicted.ledger.booked("comm") * scale
    gain = measured - expected
    if measured < 2 * expected or gain < least:
        return []
    return report(
        "communication is not hidden behind the backward pass",
        [(_largest(case), gain)],
        [seconds_evidence("exposed communication", case.where("account comm"), measured, expected)],
        Remedy(
            change="overlap communication: smaller buckets, prefetch of the next shard, another stream",
            gain_gpu_seconds=gain,
            gain_low=0.5 * gain,
            gain_high=gain,
        ),
    )


def _largest(case: TraceCase) -> str:
    """The account that most of the communication is booked under."""
    booked = case.ledger.accounts
    return max(booked, key=lambda name: booked[name] if name.startswith("comm") else -1.0)


@dataclass(frozen=True, slots=True)
class _Transfers:
    group: str
    account: str
    size: int
    elements: int
    seconds: float
    """Median of the shortest duration over ranks: the last rank to arrive does not wait."""
    count: int


def slow_link(case: TraceCase) -> Outcome:
    """Groups slower than similar ones: same size, same messages."""
    table = _transfers(case.ranks) if len(case.ranks) > 1 else []
    if not table:
        return Missing("traces of several process groups whose collectives record message sizes")
    cohorts: dict[tuple[str, int, int], list[_Transfers]] = {}
    for row in table:
        cohorts.setdefault((row.account, row.size, row.elements), []).append(row)
    return [
        draft
        for rows in cohorts.values()
        for row, usual in _slower(rows)
        for draft in _slow_link(case, row, usual)
    ]


def _slower(rows: Sequence[_Transfers]) -> Iterator[tuple[_Transfers, float]]:
    """Groups far slower than similar ones, with the usual seconds."""
    if len(rows) < _MIN_GROUPS:
        return
    usual, spread = median_and_spread([row.seconds for row in rows])
    for row in rows:
        if row.seconds > SLOWER * usual and row.seconds - usual > FAR * spread:
            yield row, usual


def _slow_link(case: TraceCase, row: _Transfers, usual: float) -> list[Draft]:
    lost = (row.seconds - usual) * row.count * row.size
    if lost < PRACTICAL * case.ledger.gpu_seconds:
        return []
    return report(
        f"transfers of {row.group[:60]} take {row.seconds / usual:.1f} times as long as its peers'",
        [(row.account, lost)],
        [
            seconds_evidence(
                f"a transfer of {row.elements:,} elements", row.group[:80], row.seconds, usual
            )
        ],
        Remedy(
            change="test the links of these ranks' nodes: cables, NICs, switch ports",
            command="computeflow probe",
            gain_gpu_seconds=lost,
            gain_low=0.0,
            gain_high=lost,
        ),
    )


def _transfers(ranks: Sequence[RankMeasurement]) -> list[_Transfers]:
    lengths: dict[tuple[str, int, int], list[float]] = {}
    facts: dict[str, tuple[str, int]] = {}
    counts: dict[tuple[str, int], int] = {}
    for rank in ranks:
        collectives = rank.collectives
        counted: dict[tuple[str, int], int] = {}
        for row in np.flatnonzero(collectives.elements > 0):
            group, elements = rank.groups[collectives.group[row]], int(collectives.elements[row])
            number = counted.get((group, elements), 0)
            counted[group, elements] = number + 1
            if number >= _MAX_TRANSFERS:
                continue
            seconds = float(collectives.end[row] - collectives.start[row]) / 1e9
            lengths.setdefault((group, elements, number), []).append(seconds)
            account = rank.account_names[collectives.account[row]]
            facts[group] = (account, rank.group_sizes[collectives.group[row]])
        counts |= {key: max(n, counts.get(key, 0)) for key, n in counted.items()}
    shortest: dict[tuple[str, int], list[float]] = {}
    for (group, elements, _), values in lengths.items():
        if len(values) < facts[group][1]:
            continue  # a rank that is not traced may be the late one
        shortest.setdefault((group, elements), []).append(min(values))
    return [
        _Transfers(
            group, *facts[group], elements, statistics.median(values), counts[group, elements]
        )
        for (group, elements), values in shortest.items()
        if statistics.median(values) >= _MIN_SECONDS
    ]
