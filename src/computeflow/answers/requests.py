"""Requests: keyword arguments, and the file they name, turned into a job on a cluster.

Keywords are named like the fields of `Job` and `Layout`. With `from_` a framework's file states the
rest; the caller's arguments override it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from computeflow.answers.inputs import File
from computeflow.catalog import Catalog
from computeflow.catalog.lookup import find_typed_model
from computeflow.cluster import Cluster, find_cluster
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.reading import read_text
from computeflow.prediction.stack import Stack, find_stack
from computeflow.workload import Job, Layout
from computeflow.workload.job import Training
from computeflow.workload.layout import Offload, Recompute, Ring, Schedule, Sharding

if TYPE_CHECKING:
    from computeflow.planning.exports.config_formats import ConfigReading
    from computeflow.prediction.calibration import Calibration


class JobOptions(TypedDict, total=False):
    """The job; omitted options have the default of `Job`."""

    global_batch: int | None
    seq_len: int | None
    precision: str
    optimizer: str
    training: Training
    lora_rank: int
    loss_chunks: int
    expert_spread: float
    multi_token: bool
    bytes_per_token: float
    checkpoint_steps: int | None


class LayoutOptions(TypedDict, total=False):
    """The layout; omitted options have the default of `Layout`."""

    tp: int
    pp: int
    vp: int
    cp: int
    ep: int
    etp: int
    micro_batch: int
    recompute: Recompute
    sharding: Sharding
    replicas: int
    schedule: Schedule
    offload: Offload
    context: Ring


class JobOnLayoutOptions(JobOptions, LayoutOptions):
    """A job and its layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job on a cluster, as the caller and the named file state it."""

    catalog: Catalog = field(repr=False, compare=False)
    cluster: Cluster
    job: Job
    layout: Layout
    layout_given: bool
    """Whether the caller or the file states the layout; else it is the default one."""
    stack: Stack | None
    """None where neither the caller nor the file names one."""
    reading: ConfigReading | None = None
    """The contents of a framework's file."""

    @property
    def title(self) -> str:
        return job_title(self.job, self.cluster)


def choose_cluster(on: File, storage: str | None, catalog: Catalog) -> Cluster:
    cluster = find_cluster(fspath(on), catalog)
    return replace(cluster, storage=catalog.storage[storage]) if storage else cluster


def read_request(
    model: str | None,
    cluster: Cluster,
    catalog: Catalog,
    options: Mapping[str, Any],
    *,
    from_: File | None = None,
    format: str | None = None,
    stack: str | None = None,
) -> JobRequest:
    """Build a request from arguments alone, or from a configuration that they override."""
    given = {name: value for name, value in options.items() if value is not None}
    if "lora_rank" in given and given.get("training", "full") == "full":
        raise InputError("--lora-rank needs --training lora or qlora")
    if from_ is not None:
        return _read_file(model, cluster, catalog, given, Path(from_), format, stack)
    if format is not None:
        raise InputError("--format needs --from FILE")
    needed = {
        "MODEL": model,
        "--global-batch": given.get("global_batch"),
        "--seq-len": given.get("seq_len"),
    }
    if missing := [name for name, value in needed.items() if value is None]:
        raise InputError(f"missing {' and '.join(missing)}; or --from FILE")
    assert model is not None
    layout = _named_like(Layout, given)
    return JobRequest(
        catalog=catalog,
        cluster=cluster,
        job=Job(model=find_typed_model(catalog, model), **_named_like(Job, given)),
        layout=Layout(gpus=cluster.gpus, **layout),
        layout_given=bool(layout),
        stack=find_stack(stack) if stack else None,
    )


def _read_file(
    model: str | None,
    cluster: Cluster,
    catalog: Catalog,
    given: dict[str, Any],
    path: Path,
    format_name: str | None,
    stack: str | None,
) -> JobRequest:
    from computeflow.planning.exports.config_reader import read_file, setup_of
    from computeflow.planning.exports.frameworks import FRAMEWORKS

    if format_name is not None and format_name not in FRAMEWORKS:
        raise UnknownNameError("format", format_name, FRAMEWORKS)
    reading = read_file(read_text(path), str(path), format_name)
    stated = given | {key: value for key, value in (("model", model), ("stack", stack)) if value}
    setup = setup_of(reading, cluster, stated, catalog)
    return JobRequest(
        catalog=catalog,
        cluster=cluster,
        job=setup.job,
        layout=setup.layout,
        layout_given=True,
        stack=setup.stack,
        reading=reading,
    )


def read_calibration(calibration: File | None, catalog: Catalog) -> Calibration | None:
    if calibration is None:
        return None
    from computeflow.prediction.calibration.file import load_calibration

    return load_calibration(Path(calibration), catalog)


def reading_data(reading: ConfigReading) -> dict[str, Any]:
    """The format of a configuration file, its unknown keys and the notes of reading it."""
    return {
        "format": reading.format,
        "unknown": list(reading.unknown),
        "notes": list(reading.notes),
    }


def job_title(job: Job, cluster: Cluster, gpus: str = "") -> str:
    size = gpus or f"{cluster.gpus:,}"
    return (
        f"{job.model.name} on {size} {cluster.accelerator.name}, {job.global_batch:,} x "
        f"{job.seq_len:,} tokens a step, {job.precision}"
    )


def _named_like(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in options.items() if name in names}
