"""`find_stuck`: whether the last attempt lives and does no steps, and which ranks are missing.

Collectives tell who is missing: ranks whose last sequence number of a group is behind that of others,
or that came to another operation under the same number. One that is behind because it waits in another
group is not to blame, the rank that it waits for is; where ranks wait for each other in a circle, those
that the most ranks wait for.

A rank in a pause that is known by its heart beats (a save, an evaluation, a profiler window) is at
work: it is stuck when that lasts far longer than it did before in this run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from computeflow.telemetry.run_folders.arrivals import Arrivals
from computeflow.telemetry.run_folders.attempt_time import AttemptTime, RankTime
from computeflow.telemetry.run_folders.phases import (
    PARTS,
    is_user_phase,
    part_of_letter,
)
from computeflow.telemetry.run_folders.run_facts import StuckRun

_TIMES = 10.0
"""Times the median step without one from which on a run is stuck."""
_WAIT_SECONDS = 5.0
"""The least where ranks wait in a collective that others never came to."""
_QUIET_SECONDS = 10.0
"""The least where nobody is known to wait."""
_LONGEST = 2.0
"""Times the longest step so far, where nobody is known to wait: compiling again takes as long as the
first time."""
_PAUSE_TIMES, _PAUSE_SECONDS = 5.0, 60.0
"""Times the longest pause of its kind so far, and seconds, that another may take."""
_UNKNOWN_PAUSE_SECONDS = 600.0
"""What a pause may take of which the run had none before."""
_PAUSES = "cvk"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocked:
    """Indexes of ranks that wait in collectives, and of those that they wait for."""

    missing: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()
    since: int | None = None
    """When the first of them began to wait."""
    operations: dict[int, str]


def find_stuck(attempts: Sequence[AttemptTime], usual_seconds: float | None) -> StuckRun | None:
    attempt = attempts[-1]
    alive = [rank for rank in attempt.ranks if rank.file.ended is None and rank.file.beats]
    if not alive or usual_seconds is None:
        return None
    now = max(rank.file.beats[-1].at for rank in alive)
    quiet = (now - max(rank.last for rank in attempt.ranks)) / 1e6
    if quiet < max(_WAIT_SECONDS, _TIMES * usual_seconds):
        return None
    blocked = _blocked(attempt)
    wait = None if blocked.since is None else (now - blocked.since) / 1e6
    missing = _not_paused(attempts, [attempt.ranks[i] for i in sorted(blocked.missing)])
    if blocked.missing and not missing:
        return None
    if wait is None:
        least = max(_QUIET_SECONDS, _LONGEST * _longest_step(attempts))
        if quiet < least or len(_not_paused(attempts, alive)) < len(alive):
            return None
    elif wait < max(_WAIT_SECONDS, _TIMES * usual_seconds):
        return None
    ranks = attempt.ranks
    return StuckRun(
        seconds=quiet,
        usual_seconds=usual_seconds,
        step=max(int(rank.steps.number.max(initial=0)) for rank in ranks),
        missing=tuple(sorted(rank.rank for rank in missing)),
        waiting=tuple(sorted(ranks[i].rank for i in blocked.waiting)),
        inside={
            rank.rank: part_of_letter(rank.file.beats[-1].inside) or "no known phase"
            for rank in alive
        },
        inside_seconds={rank.rank: _inside_seconds(rank) for rank in alive},
        wait_seconds=wait,
        operations={ranks[i].rank: name for i, name in sorted(blocked.operations.items())},
    )


def _inside_seconds(rank: RankTime) -> float:
    beat = rank.file.beats[-1]
    return max(beat.at - beat.since, 0) / 1e6


def _longest_step(attempts: Sequence[AttemptTime]) -> float:
    lengths = [
        int((rank.steps.end - rank.steps.begin).max(initial=0))
        for attempt in attempts
        for rank in attempt.ranks
    ]
    return max(lengths, default=0) / 1e6


def _not_paused(attempts: Sequence[AttemptTime], ranks: Sequence[RankTime]) -> list[RankTime]:
    """The ranks without those that are in a pause which may last that long."""
    allowed: dict[str, float] = {}
    kept = []
    for rank in ranks:
        letter = rank.file.beats[-1].inside if rank.file.beats else ""
        if letter not in allowed:
            allowed[letter] = _may_pause(attempts, letter)
        if not allowed[letter] or _inside_seconds(rank) > allowed[letter]:
            kept.append(rank)
    return kept


def _may_pause(attempts: Sequence[AttemptTime], letter: str) -> float:
    """Seconds that a phase may last; 0 for one that is no pause."""
    ranks = [rank for attempt in attempts for rank in attempt.ranks]
    if letter == "u":
        return _PAUSE_TIMES * max((_longest_user_phase(rank) for rank in ranks), default=0.0)
    if not letter or letter not in _PAUSES:
        return 0.0
    place = PARTS.index(part_of_letter(letter))
    longest = max(float(rank.parts[:, place].max(initial=0.0)) for rank in ranks) / 1e6
    return max(_PAUSE_TIMES * longest, _PAUSE_SECONDS) if longest else _UNKNOWN_PAUSE_SECONDS


def _longest_user_phase(rank: RankTime) -> float:
    pieces = rank.file.pieces
    rows = is_user_phase(pieces.kind)
    return int((pieces.end - pieces.start)[rows].max(initial=0)) / 1e6


def _blocked(attempt: AttemptTime) -> _Blocked:
    behind: dict[str, set[int]] = {}
    ahead: dict[str, set[int]] = {}
    for name, sequence in attempt.waits.last_sequence.items():
        furthest = max(sequence)
        late = {i for i, last in enumerate(sequence) if 0 <= last < furthest}
        if late:
            behind[name] = late
            ahead[name] = {i for i, last in enumerate(sequence) if last == furthest}
    if not behind:
        return _disagreeing(attempt)
    missing = {
        i
        for late in behind.values()
        for i in late
        if i not in ahead.get(_last_group(attempt.ranks[i].file.arrivals), ())
    }
    if not missing:  # they wait for each other
        most = max(len(some) for some in ahead.values())
        missing = {i for name in behind if len(ahead[name]) == most for i in behind[name]}
    groups = [name for name, late in behind.items() if late & missing]
    waiting = {i for name in groups for i in ahead[name]} - missing
    since = [_arrived(attempt.ranks[i].file.arrivals, name) for name in groups for i in ahead[name]]
    return _Blocked(
        missing=frozenset(missing),
        waiting=frozenset(waiting),
        since=min(since, default=None),
        operations={},
    )


def _last_group(arrivals: Arrivals) -> str:
    return arrivals.groups[int(arrivals.group[-1])][0] if len(arrivals) else ""


def _rows(arrivals: Arrivals, name: str) -> np.ndarray:
    places = [place for place, key in enumerate(arrivals.groups) if key[0] == name]
    return np.flatnonzero(np.isin(arrivals.group, places))


def _arrived(arrivals: Arrivals, name: str) -> int:
    """When a rank came to its last collective of a group."""
    rows = _rows(arrivals, name)
    return int(arrivals.at[rows[np.argmax(arrivals.sequence[rows])]])


def _disagreeing(attempt: AttemptTime) -> _Blocked:
    """Ranks that came to another operation than most others did under the last number of a group."""
    for name, sequence in attempt.waits.last_sequence.items():
        members = [i for i, last in enumerate(sequence) if last >= 0]
        last = {i: _last_operation(attempt.ranks[i].file.arrivals, name) for i in members}
        count = Counter(last.values())
        if len(count) < 2:
            continue
        (usual, most), *others = count.most_common()
        tied = any(number == most for _, number in others)
        missing = {i for i in members if last[i] != usual} if not tied else set()
        arrivals = [_arrived(attempt.ranks[i].file.arrivals, name) for i in members]
        return _Blocked(
            missing=frozenset(missing),
            waiting=frozenset(set(members) - missing),
            since=max(arrivals),
            operations=last,
        )
    return _Blocked(operations={})


def _last_operation(arrivals: Arrivals, name: str) -> str:
    rows = _rows(arrivals, name)
    return arrivals.groups[int(arrivals.group[rows[np.argmax(arrivals.sequence[rows])]])][1]
