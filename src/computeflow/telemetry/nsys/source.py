"""SQLite exports of Nsight Systems as a source: a closed ledger of every GPU in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from computeflow.errors import InputError
from computeflow.telemetry.nsys.database import MAGIC, Database
from computeflow.telemetry.nsys.facts import MetricRow, Nsight, NsightGpu
from computeflow.telemetry.nsys.gpus import WORK, Gpu, find_gpus
from computeflow.telemetry.nsys.measuring import Measured, measure
from computeflow.telemetry.nsys.trace import read_gpu, unix_offset
from computeflow.telemetry.observed import Asked, Observed
from computeflow.telemetry.traces.identity import RANK_PATTERNS
from computeflow.telemetry.traces.job import Job, job_ledger
from computeflow.telemetry.traces.measured import RankMeasured
from computeflow.telemetry.traces.waits import apart, ends_together

REPORTS = (".nsys-rep", ".qdrep")
_SIGNS = ("TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT", "NVTX_EVENTS", "TARGET_INFO_GPU",
          "ENUM_NSYS_EVENT_TYPE", *WORK)  # fmt: skip
_MOST_METRICS = 500


class NsightSource:
    kind = "nsys"

    def recognises(self, path: Path, head: bytes) -> bool:
        if path.suffix in REPORTS:
            return True
        if not head.startswith(MAGIC):
            return False
        try:
            with Database(path) as database:
                return any(sign in database.columns for sign in _SIGNS)
        except InputError:
            return any(sign.encode() in head for sign in _SIGNS)

    def observe(self, paths: Sequence[Path], asked: Asked) -> list[Observed]:
        files, left_out = [], []
        for path in paths:
            try:
                files.append(_read(path))
            except InputError as error:
                left_out.append(str(error))
        if not files:
            raise InputError("; ".join(left_out) or "no Nsight export to read")
        found = [_observed(job) for job in jobs_of(files)]
        found[0] = replace(found[0], left_out=(*found[0].left_out, *left_out))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: Path
    versions: tuple[str, ...]
    gpus: tuple[tuple[Gpu, Measured, str], ...]
    """With where its steps are known from."""
    metrics: tuple[MetricRow, ...]
    on_clock: bool
    """Its times are Unix times."""
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def window(self) -> tuple[int, int]:
        ranks = [measured.rank for _, measured, _ in self.gpus]
        return min(r.window_start for r in ranks), max(r.window_end for r in ranks)


def _read(path: Path) -> _File:
    """GPU after GPU: of each, only what was measured is kept."""
    if path.suffix in REPORTS:
        raise InputError(
            f"{path}: a report: export it first (nsys export --type sqlite {path.name})"
        )
    with Database(path) as database:
        gpus, notes = find_gpus(database)
        if not gpus:
            raise InputError(
                f"{path}: no work of a GPU in it (record with nsys profile --trace=cuda)"
            )
        found: list[tuple[Gpu, Measured, str]] = []
        left_out = []
        for gpu in gpus:
            try:
                read = read_gpu(database, gpu)
                found.append((gpu, measure(read, len(found), "order"), read.steps_from))
            except InputError as error:
                left_out.append(str(error))
        if not found:
            raise InputError("; ".join(left_out))
        graphs = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
        if database.has(graphs) and list(database.rows(f"SELECT 1 FROM {graphs} LIMIT 1")):
            notes.append(
                "CUDA graphs were recorded whole: all in them counts as computation (record with "
                "--cuda-graph-trace=node)"
            )
        return _File(
            path=path,
            versions=tuple(_versions(database)),
            gpus=tuple(found),
            metrics=tuple(_metrics(database)),
            on_clock=unix_offset(database) is not None,
            left_out=(*left_out, *_absent(database)),
            notes=tuple(notes),
        )


def _absent(database: Database) -> Iterator[str]:
    """What other releases or other settings would have told."""
    if not database.has("NVTX_EVENTS", "start", "end"):
        yield f"{database.path.name}: no NVTX ranges: steps and phases are not known"
    if not database.has("StringIds", "id", "value"):
        yield f"{database.path.name}: no StringIds: kernels have no names, all count as computation"
    for table, what in WORK.items():
        wanted = {"deviceId", "correlationId", "globalPid", "streamId"}
        if table in database.columns and (lost := wanted - database.columns[table]):
            yield f"{database.path.name}: {what} without {', '.join(sorted(lost))}"


def _versions(database: Database) -> Iterator[str]:
    if not database.has("META_DATA_EXPORT", "name", "value"):
        return
    query = "SELECT substr(name, 1, 64), substr(value, 1, 64) FROM META_DATA_EXPORT LIMIT 1000"
    known = {str(name): str(value) for name, value in database.rows(query)}
    if "EXPORT_PRODUCT_VERSION" in known:
        yield f"Nsight Systems {known['EXPORT_PRODUCT_VERSION']}"
    if "EXPORT_SCHEMA_VERSION" in known:
        yield f"schema {known['EXPORT_SCHEMA_VERSION']}"


def _metrics(database: Database) -> Iterator[MetricRow]:
    """Means of sampled counters; the lowest byte of a type is the GPU's number."""
    table, names = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
    if not database.has(table, "typeId", "metricId", "value"):
        return
    if not database.has(names, "typeId", "metricId", "metricName"):
        return
    query = (
        "SELECT CAST(typeId AS INTEGER), CAST(metricId AS INTEGER), substr(metricName, 1, 200) "
        f"FROM {names} LIMIT 10000"
    )
    known = {(kind, metric): str(name) for kind, metric, name in database.rows(query)}
    query = (
        "SELECT CAST(typeId AS INTEGER), CAST(metricId AS INTEGER), avg(value), count(*) "
        f"FROM {table} GROUP BY 1, 2 LIMIT {_MOST_METRICS}"
    )
    for kind, metric, mean, count in database.rows(query):
        name = known.get((kind, metric))
        if name and isinstance(mean, float):
            yield MetricRow(source=str(database.path), gpu=int(kind) & 0xFF, metric=name, mean=mean,
                            samples=int(count))  # fmt: skip


