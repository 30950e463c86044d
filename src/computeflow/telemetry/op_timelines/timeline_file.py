"""Op timelines as arrays: every operation of every step, on all workers that repeat one pattern.

The columns are those of ByteDance's straggler study (OSDI'25, "Understanding Stragglers in Large
Model Training Using What-if Analysis"; its artifact's readme): `step`, `dp_rank`, `stage`,
`optype`, `start_ts`, `duration` in seconds; `seq_id`, `mc` and `gmc` (chunks of virtual stages),
`mb_id` and `rank` are filled in where they are missing.
"""

from __future__ import annotations

import csv
import glob
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.files.limits import TIMELINE_ROWS
from computeflow.files.parquet import parquet_engine
from computeflow.telemetry.lines import check_columns, read_lines
from computeflow.telemetry.opening import read_head

Floats = NDArray[Any]
Ints = NDArray[np.int64]
_NAMES = {
    "step": ("step", "iteration"),
    "dp_rank": ("dp_rank", "dp"),
    "stage": ("stage", "pp_rank", "pipeline_stage"),
    "optype": ("optype", "op_type", "op"),
    "start_ts": ("start_ts", "start"),
    "duration": ("duration", "dur"),
    "seq_id": ("seq_id",),
    "mc": ("mc",),
    "gmc": ("gmc",),
    "mb_id": ("mb_id", "microbatch", "micro_batch"),
    "rank": ("rank",),
}
_SIZE = re.compile(r"(\w{1,40}_size):\s*(\d{1,7})\s*")
NEEDED = ("step", "dp_rank", "stage", "optype", "start_ts", "duration")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """The operations that every step of every data-parallel replica has, one entry each."""

    optype: tuple[str, ...]
    number: Ints
    """Number of the operation among those of its type on its worker, by start."""
    stage: Ints
    chunk: Ints
    """Virtual stage within the stage."""
    global_chunk: Ints
    """Virtual stage within the model."""
    start: Floats
    """Start in the first step of the first replica, which gives the order of the program."""
    end: Floats

    @property
    def stages(self) -> int:
        return int(self.stage.max()) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimeline:
    pattern: Pattern
    steps: tuple[int, ...]
    replicas: int
    start: Floats
    """Seconds, operation by step by replica, as precise as in the file."""
    duration: Floats
    micro_batch: Ints | None
    """Micro-batch of each operation, shaped as `start`; -1 where it has none."""
    ranks: Ints
    """Number of the worker, replica by stage."""
    gpus_per_worker: int
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def read_timeline(path: Path) -> OpTimeline:
    left_out: list[str] = []
    columns = _parquet(path) if read_head(path, 4) == b"PAR1" else _csv(path, left_out)
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise InputError(f"{path}: not an op timeline: no column {', '.join(missing)}")
    if not len(columns["step"]):
        raise InputError(f"{path}: no operations in the op timeline")
    timeline = _timeline(columns, path)
    return replace(timeline, left_out=(*left_out, *timeline.left_out))


def find_columns(columns: Mapping[str, Any] | list[str]) -> dict[str, str]:
    """The file's names of the columns that are there, by ours."""
    spellings_found: dict[str, str] = {}
    for name, spellings in _NAMES.items():
        for spelling in spellings:
            if spelling in columns:
                spellings_found.setdefault(name, spelling)
    return spellings_found


def mentions_columns(text: bytes) -> bool:
    """Whether a text contains all needed columns, in any spelling."""
    return all(any(name.encode() in text for name in _NAMES[needed]) for needed in NEEDED)


