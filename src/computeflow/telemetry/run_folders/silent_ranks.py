"""`find_silent`: ranks that were killed, or lost with their node, while others of their attempt lived.

A process that lives writes a record at each step and a heart beat in each second without one, and a
last record when it ends by itself. A rank without that last record is silent if others wrote on for
longer than 5 s. Where a connection breaks at once the others end by an exception within that time: then
the collectives tell, in which a rank that was killed stays behind those that failed.

A run that was cut off altogether has no such rank: all files end together. When others give up after a
while and end without a last record, too, the ranks that fell silent first are the cause.
"""

from __future__ import annotations

from collections.abc import Sequence

from computeflow.telemetry.run_folders.attempt_time import AttemptTime, RankTime
from computeflow.telemetry.run_folders.run_facts import SilentRank

_SILENT_MICROS = 5_000_000
"""Five heart beats; files of several nodes may be read some seconds apart while they grow."""
_TOGETHER_MICROS = 2_500_000
"""Within which ranks fell silent by one cause: a heart beat and a flush, twice."""


def find_silent(attempts: Sequence[AttemptTime]) -> tuple[SilentRank, ...]:
    found: list[SilentRank] = []
    for place, attempt in enumerate(attempts):
        following = attempts[place + 1] if place + 1 < len(attempts) else None
        silent = _outlived(attempt) or _left_behind(attempt)
        found += [_described(rank, silent, attempt, following) for rank in silent]
    return tuple(found)


def _outlived(attempt: AttemptTime) -> list[RankTime]:
    """Ranks without an end that others wrote on after, by more than a few heart beats."""
    found: list[RankTime] = []
    for ranks in _on_one_clock(attempt):
        quiet = [rank for rank in ranks if rank.file.ended is None]
        if not quiet:
            continue
        first = min(rank.file.last for rank in quiet)
        latest = max(max(rank.last, rank.file.last) for rank in ranks)
        if latest - first > _SILENT_MICROS and not _failed_first(attempt, first):
            found += [
                rank
                for rank in quiet
                if rank.file.last <= first + _TOGETHER_MICROS
                and latest - rank.file.last > _SILENT_MICROS
            ]
    return found


def _failed_first(attempt: AttemptTime, moment: int) -> bool:
    """Whether a rank had failed by an exception of its own by then: its launcher stops its neighbours.

    One that failed because a neighbour was gone had come to the collective that the others are in.
    """
    early = [
        i
        for i, rank in enumerate(attempt.ranks)
        if rank.file.ended == "exception" and rank.file.last <= moment + _TOGETHER_MICROS
    ]
    if not early or not attempt.waits.matched:
        return bool(early)
    sequences = attempt.waits.last_sequence.values()
    return any(0 <= sequence[i] < max(sequence) for i in early for sequence in sequences)


def _on_one_clock(attempt: AttemptTime) -> list[list[RankTime]]:
    """Ranks whose times can be compared: all, or those of a host where clocks are not aligned."""
    if attempt.waits.matched:
        return [list(attempt.ranks)]
    hosts: dict[str, list[RankTime]] = {}
    for rank in attempt.ranks:
        hosts.setdefault(rank.file.start.host, []).append(rank)
    return list(hosts.values())


def _left_behind(attempt: AttemptTime) -> list[RankTime]:
    """Ranks without an end that stay behind in collectives, where as many others or more failed."""
    failed = {i for i, rank in enumerate(attempt.ranks) if rank.file.ended == "exception"}
    quiet = {i for i, rank in enumerate(attempt.ranks) if rank.file.ended is None}
    if not failed or not 0 < len(quiet) <= len(failed):
        return []
    behind: set[int] = set()
    for sequence in attempt.waits.last_sequence.values():
        reached = [sequence[i] for i in failed if sequence[i] >= 0]
        known = {i: sequence[i] for i in quiet if sequence[i] >= 0}
        if not reached or not known:
            continue
        if max(known.values()) > min(reached):
            return []  # a rank that failed was itself behind: it failed first
        behind |= {i for i, last in known.items() if last < min(reached)}
    return [attempt.ranks[i] for i in sorted(behind)]


def _described(
    rank: RankTime,
    silent: Sequence[RankTime],
    attempt: AttemptTime,
    following: AttemptTime | None,
) -> SilentRank:
    names = {each.rank for each in silent}
    others = [other for other in attempt.ranks if other.rank not in names]
    waits = [_waited(other, rank, following) for other in others]
    longest = max(waits, default=0.0)
    return SilentRank(
        rank=rank.rank,
        host=rank.file.start.host,
        attempt=attempt.number,
        last_attempt=following is None,
        step=int(rank.steps.number.max(initial=0)),
        last_seen=rank.file.last / 1e6,
        wait_seconds=longest,
        lost_seconds=sum(waits) / len(silent) + longest,
        others=_fate(others, following),
    )


def _waited(other: RankTime, silent: RankTime, following: AttemptTime | None) -> float:
    """Seconds from when a rank made no more steps, and the silent one fell silent, to its own end."""
    end = max(other.file.last, other.last)
    if following is not None:
        end = min(end, following.begin)
    return max(end - max(other.last, silent.file.last), 0) / 1e6


def _fate(others: Sequence[RankTime], following: AttemptTime | None) -> str:
    ended = {rank.file.ended for rank in others}
    if "exception" in ended:
        became = "failed"
    elif None in ended:
        became = "waited" if following is not None else "wait"
    else:
        became = "ended"
    return f"{became}, and the run restarted" if following is not None else became
