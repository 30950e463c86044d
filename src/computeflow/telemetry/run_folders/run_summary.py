"""`summarise`: the facts of a run, from what its ranks did."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from computeflow import codec
from computeflow.errors import InputError
from computeflow.telemetry.run_folders.attempt_time import AttemptTime, RankTime
from computeflow.telemetry.run_folders.phases import (
    EDGE,
    LETTERS,
    PARTS,
    Ints,
    neighbours,
    place_of,
)
from computeflow.telemetry.run_folders.rank_file import Floats
from computeflow.telemetry.run_folders.run_facts import (
    Excess,
    HostPlace,
    Pauses,
    PlannedStep,
    RecordedAttempt,
    RecordedRank,
    RecordedRun,
)
from computeflow.telemetry.run_folders.run_ledger import RunBooks
from computeflow.telemetry.run_folders.save_times import find_saves
from computeflow.telemetry.run_folders.silent_ranks import find_silent
from computeflow.telemetry.run_folders.steady_steps import (
    CommonSteps,
    SteadyRank,
    lengths,
    median_of,
    part_medians,
    spread_of,
    steady_ranks,
)
from computeflow.telemetry.run_folders.stuck_ranks import find_stuck

LONG_MICROS = 3_000
"""Shortest piece of host time that counts as long: Python of an ordinary loop over all parameters takes
1 to 2.6 ms (diagnosis.rules.host_line)."""
_MAX_PLACES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescription:
    """What `run.json` says of the run."""

    folder: str
    name: str = ""
    command: str = ""
    more: dict[str, Any]


def summarise(
    attempts: Sequence[AttemptTime], books: RunBooks, about: RunDescription
) -> RecordedRun:
    by_attempt = [steady_ranks(attempt) for attempt in attempts]
    steady = [rank for some in by_attempt for rank in some]
    ranks = [rank.time for rank in steady]
    first = ranks[0].file
    whole = _lengths(steady)
    last = attempts[-1]
    common = CommonSteps(by_attempt[-1])
    tokens = _mean(np.concatenate([rank.tokens for rank in steady]))
    samples = _mean(np.concatenate([rank.time.steps.samples[rank.rows] for rank in steady]))
    seconds = float(np.median(whole)) if len(whole) else None
    losses = _losses(ranks)
    tried = tuple(_attempt(attempt, books) for attempt in attempts)
    world = max(max(rank.file.start.world for rank in ranks), len(books.ranks))
    return RecordedRun(
        name=about.name,
        command=about.command,
        folder=about.folder,
        start=books.begin / 1e6,
        end=books.end / 1e6,
        state="ended" if all(rank.file.ended for rank in last.ranks) else "open",
        device=first.start.device,
        gpu=first.start.gpu,
        framework=tuple(first.start.framework),
        versions=first.start.versions,
        parameters=next((r.file.parameters for r in ranks if r.file.parameters), None),
        ranks=len(books.ranks),
        world=world,
        hosts=len({rank.file.start.host for rank in ranks}),
        attempts=tried,
        steps=sum(_most(len(rank.steps) for rank in attempt.ranks) for attempt in attempts),
        redone_steps=sum(attempt.redone_steps for attempt in tried),
        profiled_steps=_most(int(rank.steps.profiled.sum()) for rank in ranks),
        profiler_seconds=max((_profiler_seconds(r, seconds) for r in ranks), default=0.0),
        steady_steps=_most(len(rank.lengths) for rank in steady),
        step_seconds=seconds,
        step_spread_seconds=spread_of(whole) if len(whole) else None,
        tokens_per_step=None if tokens is None else tokens * world,
        samples_per_step=None if samples is None else samples * world,
        tokens_per_second=_rate(tokens, seconds, world),
        samples_per_second=_rate(samples, seconds, world),
        parts=part_medians(steady),
        accounts_by_rank={book.rank: _accounts(book.booked) for book in books.ranks},
        per_rank=_per_rank(attempts, books, steady, common.excess()),
        places=_places(attempts, books),
        checkpoints=_pauses(attempts, books, "checkpoint"),
        evaluations=_pauses(attempts, books, "evaluation"),
        collections=_pauses(attempts, books, "gc"),
        growth=common.growth(),
        saves=find_saves(attempts),
        stuck=find_stuck(attempts, seconds),
        silent=find_silent(attempts),
        dropped=sum(rank.file.dropped for rank in ranks),
        waits_missing=next((each.waits_missing for each in attempts if each.waits_missing), ""),
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        planned=_planned(about.more.get("expected")),
    )


def _planned(stated: Any) -> PlannedStep | None:
    """The plan in `run.json`; None where there is none, or it makes no sense."""
    try:
        plan = codec.decode(PlannedStep, stated, "run.json")
    except InputError:
        return None
    numbers = (plan.step_seconds, plan.high_seconds, *plan.accounts.values())
    is_sane = all(math.isfinite(number) and number >= 0 for number in numbers)
    return plan if is_sane and plan.step_seconds > 0 else None


def _profiler_seconds(rank: RankTime, usual_seconds: float | None) -> float:
    """Starting, stopping and writing windows, and what their steps took beyond a usual one."""
    calls = rank.parts[:, PARTS.index("profiler")] / 1e6
    if usual_seconds is None:
        return float(calls.sum())
    profiled = rank.steps.profiled
    longer = lengths(rank, profiled) - calls[profiled] - usual_seconds
    return float(calls.sum() + np.maximum(longer, 0.0).sum())


def _most(values: Iterable[int]) -> int:
    return max(values, default=0)


def _accounts(booked: dict[Any, float]) -> dict[str, float]:
    total: dict[str, float] = {}
    for (account, _), micros in booked.items():
        total[account] = total.get(account, 0.0) + micros / 1e6
    return total


def _lengths(ranks: Sequence[SteadyRank]) -> Floats:
    return np.concatenate([rank.lengths for rank in ranks])


def _mean(values: Ints) -> float | None:
    """Mean tokens or samples of a step; None where they are not recorded."""
    known = values[values > 0]
    return float(known.mean()) if len(known) else None


def _rate(per_step: float | None, seconds: float | None, world: int) -> float | None:
    return None if per_step is None or not seconds else per_step * world / seconds


def _losses(ranks: Sequence[RankTime]) -> list[float]:
    number = min(rank.rank for rank in ranks)
    values = [rank.steps.loss for rank in ranks if rank.rank == number]
    known = np.concatenate(values) if values else np.zeros(0)
    known = known[np.isfinite(known)]
    return [float(known[0]), float(known[-1])] if len(known) else []


def _attempt(attempt: AttemptTime, books: RunBooks) -> RecordedAttempt:
    ranks = attempt.ranks
    counts = np.concatenate([rank.steps.own[rank.steps.own >= 0] for rank in ranks])
    how = dict.fromkeys(rank.file.ended for rank in ranks if rank.file.ended)
    return RecordedAttempt(
        attempt=attempt.number,
        start=attempt.begin / 1e6,
        end=max(max(rank.last, rank.file.last) for rank in ranks) / 1e6,
        ranks=len(ranks),
        steps=_most(len(rank.steps) for rank in ranks),
        first_count=int(counts.min()) if len(counts) else None,
        last_count=int(counts.max()) if len(counts) else None,
        redone_steps=_most(int(books.lost[attempt.number, rank.rank].sum()) for rank in ranks),
        ended=", ".join(how) if all(rank.file.ended for rank in ranks) else "",
    )


def _per_rank(
    attempts: Sequence[AttemptTime],
    books: RunBooks,
    steady: Sequence[SteadyRank],
    excess: dict[int, Excess],
) -> tuple[RecordedRank, ...]:
    by_rank: dict[int, list[SteadyRank]] = {}
    for rank in steady:
        by_rank.setdefault(rank.time.rank, []).append(rank)
    waited_for, came_last = _waited_for(attempts), _came_last(attempts[-1])
    booked = {book.rank: book.steps for book in books.ranks}
    return tuple(
        _rank(
            mine,
            booked_steps=booked[number],
            waited_for=waited_for.get(number, {}),
            came_last=came_last.get(number),
            excess=excess.get(number),
        )
        for number, mine in sorted(by_rank.items())
    )


def _rank(
    mine: Sequence[SteadyRank],
    *,
    booked_steps: int,
    waited_for: dict[str, float],
    came_last: float | None,
    excess: Excess | None,
) -> RecordedRank:
    """A rank in all its attempts."""
    times = [rank.time for rank in mine]
    steps = _lengths(mine)
    own = np.concatenate([rank.parts.sum(axis=1) for rank in mine]) / 1e6
    table = np.concatenate([rank.parts for rank in mine])
    file = times[-1].file
    means = table.mean(axis=0).tolist() if len(table) else [0.0] * len(PARTS)
    return RecordedRank(
        rank=file.start.rank,
        host=file.start.host,
        gpu=file.start.gpu,
        steps=sum(len(rank.steps) for rank in times),
        booked_steps=booked_steps,
        step_seconds=median_of(steps) if len(steps) else None,
        own_seconds=median_of(own) if len(own) else None,
        parts={part: value / 1e6 for part, value in zip(PARTS, means, strict=True) if value > 0},
        wait_seconds=sum(float(rank.waits.micros.sum()) for rank in times) / 1e6,
        waited_for_seconds=sum(waited_for.values()),
        waited_for=dict(sorted(waited_for.items(), key=lambda item: -item[1])),
        came_last=came_last,
        excess=excess,
        tokens=_mean(np.concatenate([rank.tokens for rank in mine])),
        collections=sum(int(rank.steps.collections.sum()) for rank in times),
        memory=file.memory,
        dropped=sum(rank.file.dropped for rank in times),
        errors=file.errors,
    )


def _waited_for(attempts: Sequence[AttemptTime]) -> dict[int, dict[str, float]]:
    """Seconds that others waited for a rank, by what it did meanwhile."""
    total: dict[int, dict[str, float]] = {}
    for attempt in attempts:
        waits = [rank.waits for rank in attempt.ranks]
        later = np.concatenate([some.step for some in waits]) > 0  # the first step is start-up
        culprit = np.concatenate([some.culprit for some in waits])[later]
        part = np.concatenate([some.part for some in waits])[later]
        micros = np.concatenate([some.micros for some in waits])[later]
        values, place = np.unique(culprit * len(PARTS) + part, return_inverse=True)
        sums = np.bincount(place, micros, len(values))
        for value, waited in zip(values.tolist(), sums.tolist(), strict=True):
            index, what = divmod(value, len(PARTS))
            parts = total.setdefault(attempt.ranks[index].rank, {})
            parts[PARTS[what]] = parts.get(PARTS[what], 0.0) + waited / 1e6
    return total


def _came_last(attempt: AttemptTime) -> dict[int, float]:
    """Share of shared collectives that each rank came last to."""
    shared = sum(attempt.waits.came_last)
    if not shared:
        return {}
    counts = zip(attempt.ranks, attempt.waits.came_last, strict=True)
    return {rank.rank: count / shared for rank, count in counts}


def _places(attempts: Sequence[AttemptTime], books: RunBooks) -> tuple[HostPlace, ...]:
    """Host time outside of known phases, the most first."""
    found: dict[tuple[str, int], list[Floats]] = {}
    for attempt in attempts:
        for rank in attempt.ranks:
            idle = rank.idle
            step = np.searchsorted(rank.steps.end, idle.start, side="right")
            again = books.lost[attempt.number, rank.rank]
            kept = (step > 0) & (step < len(rank.steps))
            kept[kept] &= ~again[step[kept]]
            for kind in np.unique(idle.kind[kept]):
                mine = kept & (idle.kind == kind)
                key = place_of(int(kind), rank.file.names), int(kind)
                found.setdefault(key, []).append((idle.end - idle.start)[mine] / 1e6)
    made = []
    for (where, kind), parts in found.items():
        seconds = np.concatenate(parts)
        long = seconds[seconds >= LONG_MICROS / 1e6]
        before, after = neighbours(kind)
        made.append(
            HostPlace(
                where=where,
                before="" if before == EDGE else LETTERS[before],
                after="" if after == EDGE else LETTERS[after],
                seconds=float(seconds.sum()),
                long_seconds=float(long.sum()),
                count=len(long),
                longest_seconds=float(seconds.max(initial=0.0)),
            )
        )
    return tuple(sorted(made, key=lambda place: -place.seconds)[:_MAX_PLACES])


def _pauses(attempts: Sequence[AttemptTime], books: RunBooks, part: str) -> Pauses:
    """Steps in which ranks paused, without the first of an attempt and those done again."""
    place, by_rank = PARTS.index(part), dict[int, float]()
    count, longest = 0, 0.0
    for attempt in attempts:
        for rank in attempt.ranks:
            micros = rank.parts[:, place].copy()
            micros[:1] = 0.0
            micros[books.lost[attempt.number, rank.rank]] = 0.0
            count += int((micros > 0).sum())
            longest = max(longest, float(micros.max(initial=0.0)) / 1e6)
            seconds = float(micros.sum()) / 1e6
            if seconds:
                by_rank[rank.rank] = by_rank.get(rank.rank, 0.0) + seconds
    return Pauses(
        count=count, seconds=sum(by_rank.values()), longest_seconds=longest, by_rank=by_rank
    )
