"""Measured files to the ranks of one job: `one_job`, and why the others are left out.

A PyTorch trace says its rank and how many there are. Files of Nsight Systems and JAX do not: there, one
folder and, where times are known, one time make a job; ranks are numbered by file names or by order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from computeflow.telemetry.traces.measured import FileMeasured, RankMeasured
from computeflow.telemetry.traces.waits import apart, ends_together, find_waits

FAR = 3_600_000_000_000
"""An hour, in nanoseconds: clocks may differ, runs last longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneJob:
    ranks: tuple[RankMeasured, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def one_job(files: Sequence[FileMeasured]) -> OneJob:
    """The largest job among them, each rank once."""
    stated = [rank for file in files for rank in file.ranks if rank.origin.kind == "kineto"]
    others = [file for file in files if file.ranks[0].origin.kind != "kineto"]
    jobs = [_stated_job(stated)] if stated else []
    jobs += [_placed_job(job) for job in _placed(others)]
    largest = max(jobs, key=lambda job: len(job.ranks))
    smaller = [job for job in jobs if job is not largest]
    left_out = [text for job in (largest, *smaller) for text in job.left_out]
    sources = dict.fromkeys(rank.source for job in smaller for rank in job.ranks)
    left_out += [f"{source}: of another job, the largest is audited" for source in sources]
    return replace(largest, left_out=tuple(left_out))


def _stated_job(ranks: Sequence[RankMeasured]) -> OneJob:
    """The ranks of most that state one size."""
    worlds: dict[int | None, int] = {}
    for rank in ranks:
        worlds[rank.world] = worlds.get(rank.world, 0) + 1
    most = max(worlds, key=lambda world: worlds[world])
    kept: dict[int, RankMeasured] = {}
    left_out = []
    for rank in sorted(ranks, key=lambda rank: (rank.rank, rank.source)):
        if rank.world != most:
            job = (
                f"a job of {rank.world} ranks" if rank.world else "a job that does not say its size"
            )
            left_out.append(
                f"{rank.source}: of {job}, the others are of {most or 'no stated size'}"
            )
        elif rank.rank in kept:
            other = kept[rank.rank]
            left_out.append(
                f"{rank.source}: rank {rank.rank} ({rank.rank_from}) again, as {other.source}"
            )
        else:
            kept[rank.rank] = rank
    together, far = _together(list(kept.values()))
    return OneJob(ranks=tuple(together), left_out=(*left_out, *far))


def _together(ranks: list[RankMeasured]) -> tuple[list[RankMeasured], list[str]]:
    """Without ranks that were recorded at another time than most."""
    middle = sorted(ranks, key=lambda rank: rank.window_start)[len(ranks) // 2]
    kept, left_out = [], []
    for rank in ranks:
        if abs(rank.window_start - middle.window_start) > FAR:
            hours = (rank.window_start - middle.window_start) / FAR
            left_out.append(f"{rank.source}: recorded {hours:+.1f} hours from {middle.source}")
        else:
            kept.append(rank)
    return kept, left_out


def _placed(files: Sequence[FileMeasured]) -> list[list[FileMeasured]]:
    """Files of one format and folder that belong to one job."""
    jobs: list[list[FileMeasured]] = []
    for file in sorted(files, key=lambda file: file.ranks[0].source):
        same = [job for job in jobs if all(_same_job(file, other) for other in job)]
        if same:
            same[0].append(file)
        else:
            jobs.append([file])
    return jobs


def _same_job(one: FileMeasured, other: FileMeasured) -> bool:
    """JAX makes a folder for every profile; exports of Nsight are of one job if their times are."""
    first, second = one.ranks[0], other.ranks[0]
    kind = first.origin.kind
    if kind != second.origin.kind or Path(first.source).parent != Path(second.source).parent:
        return False
    if kind == "xplane":
        return True
    if not (first.origin.on_clock and second.origin.on_clock):
        return False
    (start, end), (begun, ended) = _window(one), _window(other)
    return 2 * (min(end, ended) - max(start, begun)) >= min(end - start, ended - begun)


def _window(file: FileMeasured) -> tuple[int, int]:
    return min(r.window_start for r in file.ranks), max(r.window_end for r in file.ranks)


def _placed_job(files: Sequence[FileMeasured]) -> OneJob:
    ranks, notes = _numbered(files)
    if not _is_matched(ranks):
        ranks = apart(ranks)
        notes.append(
            "collectives of the same name do not end together on all devices (several process groups, "
            "which the recording does not name), or on no common clock: who waited for whom is unknown"
        )
    return OneJob(ranks=tuple(ranks), notes=tuple(notes))


def _numbered(files: Sequence[FileMeasured]) -> tuple[list[RankMeasured], list[str]]:
    """By the names of files with one device each; else in the order of files and devices."""
    ranks = [rank for file in files for rank in file.ranks]
    named = [rank.rank for rank in ranks if rank.rank_from == "file name"]
    if len(files) == len(set(named)) == len(ranks):
        return sorted(ranks, key=lambda rank: rank.rank), []
    ranks = [replace(rank, rank=n, rank_from="order") for n, rank in enumerate(ranks)]
    order = "ranks are numbered in the order of files, devices and processes: none is stated"
    return ranks, [order] if len(ranks) > 1 else []


def _is_matched(ranks: Sequence[RankMeasured]) -> bool:
    """Work of the same name need not be the same collective: that is whose ends fall together. Where
    they do not, nobody is said to have waited for anybody.
    """
    one_clock = all(r.origin.on_clock for r in ranks) or len({r.source for r in ranks}) == 1
    return ends_together(ranks) and (one_clock or not find_waits(ranks).shared)