def _parquet(path: Path) -> dict[str, Any]:
    rows, name = "FROM read_parquet(?, hive_partitioning = false)", [glob.escape(str(path))]
    with parquet_engine("reading Parquet") as (engine, engine_error):
        try:
            description = engine.execute(f"DESCRIBE SELECT * {rows}", name)
            spelled = find_columns([row[0] for row in description.fetchall()])
            ((count,),) = engine.execute(f"SELECT count(*) {rows}", name).fetchall()
            if count > TIMELINE_ROWS:
                raise InputError(f"{path}: {count:,} rows; at most {TIMELINE_ROWS:,} are read")
            chosen = ", ".join(f'"{theirs}" AS "{ours}"' for ours, theirs in spelled.items())
            columns = engine.execute(f"SELECT {chosen or 1} {rows}", name).fetchnumpy()
        except engine_error as error:
            text = str(error).splitlines()[0].replace(str(path), path.name)  # it names it, too
            text = text.replace(f'"{path.name}"', "it").replace(f"'{path.name}'", "it")
            raise InputError(f"{path}: {text[:300]}") from None
    if any(np.ma.is_masked(columns[name]) for name in NEEDED if name in columns):
        raise InputError(f"{path}: empty fields in needed columns")
    return {name: np.ma.filled(column, -1) for name, column in columns.items()}


def _csv(path: Path, left_out: list[str]) -> dict[str, Any]:
    rows = csv.reader(read_lines(path, left_out))
    try:
        return _read_rows(rows, path)
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num}: {error}") from None


def _read_rows(rows: Any, path: Path) -> dict[str, Any]:
    header: list[str] = next(rows, [])
    spelled = find_columns(header)
    check_columns(header, spelled.values(), path)
    indexes = [header.index(theirs) for theirs in spelled.values()]
    cells: list[list[str]] = [[] for _ in indexes]
    for count, row in enumerate(rows):
        if count >= TIMELINE_ROWS:
            raise InputError(f"{path}: more than {TIMELINE_ROWS:,} rows")
        if not row:
            continue
        if len(row) < len(header):
            raise InputError(f"{path}, line {rows.line_num}: {len(row)} fields of {len(header)}")
        for cell, index in zip(cells, indexes, strict=True):
            cell.append(row[index])
    return {
        ours: _column(cell, ours, f"{path}: column {theirs}")
        for (ours, theirs), cell in zip(spelled.items(), cells, strict=True)
    }


def _column(cells: list[str], name: str, where: str) -> Any:
    try:
        return np.array(cells) if name == "optype" else np.array(cells, float)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


def _timeline(columns: dict[str, Any], path: Path) -> OpTimeline:
    types, kind = np.unique(np.asarray(columns["optype"], str), return_inverse=True)
    whole = {
        name: _whole(columns[name], name, path)
        for name in ("step", "dp_rank", "stage", "seq_id", "mc", "gmc", "mb_id", "rank")
        if name in columns
    }
    start, duration = (_seconds(columns[name], name, path) for name in ("start_ts", "duration"))
    step, replica, stage = whole["step"], whole["dp_rank"], whole["stage"]
    if min(replica.min(), stage.min()) < 0 or max(replica.max(), stage.max()) > 1 << 20:
        raise InputError(f"{path}: dp_rank or stage out of range")
    number = whole["seq_id"] if "seq_id" in whole else _numbers(step, replica, stage, kind, start)
    key = _keys(kind, number, stage, path)
    steps, left_out = _like_the_others(step, replica, key, path)
    keep = np.isin(step, steps)
    ops, op = np.unique(key[keep], return_inverse=True)
    lane = np.searchsorted(steps, step[keep]), replica[keep]
    replicas = int(replica.max()) + 1
    shape = (len(ops), len(steps), replicas)
    if np.prod(shape, dtype=np.float64) != keep.sum():
        raise InputError(f"{path}: replicas have different operations in one step")

    def spread(column: Any) -> Any:
        table = np.empty(shape, column.dtype)
        table[op, lane[0], lane[1]] = column[keep]
        return table

    stages = spread(stage)[:, 0, 0]
    chunk = spread(whole["mc"])[:, 0, 0] if "mc" in whole else np.zeros(len(ops), np.int64)
    pp = int(stages.max()) + 1
    start, duration = spread(start), spread(duration)
    ranks = np.add.outer(np.arange(replicas), np.arange(pp) * replicas)
    if "rank" in whole:
        ranks = np.zeros((replicas, pp), np.int64)
        ranks[replica, stage] = whole["rank"]
    gpus, notes = _gpus(path)
    return OpTimeline(
        pattern=Pattern(
            optype=tuple(types[spread(kind)[:, 0, 0]].tolist()),
            number=spread(number)[:, 0, 0],
            stage=stages,
            chunk=chunk,
            global_chunk=spread(whole["gmc"])[:, 0, 0] if "gmc" in whole else chunk * pp + stages,
            start=start[:, 0, 0],
            end=start[:, 0, 0] + duration[:, 0, 0],
        ),
        steps=tuple(steps.tolist()),
        replicas=replicas,
        start=start,
        duration=duration,
        micro_batch=spread(whole["mb_id"]) if "mb_id" in whole else None,
        ranks=ranks,
        gpus_per_worker=gpus,
        left_out=left_out,
        notes=notes,
    )