def jobs_of(files: Sequence[_File]) -> list[list[_File]]:
    """Files of one folder that were recorded at the same time are one job's."""
    jobs: list[list[_File]] = []
    for file in sorted(files, key=lambda file: str(file.path)):
        same = [job for job in jobs if all(_together(file, other) for other in job)]
        if same:
            same[0].append(file)
        else:
            jobs.append([file])
    return jobs


def _together(one: _File, other: _File) -> bool:
    if one.path.parent != other.path.parent or not (one.on_clock and other.on_clock):
        return False
    (start, end), (begun, ended) = one.window, other.window
    shared = min(end, ended) - max(start, begun)
    return 2 * shared >= min(end - start, ended - begun)


def _observed(job: list[_File]) -> Observed:
    gpus = [(file, *gpu) for file in job for gpu in file.gpus]
    numbers, told = _numbers(job)
    ranks = [
        replace(measured.rank, rank=number, rank_from=told)
        for number, (_, _, measured, _) in zip(numbers, gpus, strict=True)
    ]
    ranks, doubts = _matched(ranks)
    booked = job_ledger(ranks, None)
    by_rank = {part.rank: part for part in booked.ranks}
    facts = Nsight(
        versions=tuple(dict.fromkeys(version for file in job for version in file.versions)),
        gpus=tuple(
            _gpu(gpu, measured, steps, by_rank[number].ledger.accounts, rank)
            for number, rank, (_, gpu, measured, steps) in zip(numbers, ranks, gpus, strict=True)
        ),
        metrics=tuple(metric for file in job for metric in file.metrics),
        shared_collectives=booked.shared_collectives,
    )
    lost = [text for rank in ranks for text in rank.left_out]
    return Observed(
        kind=NsightSource.kind,
        sources=tuple(str(file.path) for file in job),
        facts=facts,
        ledger=booked.ledger,
        left_out=(*(text for file in job for text in file.left_out), *dict.fromkeys(lost)),
        notes=tuple(_notes(job, ranks, facts, booked, doubts)),
    )


def _numbers(job: Sequence[_File]) -> tuple[list[int], str]:
    """From the names of files with one GPU each; else the order of GPUs."""
    count = sum(len(file.gpus) for file in job)
    if len(job) == count:
        named = [_named(file.path) for file in job]
        if len({number for number in named if number is not None}) == count:
            return [number or 0 for number in named], "file name"
    return list(range(count)), "order"


def _named(path: Path) -> int | None:
    for pattern in RANK_PATTERNS:
        found = re.search(pattern, path.name, re.IGNORECASE)
        if found and len(found[1]) < 8:
            return int(found[1])
    return None


def _matched(ranks: list[RankMeasured]) -> tuple[list[RankMeasured], list[str]]:
    """Kernels of the same name need not be the same collective: those are whose ends fall together.
    Where they do not, nobody is said to have waited for anybody.
    """
    if ends_together(ranks):
        return ranks, []
    return apart(ranks), [
        "collectives of the same name do not end together on all GPUs (several process groups, which "
        "an export does not name): who waited for whom is unknown"
    ]


def _gpu(
    gpu: Gpu, measured: Measured, steps_from: str, accounts: dict[str, float], rank: RankMeasured
) -> NsightGpu:
    return NsightGpu(
        rank=rank.rank,
        rank_from=rank.rank_from,
        source=rank.source,
        process=gpu.process,
        device=gpu.device,
        name=gpu.name,
        seconds=(rank.window_end - rank.window_start) / 1e9,
        accounts=accounts,
        host=rank.host,
        steps=rank.steps,
        steps_from=steps_from,
        step_seconds=rank.step_seconds if rank.steps else (),
        busy_seconds=measured.busy_seconds,
        comm_seconds=measured.comm_seconds,
        comm_hidden_seconds=measured.comm_hidden_seconds,
        copy_seconds=measured.copy_seconds,
        copy_hidden_seconds=measured.copy_hidden_seconds,
        kernels=rank.kernels,
        gaps=rank.gaps,
        copies=measured.copies,
    )


def _notes(
    job: Sequence[_File], ranks: Sequence[RankMeasured], facts: Nsight, booked: Job,
    doubts: Sequence[str],
) -> Iterator[str]:  # fmt: skip
    for text in dict.fromkeys(gpu.steps_from for gpu in facts.gpus):
        if text:
            yield f"steps: {text}"
    yield from dict.fromkeys(note for rank in ranks for note in rank.notes)
    if len(ranks) > 1 and ranks[0].rank_from == "order":
        yield "ranks are numbered in the order of files, devices and processes: none is stated"
    yield from (note for file in job for note in file.notes)
    yield from doubts
    yield from booked.notes
