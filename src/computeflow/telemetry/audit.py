"""Where the time of a recorded run went: `audit`.

    audit([Path("traces/")], catalog).job.ledger

Files of the PyTorch profiler, of Nsight Systems and of JAX alike: each is measured for itself, in
bounded memory, and kept in the user's cache under the hash of its content; then ranks are put together.
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
from computeflow.telemetry.formats import TraceFile, format_of, measure_file, without_copies
from computeflow.telemetry.observed import ModelWork
from computeflow.telemetry.opening import open_plain
from computeflow.telemetry.registry import sort_files
from computeflow.telemetry.traces.grouping import one_job
from computeflow.telemetry.traces.job import TracedJob, job_ledger
from computeflow.telemetry.traces.measured import FileMeasured, Options, RankMeasured

_CACHE = Cache("traces")
_VERSION = 8
"""Of what is kept: a new number makes old files unread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How traces are audited."""

    options: Options = field(default_factory=Options)
    accelerator: Accelerator | None = None
    """Where the driver's name of the device is not known."""
    work: ModelWork | None = None
    """Where the model's FLOPs are not to be taken from shapes."""
    engine: Engine = "local"
    cache: bool = True
    progress: Progress | None = None


def audit(paths: Sequence[Path], catalog: Catalog, **settings: Any) -> TracedJob:
    """Of traces, or of folders of them; `settings` are those of `Settings`."""
    found = sort_files(paths, format_of)
    return audit_files(found.traces, catalog, Settings(**settings), found.left_out)


def audit_files(
    files: Sequence[TraceFile], catalog: Catalog, settings: Settings, left: Sequence[str] = ()
) -> TracedJob:
    """Of files that are traces, or look like it; `left` is what was left out already."""
    files, copies = without_copies(files)
    left_out = [*left, *copies]
    measure = partial(measured, options=settings.options, cache=settings.cache)
    read = []
    results = each(measure, files, settings.engine, settings.progress)
    if settings.cache:
        _CACHE.trim()
    for file, result in zip(files, results, strict=True):
        if isinstance(result, ComputeFlowError):
            text = str(result)
            left_out.append(text if str(file.path) in text else f"{file.path}: {text}")
        else:
            ranks = tuple(replace(rank, source=str(file.path)) for rank in result.ranks)
            read.append(replace(result, ranks=ranks))
            left_out += result.left_out
            left_out += dict.fromkeys(text for rank in ranks for text in rank.left_out)
    if not read:
        raise InputError("; ".join(left_out))
    job = one_job(read)
    ranks = job.ranks
    device = settings.accelerator or catalog.accelerators.get(ranks[0].device or "-")
    return TracedJob(
        job=job_ledger(ranks, device, work=settings.work),
        ranks=ranks,
        accelerator=device,
        left_out=(*left_out, *job.left_out),
        notes=(*_notes(ranks), *job.notes, *_assumed(ranks)),
    )


def measured(file: TraceFile, *, options: Options, cache: bool) -> FileMeasured:
    """From what the user's cache keeps of the same content, where it does."""
    if not cache:
        return measure_file(file, options)
    key = _key(file, options)
    with suppress(InputError):
        if content := _CACHE.get(key):
            return codec.from_bytes(FileMeasured, content, "cache")
    found = measure_file(file, options)
    with suppress(UnicodeEncodeError):  # of a file's name that is no text
        _CACHE.put(key, codec.to_bytes(found))
    return found


def _key(file: TraceFile, options: Options) -> str:
    path = file.path
    content = hashlib.blake2b(digest_size=16)
    content.update(repr((_VERSION, file.kind, path.name, options)).encode())
    try:
        log = Path(os.path.realpath(path))
        log = log.with_name(f"{log.name}-wal")  # of a database: changes that are not yet in it
        for source in (path, log) if log.is_file() else (path,):
            with open_plain(source) as opened:
                while part := opened.read(1 << 20):
                    content.update(part)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    return content.hexdigest()


def _notes(ranks: Sequence[RankMeasured]) -> list[str]:
    """How steps are known, and what reading and measuring found worth saying."""
    steps = dict.fromkeys(rank.origin.steps_from for rank in ranks if rank.origin.steps_from)
    notes = dict.fromkeys(note for rank in ranks for note in rank.notes)
    return [*(f"steps: {text}" for text in steps), *notes]


def _assumed(ranks: Sequence[RankMeasured]) -> list[str]:
    """What was taken for what no trace says."""
    guessed = [rank for rank in ranks if rank.rank_from == "assumed"]
    return [f"{rank.source}: rank not stated, taken as 0" for rank in guessed]
