"""Dumps by the run that they belong to: `sort_by_run`.

One folder may hold what several runs left: another attempt under another name, ranks of a larger job
that ran before, a rank's file that the last run never wrote anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from computeflow.telemetry.flight_recorder.dump import Dump

_TIMEOUT = 1800.0
"""Seconds after which torch ends a job of which a rank is missing, where a dump does not say: gloo's
default (`default_pg_timeout` in torch/distributed/constants.py). Ranks of a run are not farther apart.
"""
Run = dict[int, Dump]


def sort_by_run(dumps: Sequence[Dump]) -> tuple[list[Run], list[Dump]]:
    """Runs, each by rank, in order of time; and older dumps of a rank in the same run."""
    runs: list[Run] = []
    older: list[Dump] = []
    for batch in _batches(dumps):
        fresh: list[Run] = []
        for dump in batch:
            older += _add({dump.rank: dump}, fresh, _is_of)
        for run in fresh:
            older += _add(run, runs, _are_one)
    runs = [{number: run[number] for number in sorted(run)} for run in runs]
    return sorted(runs, key=lambda run: _span(run.values())[0]), older


def _add(run: Run, runs: list[Run], belongs: Callable[[Run, Run], bool]) -> list[Dump]:
    """Add dumps to the run that they belong to, or as a new one; returns those that are replaced."""
    same = next((known for known in reversed(runs) if belongs(known, run)), None)
    if same is None:
        runs.append(dict(run))
        return []
    older = []
    for rank, dump in run.items():
        known = same.get(rank, dump)
        first, last = sorted((known, dump), key=lambda one: one.last_event or 0.0)
        same[rank] = last
        older += [first] if known is not dump else []
    return older


def _batches(dumps: Sequence[Dump]) -> list[list[Dump]]:
    """Dumps of a folder whose names differ by numbers alone, the rank's among them."""
    batches: dict[tuple[Path, str], list[Dump]] = {}
    for dump in dumps:
        path = Path(dump.path)
        name = re.sub(rf"(?<!\d){dump.rank}(?=\D*$)", "#", path.name)
        batches.setdefault((path.parent, name), []).append(dump)
    return list(batches.values())


def _is_of(run: Run, other: Run) -> bool:
    """Whether dumps of one batch are of one run: the same world, and no rank of another process."""
    worlds = _listed(run.values()), _listed(other.values())
    apart = all(_same_process(run[rank], other[rank]) for rank in run.keys() & other.keys())
    return apart and _same_world(*worlds) and _meet(run.values(), other.values())


def _are_one(run: Run, other: Run) -> bool:
    """Whether two batches are of one run: nodes that write folders or names of their own."""
    folders = ({Path(dump.path).parent for dump in one.values()} for one in (run, other))
    listed = _listed(run.values()) and _listed(other.values())
    return bool(listed or set.intersection(*folders)) and _is_of(run, other)


def _same_process(one: Dump, other: Dump) -> bool:
    """Whether a process wrote both: it began once."""
    return one.first_event is not None and one.first_event == other.first_event


def world_of(dumps: Iterable[Dump]) -> set[int]:
    """Ranks that dump or are listed in a group of those who do."""
    ranks: set[int] = set()
    for dump in dumps:
        ranks |= {dump.rank, *(rank for group in dump.groups for rank in group.ranks)}
    return ranks


def _listed(dumps: Iterable[Dump]) -> set[int]:
    return {rank for dump in dumps for group in dump.groups for rank in group.ranks}


def _same_world(one: set[int], other: set[int]) -> bool:
    return one == other or not one or not other


def _meet(some: Iterable[Dump], others: Iterable[Dump]) -> bool:
    """Whether their times overlap, or are no farther apart than a timeout."""
    dumps = [*some, *others]
    timeout = max((dump.timeout for dump in dumps if dump.timeout), default=_TIMEOUT)
    spans = sorted((_span(some), _span(others)))
    return spans[1][0] - spans[0][1] <= timeout


def _span(dumps: Iterable[Dump]) -> tuple[float, float]:
    """First and last event of dumps; without any, they may be of any time."""
    starts = [d.first_event for d in dumps if d.first_event is not None]
    ends = [d.last_event for d in dumps if d.last_event is not None]
    return min(starts, default=float("-inf")), max(ends, default=float("inf"))
