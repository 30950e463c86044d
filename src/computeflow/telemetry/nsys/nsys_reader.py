"""SQLite exports of Nsight Systems: a trace for every GPU in them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

from computeflow.errors import InputError
from computeflow.telemetry.nsys.database import MAGIC, Database, beside
from computeflow.telemetry.nsys.gpus import WORK, find_gpus
from computeflow.telemetry.nsys.nsys_trace import read_gpu
from computeflow.telemetry.opening import head_of
from computeflow.telemetry.traces.trace import CounterRow, Trace

_REPORTS = (".nsys-rep", ".qdrep")
_SIGNS = (
    "TARGET_INFO_SESSION_START_TIME",
    "META_DATA_EXPORT",
    "NVTX_EVENTS",
    "TARGET_INFO_GPU",
    "ENUM_NSYS_EVENT_TYPE",
    *WORK,
)
_MAX_METRICS = 500


def recognises(path: Path, head: bytes) -> bool:
    if path.suffix in _REPORTS:
        return True
    if not head.startswith(MAGIC):
        return False
    if any(sign.encode() in head + head_of(beside(path, "-wal")) for sign in _SIGNS):
        return True
    try:
        with Database(path) as database:
            return any(sign in database.columns for sign in _SIGNS)
    except InputError:
        return False


def read(path: Path, *, detailed: bool = False) -> Generator[Trace | InputError]:
    """A trace for each GPU; notes, versions and counters of the whole file stand in each."""
    if path.suffix in _REPORTS:
        raise InputError(
            f"{path}: a report: export it first (nsys export --type sqlite {path.name})"
        )
    with Database(path) as database:
        gpus, notes = find_gpus(database)
        if not gpus:
            raise InputError(f"{path}: no GPU work in it (record with nsys profile --trace=cuda)")
        left_out = tuple(_absent(database))
        notes += _whole_graphs(database)
        versions, counters = tuple(_versions(database)), tuple(_counters(database))
        for part, gpu in enumerate(gpus):
            try:
                trace = read_gpu(database, gpu)
            except InputError as error:
                yield error
                continue
            yield replace(
                trace,
                left_out=(*left_out, *trace.left_out),
                notes=tuple(notes),
                origin=replace(trace.origin, part=part, versions=versions),
                counters=counters,
            )


def _whole_graphs(database: Database) -> list[str]:
    table = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    if not database.has(table) or not list(database.rows(f"SELECT 1 FROM {table} LIMIT 1")):
        return []
    return [
        "CUDA graphs were recorded whole: everything in them counts as computation (record with "
        "--cuda-graph-trace=node)"
    ]


def _absent(database: Database) -> Iterator[str]:
    """Notes on what other releases or settings of Nsight Systems would have recorded."""
    if not database.has("NVTX_EVENTS", "start", "end"):
        yield f"{database.path.name}: no NVTX ranges: steps and phases are unknown"
    if not database.has("StringIds", "id", "value"):
        yield f"{database.path.name}: no StringIds: kernels have no names, all count as computation"
    for table, what in WORK.items():
        needed = {"deviceId", "correlationId", "globalPid", "streamId"}
        if table in database.columns and (missing := needed - database.columns[table]):
            yield f"{database.path.name}: {what} without {', '.join(sorted(missing))}"


def _versions(database: Database) -> Iterator[str]:
    if not database.has("META_DATA_EXPORT", "name", "value"):
        return
    query = "SELECT substr(name, 1, 64), substr(value, 1, 64) FROM META_DATA_EXPORT LIMIT 1000"
    known = {str(name): str(value) for name, value in database.rows(query)}
    if "EXPORT_PRODUCT_VERSION" in known:
        yield f"Nsight Systems {known['EXPORT_PRODUCT_VERSION']}"
    if "EXPORT_SCHEMA_VERSION" in known:
        yield f"schema {known['EXPORT_SCHEMA_VERSION']}"


def _counters(database: Database) -> Iterator[CounterRow]:
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
        f"FROM {table} GROUP BY 1, 2 LIMIT {_MAX_METRICS}"
    )
    for kind, metric, mean, count in database.rows(query):
        name = known.get((kind, metric))
        if name and isinstance(mean, float):
            yield CounterRow(
                source=str(database.path),
                gpu=int(kind) & 0xFF,
                metric=name,
                mean=mean,
                samples=int(count),
            )
