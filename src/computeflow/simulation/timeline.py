"""One replica in full: what the job did when, for a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from computeflow.simulation.draws import CHUNK
from computeflow.simulation.engine import Watched, play
from computeflow.simulation.run import Run
from computeflow.simulation.simulate import play_many
from computeflow.simulation.state import CHECKPOINT, RESTART, STARTUP

_PARTS = {RESTART: "restart", CHECKPOINT: "checkpoint", STARTUP: "startup"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Seconds in a row with one account; `run` is steps and saves, of which some may be lost later."""

    account: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    replica: int
    percentile: int
    """Of all replicas, by the time they took or the work they did."""
    stretches: tuple[Stretch, ...]
    progress: tuple[tuple[float, float], ...]
    """Seconds, and seconds of work that stood then; it falls where work is lost."""


def timelines(
    run: Run, *, replicas: int, seed: int, percentiles: Sequence[int] = (10, 50, 90)
) -> list[Timeline]:
    """Of the replicas at these percentiles, with the random numbers of `simulate`."""
    (books,) = play_many([run], replicas=replicas, seed=seed)
    slowest_last = books.seconds - books.accounts["useful"]
    order = np.argsort(slowest_last, kind="stable")
    watched = cache(lambda replica: _watched(run, replica, replicas, seed))
    found = []
    for percentile in percentiles:
        replica = int(order[min(int(percentile / 100 * replicas), replicas - 1)])
        stretches, progress = watched(replica)
        found.append(
            Timeline(replica=replica, percentile=percentile, stretches=stretches, progress=progress)
        )
    return found


def _watched(
    run: Run, replica: int, replicas: int, seed: int
) -> tuple[tuple[Stretch, ...], tuple[tuple[float, float], ...]]:
    chunk, lane = divmod(replica, CHUNK)
    count = min(CHUNK, replicas - chunk * CHUNK)
    _, seen = play((run,), count, seed, chunk, watch=lane)
    stretches = [stretch for one in seen for stretch in _stretches(one)]
    progress = [(0.0, 0.0)]
    for one in seen:
        begin = min(max(one.start, one.up), one.end)
        progress += [(begin, one.before), (one.end, one.position)]
    return tuple(_joined(stretches)), tuple(progress)


def _stretches(one: Watched) -> list[Stretch]:
    down = min(one.up, one.end)
    seen = max(one.start, one.corrupt)
    known = max(seen, one.noticed)
    bounds = [
        ("lost", one.start, min(one.corrupt, down)),
        (_PARTS[one.first_part], seen, min(one.noticed, down)),
        ("idle", known, min(one.ready, down)),
        (_PARTS[one.last_part], max(known, one.ready), down),
        ("run", max(one.start, one.up), one.end),
    ]
    return [Stretch(account=name, start=a, end=b) for name, a, b in bounds if b > a]


def _joined(stretches: list[Stretch]) -> list[Stretch]:
    found: list[Stretch] = []
    for one in stretches:
        if found and found[-1].account == one.account and found[-1].end >= one.start - 1e-6:
            found[-1] = Stretch(account=one.account, start=found[-1].start, end=one.end)
        else:
            found.append(one)
    return found
