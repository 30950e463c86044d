"""Where the time of a recorded run went: `audit`.

    audit([Path("traces/")]).job.ledger

Every rank is measured for itself, in bounded memory, and kept beside its trace under the hash of its
content; then the ranks are put together.
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
from computeflow.errors import ComputeFlowError, InputError
from computeflow.telemetry.engines import Engine, Progress, each
from computeflow.telemetry.observed import ModelWork
from computeflow.telemetry.sources import find_traces
from computeflow.telemetry.traces.job import TracedJob, job_ledger
from computeflow.telemetry.traces.measured import Options, RankMeasured
from computeflow.telemetry.traces.rank import measure_rank

CACHE = ".computeflow"
VERSION = 6
"""Of what is kept: a new number makes old files unread."""
_SUM = 16


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
    found = find_traces(paths)
    return audit_files(found.traces, catalog, Settings(**settings), found.left_out)


def audit_files(
    files: Sequence[Path], catalog: Catalog, settings: Settings, left: Sequence[str] = ()
) -> TracedJob:
    """Of files that are traces, or look like it; `left` is what was left out already."""
    measure = partial(measured, options=settings.options, cache=settings.cache)
    ranks, left_out = [], list(left)
    results = each(measure, files, settings.engine, settings.progress)
    for path, result in zip(files, results, strict=True):
        if isinstance(result, ComputeFlowError):
            text = str(result)
            left_out.append(text if str(path) in text else f"{path}: {text}")
        else:
            ranks.append(replace(result, source=str(path)))
            left_out += result.left_out
    if not ranks:
        raise InputError("; ".join(left_out))
    ranks, more = one_job(ranks)
    left_out += more
    device = settings.accelerator or catalog.accelerators.get(ranks[0].device or "-")
    notes = dict.fromkeys(note for rank in ranks for note in rank.notes)
    return TracedJob(
        job=job_ledger(ranks, device, work=settings.work),
        ranks=tuple(ranks),
        accelerator=device,
        left_out=tuple(left_out),
        notes=(*notes, *_assumed(ranks)),
    )


def measured(path: Path, *, options: Options, cache: bool) -> RankMeasured:
    """One rank, from what is kept beside the trace where that is of the same content."""
    if not cache:
        return measure_rank(path, options)
    key = _key(path, options)
    kept = path.parent / CACHE / f"{key}.rank"
    try:
        content = kept.read_bytes()
        if content.startswith(_sum(content[_SUM:])):
            return codec.from_bytes(RankMeasured, content[_SUM:], str(kept))
    except (OSError, InputError):
        pass
    found = measure_rank(path, options)
    with suppress(UnicodeEncodeError):  # of a file's name that is no text
        content = codec.to_bytes(found)
        _keep(kept, _sum(content) + content)
    return found


def _sum(content: bytes) -> bytes:
    """Stands before what is kept: a file that lost or changed a byte is not read."""
    return hashlib.blake2b(content, digest_size=_SUM).digest()


def _key(path: Path, options: Options) -> str:
    content = hashlib.blake2b(digest_size=16)
    content.update(repr((VERSION, path.name, options)).encode())
    try:
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                content.update(part)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    return content.hexdigest()


def _keep(path: Path, content: bytes) -> None:
    """Whole or not at all; a folder that cannot be written to is no failure."""
    part = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def one_job(ranks: Sequence[RankMeasured]) -> tuple[list[RankMeasured], list[str]]:
    """The ranks of the largest job among them, each once; and why the others are left out."""
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
    return _together(list(kept.values()), left_out)


def _together(
    ranks: list[RankMeasured], left_out: list[str]
) -> tuple[list[RankMeasured], list[str]]:
    """Without ranks that were recorded at another time than most."""
    if len(ranks) < 2:
        return ranks, left_out
    middle = sorted(ranks, key=lambda rank: rank.window_start)[len(ranks) // 2]
    far = 3_600_000_000_000  # an hour: clocks may differ, runs last longer
    kept = []
    for rank in ranks:
        if abs(rank.window_start - middle.window_start) > far:
            hours = (rank.window_start - middle.window_start) / far
            left_out.append(f"{rank.source}: recorded {hours:+.1f} hours from {middle.source}")
        else:
            kept.append(rank)
    return kept, left_out


def _assumed(ranks: Sequence[RankMeasured]) -> list[str]:
    """What was taken for what no trace says."""
    guessed = [rank for rank in ranks if rank.rank_from == "assumed"]
    return [f"{rank.source}: rank not stated, taken as 0" for rank in guessed]