def _whole(column: Any, name: str, path: Path) -> Ints:
    values = np.asarray(column, np.float64)
    if not np.isfinite(values).all() or np.abs(values).max(initial=0) > 1 << 53:
        raise InputError(f"{path}: column {name} has values that are not whole numbers")
    return values.astype(np.int64)


def _seconds(column: Any, name: str, path: Path) -> Floats:
    values = np.asarray(column)
    if values.dtype.kind != "f":
        values = values.astype(np.float64)
    if not np.isfinite(values).all() or np.abs(values).max(initial=0) > 1e12:
        raise InputError(f"{path}: column {name} has values that are not times")
    if name == "duration" and values.min() < 0:
        raise InputError(f"{path}: an operation of {values.min():g} s")
    return values


def _numbers(step: Ints, replica: Ints, stage: Ints, kind: Ints, start: Floats) -> Ints:
    """Number the operations of one type on one worker in one step, in order of start."""
    order = np.lexsort((start, kind, stage, replica, step))
    same = np.ones(len(order), bool)
    for column in (step, replica, stage, kind):
        same[1:] &= column[order][1:] == column[order][:-1]
    same[0] = False
    first = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order)) - first
    return numbers


def _keys(kind: Ints, number: Ints, stage: Ints, path: Path) -> Ints:
    if number.min() < 0 or number.max() > 1 << 24:
        raise InputError(f"{path}: seq_id out of range")
    return (stage * (int(kind.max()) + 1) + kind) * (int(number.max()) + 1) + number


def _like_the_others(
    step: Ints, replica: Ints, key: Ints, path: Path
) -> tuple[Ints, tuple[str, ...]]:
    """Keep the steps with the operations that most steps have; others, cut off or of other
    micro-batches, are left out.
    """
    order = np.lexsort((key, replica, step))
    steps, first = np.unique(step[order], return_index=True)
    parts = np.split(np.stack([replica[order], key[order]]), first[1:], axis=1)
    prints = [part.tobytes() for part in parts]
    usual, count = Counter(prints).most_common(1)[0]
    pairs = np.frombuffer(usual, np.int64).reshape(2, -1)
    if (np.diff(pairs, axis=1) == 0).all(axis=0).any():
        raise InputError(f"{path}: an operation of a worker occurs twice in a step")
    kept = np.array([number for number, own in zip(steps, prints, strict=True) if own == usual])
    others = len(steps) - count
    return kept, (f"{others} of {len(steps)} steps: other operations than most",) if others else ()


def _gpus(path: Path) -> tuple[int, tuple[str, ...]]:
    """GPUs of a worker, which is a tensor-parallel group; its size is in the metadata beside the
    file, if there.
    """
    beside = path.with_name(path.stem.replace("trace", "meta") + ".yaml")
    sizes: dict[str, int] = {}
    broken: list[str] = []
    if beside != path and beside.is_file():
        for line in read_lines(beside, broken):
            if match := _SIZE.fullmatch(line):
                sizes[match[1]] = int(match[2])
    if "tp_size" in sizes:
        return max(sizes["tp_size"] * sizes.get("dsp_size", 1), 1), tuple(broken)
    unknown = "GPUs per worker unknown (no meta file beside the trace): 1 is assumed"
    return 1, (*broken, unknown)
