"""Measured files to the ranks of one job: `one_job`, and why others are left out.

A PyTorch trace states its rank and the number of ranks. Files of Nsight Systems and JAX do not:
there, files of one folder and, where times are known, of one time make a job; ranks are numbered by
file names or by order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from computeflow.telemetry.traces.collective_waits import apart, ends_together, find_waits
from computeflow.telemetry.traces.rank_measurements import FileMeasurement, RankMeasurement

FAR = 3_600_000_000_000
"""Largest difference of recording times within a job: an hour, in nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRanks:
    ranks: tuple[RankMeasurement, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def one_job(files: Sequence[FileMeasurement]) -> JobRanks:
    """The largest job among these files, each rank once."""
    stated = [rank for file in files for rank in file.ranks if rank.origin.kind == "kineto"]
    others = [file for file in files if file.ranks[0].origin.kind != "kineto"]
    jobs = [_stated_job(stated)] if stated else []
    jobs += [_folder_job(job) for job in _folder_jobs(others)]
    largest = max(jobs, key=lambda job: len(job.ranks))
    smaller = [job for job in jobs if job is not largest]
    left_out = [text for job in (largest, *smaller) for text in job.left_out]
    sources = dict.fromkeys(rank.source for job in smaller for rank in job.ranks)
    left_out += [f"{source}: of another job, the largest is audited" for source in sources]
    return replace(largest, left_out=tuple(left_out))


def _stated_job(ranks: Sequence[RankMeasurement]) -> JobRanks:
    """The job whose size most ranks state."""
    worlds: dict[int | None, int] = {}
    for rank in ranks:
        worlds[rank.world] = worlds.get(rank.world, 0) + 1
    most = max(worlds, key=lambda world: worlds[world])
    kept: dict[int, RankMeasurement] = {}
    left_out = []
    for rank in sorted(ranks, key=lambda rank: (rank.rank, rank.source)):
        if rank.world != most:
            job = (
                f"a job of {rank.world} ranks"
                if rank.world
                else "a job that does not state its size"
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
    kept_ranks, far = _recorded_together(list(kept.values()))
    return JobRanks(ranks=tuple(kept_ranks), left_out=(*left_out, *far))


def _recorded_together(ranks: list[RankMeasurement]) -> tuple[list[RankMeasurement], list[str]]:
    """Separate the ranks that were recorded at another time than most."""
    middle = sorted(ranks, key=lambda rank: rank.window_start)[len(ranks) // 2]
    kept, left_out = [], []
    for rank in ranks:
        if abs(rank.window_start - middle.window_start) > FAR:
            hours = (rank.window_start - middle.window_start) / FAR
            left_out.append(f"{rank.source}: recorded {hours:+.1f} hours from {middle.source}")
        else:
            kept.append(rank)
    return kept, left_out


def _folder_jobs(files: Sequence[FileMeasurement]) -> list[list[FileMeasurement]]:
    """Files grouped into jobs by format, folder and time."""
    jobs: list[list[FileMeasurement]] = []
    for file in sorted(files, key=lambda file: file.ranks[0].source):
        same = [job for job in jobs if all(_same_job(file, other) for other in job)]
        if same:
            same[0].append(file)
        else:
            jobs.append([file])
    return jobs


def _same_job(file: FileMeasurement, other: FileMeasurement) -> bool:
    """Whether two files are of one job: JAX makes a folder for every profile; exports of Nsight
    Systems belong together if they overlap for at least half of the shorter one.
    """
    first, second = file.ranks[0], other.ranks[0]
    kind = first.origin.kind
    if kind != second.origin.kind or Path(first.source).parent != Path(second.source).parent:
        return False
    if kind == "xplane":
        return True
    if not (first.origin.on_clock and second.origin.on_clock):
        return False
    (start, end), (other_start, other_end) = _window(file), _window(other)
    return 2 * (min(end, other_end) - max(start, other_start)) >= min(
        end - start, other_end - other_start
    )


def _window(file: FileMeasurement) -> tuple[int, int]:
    return min(r.window_start for r in file.ranks), max(r.window_end for r in file.ranks)


def _folder_job(files: Sequence[FileMeasurement]) -> JobRanks:
    ranks, notes = _numbered(files)
    if not _is_matched(ranks):
        ranks = apart(ranks)
        notes.append(
            "collectives of the same name do not end together on all devices (several process groups, "
            "which the recording does not name), or on no common clock: who waited for whom is unknown"
        )
    return JobRanks(ranks=tuple(ranks), notes=tuple(notes))


def _numbered(files: Sequence[FileMeasurement]) -> tuple[list[RankMeasurement], list[str]]:
    """Number the ranks by file names with one device each, else by the order of files and devices."""
    ranks = [rank for file in files for rank in file.ranks]
    named = [rank.rank for rank in ranks if rank.rank_from == "file name"]
    if len(files) == len(set(named)) == len(ranks):
        return sorted(ranks, key=lambda rank: rank.rank), []
    ranks = [replace(rank, rank=n, rank_from="order") for n, rank in enumerate(ranks)]
    order = "ranks are numbered in the order of files, devices and processes: none is stated"
    return ranks, [order] if len(ranks) > 1 else []


def _is_matched(ranks: Sequence[RankMeasurement]) -> bool:
    """Whether work of the same name is the same collective: then its ends coincide. Where they do
    not, who waited for whom is unknown.
    """
    one_clock = all(r.origin.on_clock for r in ranks) or len({r.source for r in ranks}) == 1
    return ends_together(ranks) and (one_clock or not find_waits(ranks).shared)
