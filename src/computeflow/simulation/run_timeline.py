"""One replica in full: what the job did when, for a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from computeflow.simulation.draws import CHUNK
from computeflow.simulation.engine import LaneStretch, play
from computeflow.simulation.run_inputs import RunInputs
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
class RunTimeline:
    replica: int
    percentile: int
    """Percentile among all replicas, by their time or by the work they did."""
    stretches: tuple[Stretch, ...]
    progress: tuple[tuple[float, float], ...]
    """Seconds, and seconds of work kept by then; it falls where work is lost."""


def timelines(
    run: RunInputs, *, replicas: int, seed: int, percentiles: Sequence[int] = (10, 50, 90)
) -> list[RunTimeline]:
    """Timelines of the replicas at these percentiles, with the random numbers of `simulate`."""
    (books,) = play_many([run], replicas=replicas, seed=seed)
    slowest_last = books.seconds - books.accounts["useful"]
    order = np.argsort(slowest_last, kind="stable")
    watched = cache(lambda replica: _watched(run, replica, replicas, seed))
    shown = []
    for percentile in percentiles:
        replica = int(order[min(int(percentile / 100 * replicas), replicas - 1)])
        stretches, progress = watched(replica)
        shown.append(
            RunTimeline(
                replica=replica, percentile=percentile, stretches=stretches, progress=progress
            )
        )
    return shown


def _watched(
    run: RunInputs, replica: int, replicas: int, seed: int
) -> tuple[tuple[Stretch, ...], tuple[tuple[float, float], ...]]:
    chunk, lane = divmod(replica, CHUNK)
    count = min(CHUNK, replicas - chunk * CHUNK)
    _, seen = play((run,), count, seed, chunk, watch=lane)
    stretches = [stretch for watched in seen for stretch in _stretches(watched)]
    progress = [(0.0, 0.0)]
    for watched in seen:
        begin = min(max(watched.start, watched.up), watched.end)
        progress += [(begin, watched.before), (watched.end, watched.position)]
    return tuple(_joined(stretches)), tuple(progress)


def _stretches(watched: LaneStretch) -> list[Stretch]:
    down = min(watched.up, watched.end)
    seen = max(watched.start, watched.corrupt)
    known = max(seen, watched.noticed)
    bounds = [
        ("lost", watched.start, min(watched.corrupt, down)),
        (_PARTS[watched.first_part], seen, min(watched.noticed, down)),
        ("idle", known, min(watched.ready, down)),
        (_PARTS[watched.last_part], max(known, watched.ready), down),
        ("run", max(watched.start, watched.up), watched.end),
    ]
    return [Stretch(account=name, start=a, end=b) for name, a, b in bounds if b > a]


def _joined(stretches: list[Stretch]) -> list[Stretch]:
    joined: list[Stretch] = []
    for stretch in stretches:
        if (
            joined
            and joined[-1].account == stretch.account
            and joined[-1].end >= stretch.start - 1e-6
        ):
            joined[-1] = Stretch(account=stretch.account, start=joined[-1].start, end=stretch.end)
        else:
            joined.append(stretch)
    return joined
