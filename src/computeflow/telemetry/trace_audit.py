"""Audit of traces: where the time of a recorded run went.

    audit([Path("traces/")], catalog).job.ledger

Reads files of the PyTorch profiler, Nsight Systems and JAX. Each file is measured on its own, in
bounded memory, and cached under the hash of its content; then the ranks are joined into one job.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.catalog import Catalog
from computeflow.catalog.rows import Accelerator
from computeflow.engines import Engine, Progress, each
from computeflow.errors import ComputeFlowError, InputError
from computeflow.files.cache import Cache
from computeflow.telemetry.opening import open_plain
from computeflow.telemetry.source_registry import sort_files
from computeflow.telemetry.source_reports import ModelWork
from computeflow.telemetry.trace_formats import TraceFile, format_of, measure_file, without_copies
from computeflow.telemetry.traces.job_ledgers import TracedJob, job_ledger
from computeflow.telemetry.traces.job_ranks import one_job
from computeflow.telemetry.traces.message_arrivals import own_time_returned
from computeflow.telemetry.traces.rank_measurements import (
    FileMeasurement,
    RankMeasurement,
    TraceOptions,
)
from computeflow.telemetry.traces.shared_steps import SharedSteps, shared_steps

_CACHE = Cache("traces")
_VERSION = 15
"""Version of the cache entries: a new number invalidates old ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """Settings of an audit of traces."""

    options: TraceOptions = field(default_factory=TraceOptions)
    accelerator: Accelerator | None = None
    """The device, where the catalog does not know the driver's name for it."""
    work: ModelWork | None = None
    """FLOPs of the model, where they are not to be derived from operator shapes."""
    engine: Engine = "local"
    cache: bool = True
    progress: Progress | None = None


def audit(paths: Sequence[Path], catalog: Catalog, **settings: Any) -> TracedJob:
    """Audit trace files, or folders of them; `settings` are the fields of `TraceSettings`."""
    files = sort_files(paths, format_of)
    return audit_files(files.traces, catalog, TraceSettings(**settings), files.left_out)


def audit_files(
    files: Sequence[TraceFile], catalog: Catalog, settings: TraceSettings, left: Sequence[str] = ()
) -> TracedJob:
    """Audit files that are traces, or look like traces; `left` lists what was already left out."""
    files, copies = without_copies(files)
    measured, failed = _measure(files, settings)
    left_out = [*left, *copies, *failed]
    if not measured:
        raise InputError("; ".join(left_out))
    job = one_job(measured)
    if settings.options.window == "steps" and (shared := shared_steps(job.ranks)):
        again, failed = _measure_again(shared, settings)
        if again:  # else nothing can be measured over the steps that all have: over all, then
            left_out = [*dict.fromkeys((*left_out, *failed, *job.left_out, *shared.left_out))]
            job = one_job(again)
    ranks = own_time_returned(job.ranks)
    device = settings.accelerator or catalog.accelerators.get(ranks[0].device or "-")
    return TracedJob(
        job=job_ledger(ranks, device, work=settings.work),
        ranks=ranks,
        accelerator=device,
        left_out=(*left_out, *job.left_out),
        notes=(*_notes(ranks), *job.notes, *_assumed(ranks)),
    )


def _measure(
    files: Sequence[TraceFile], settings: TraceSettings
) -> tuple[list[FileMeasurement], list[str]]:
    """The measurements of files, and what could not be measured."""
    measure = partial(measure_cached, options=settings.options, cache=settings.cache)
    measured_files, left_out = [], []
    results = each(measure, files, settings.engine, settings.progress)
    if settings.cache:
        _CACHE.trim()
    for file, result in zip(files, results, strict=True):
        if isinstance(result, ComputeFlowError):
            text = str(result)
            left_out.append(text if str(file.path) in text else f"{file.path}: {text}")
        else:
            ranks = tuple(replace(rank, source=str(file.path)) for rank in result.ranks)
            measured_files.append(replace(result, ranks=ranks))
            left_out += result.left_out
            left_out += dict.fromkeys(text for rank in ranks for text in rank.left_out)
    return measured_files, left_out


def _measure_again(
    shared: SharedSteps, settings: TraceSettings
) -> tuple[list[FileMeasurement], list[str]]:
    """The ranks that share steps, measured over these steps alone."""
    options = replace(settings.options, first_step=shared.first, last_step=shared.last)
    files = dict.fromkeys(
        TraceFile(kind=rank.origin.kind, path=Path(rank.source)) for rank in shared.ranks
    )
    measured, failed = _measure([*files], replace(settings, options=options))
    parts = {(rank.source, rank.origin.part) for rank in shared.ranks}
    kept = [
        replace(
            file,
            ranks=tuple(rank for rank in file.ranks if (rank.source, rank.origin.part) in parts),
        )
        for file in measured
    ]
    return [file for file in kept if file.ranks], failed


def measure_cached(file: TraceFile, *, options: TraceOptions, cache: bool) -> FileMeasurement:
    """Measure a file, or take the result from the user's cache where the content is unchanged."""
    if not cache:
        return measure_file(file, options)
    key = _key(file, options)
    with suppress(InputError):
        if content := _CACHE.get(key):
            return codec.from_bytes(FileMeasurement, content, "cache")
    result = measure_file(file, options)
    with suppress(UnicodeEncodeError):  # a file name that is not valid text
        _CACHE.put(key, codec.to_bytes(result))
    return result


def _key(file: TraceFile, options: TraceOptions) -> str:
    path = file.path
    content = hashlib.blake2b(digest_size=16)
    content.update(repr((_VERSION, file.kind, path.name, options)).encode())
    try:
        log = Path(os.path.realpath(path))
        log = log.with_name(f"{log.name}-wal")  # a database's changes that are not yet in it
        for source in (path, log) if log.is_file() else (path,):
            with open_plain(source) as opened:
                while part := opened.read(1 << 20):
                    content.update(part)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    return content.hexdigest()


def _notes(ranks: Sequence[RankMeasurement]) -> list[str]:
    """Notes on how steps are known, and the notes of reading and measuring."""
    steps = dict.fromkeys(rank.origin.steps_from for rank in ranks if rank.origin.steps_from)
    notes = dict.fromkeys(note for rank in ranks for note in rank.notes)
    short = [rank for rank in ranks if rank.cut_short and not rank.steps and len(ranks) > 1]
    return [
        *(f"steps: {text}" for text in steps),
        *notes,
        *(f"{rank.source}: its window is shorter than that of other ranks" for rank in short),
    ]


def _assumed(ranks: Sequence[RankMeasurement]) -> list[str]:
    """Notes on ranks that no trace states."""
    guessed = [rank for rank in ranks if rank.rank_from == "assumed"]
    return [f"{rank.source}: rank not stated, taken as 0" for rank in guessed]
