"""Batches: what was recorded comes out as it went in, and what cannot be is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from computeflow.collection.wire.batches import (
    MAGIC,
    Batch,
    RankPart,
    make_batch,
    pack_batch,
    rank_files,
    unpack_batch,
)
from computeflow.errors import InputError
from computeflow.telemetry.run_folders.rank_file import RankFile, RankStart, cut, join_parts
from computeflow.telemetry.run_folders.rank_reading import RankFollower, read_rank_file

FILES = sorted((Path(__file__).parent / "data" / "run_folders").glob("*/*.cfr"))


def parts_of(path: Path, records: int = 37) -> list[RankPart]:
    follower, parts = RankFollower(path), list[RankPart]()
    while (file := follower.read(records)) is not None:
        first = sum(part.records for part in parts)
        parts.append(RankPart(first=first, records=follower.records - first, file=file))
    follower.close()
    return parts


def batch_of(*parts: RankPart) -> Batch:
    return make_batch(parts, agent="a", number=1, node="n", sent=1, run="run")


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return bool(one == other)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_file_read_part_by_part_is_the_file(path: Path) -> None:
    assert same(join_parts([part.file for part in parts_of(path)]), read_rank_file(path, 1 << 30))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_is_recorded_comes_over_the_wire(path: Path) -> None:
    starts: dict[tuple[int, int], RankStart] = {}
    come: list[RankFile] = []
    for part in parts_of(path):
        (got,) = rank_files(unpack_batch(pack_batch(batch_of(part))), starts)
        starts[got.file.start.rank, got.file.start.attempt] = got.file.start
        come.append(got.file)
    whole, there = read_rank_file(path, 1 << 30), join_parts(come)
    for name in (
        "steps",
        "pieces",
        "leads",
        "events",
        "beats",
        "memory",
        "names",
        "ended",
        "start",
    ):
        assert same(getattr(whole, name), getattr(there, name)), name
    assert same(whole.arrivals.at, there.arrivals.at)


def test_a_window_has_the_steps_that_ended_in_it() -> None:
    file = read_rank_file(FILES[0], 1 << 30)
    ends = file.steps.end
    window = cut(file, int(ends[9]), int(ends[19]))
    assert window.steps.number.tolist() == file.steps.number[10:20].tolist()
    assert (window.pieces.end - window.pieces.start).sum() == ends[19] - window.steps.begin[0]


def column(table: str, name: str, value: Any) -> Callable[[Batch], Batch]:
    def changed(batch: Batch) -> Batch:
        columns = dict(getattr(batch, table))
        values = columns[name].copy()
        values[-1] = value
        more: dict[str, Any] = {table: columns | {name: values}}
        return replace(batch, **more)

    return changed


def counted(**more: Any) -> Callable[[Batch], Batch]:
    return lambda batch: replace(batch, ranks=(replace(batch.ranks[0], **more),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (column("steps", "end", -5), "overlap"),
        (column("steps", "end", 2**60), "impossible times"),
        (column("pieces", "length", 0), "do not fill"),
        (column("pieces", "length", 1 << 40), "do not fill"),
        (column("pieces", "kind", 77), "no known kind"),
        (column("arrivals", "group", 99), "no known group"),
        (column("arrivals", "at", 2**60), "impossible times"),
        (counted(steps=3), "is no column"),
        (counted(records=0), "other records"),
        (counted(rank=-1), "impossible numbers"),
        (lambda batch: replace(batch, node=""), "has no name"),
        (lambda batch: replace(batch, run="x" * 300), "characters"),
        (lambda batch: replace(batch, steps={}), "other columns"),
        (
            lambda batch: replace(batch, steps=batch.steps | {"begin": batch.steps["begin"] * 1.0}),
            "is no column",
        ),
    ],
)
def test_a_batch_that_cannot_be_is_refused(change: Callable[[Batch], Batch], message: str) -> None:
    good = batch_of(next(part for part in parts_of(FILES[0], 120) if len(part.file.arrivals)))
    assert unpack_batch(pack_batch(good)).ranks == good.ranks
    with pytest.raises(InputError, match=message):
        unpack_batch(pack_batch(change(good)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not a batch"),
        (b"GET / HTTP", "not a batch"),
        (MAGIC[:5] + b"\x07", "version 07"),
        (MAGIC + b"rubbish", "not compressed"),
        (pack_batch(batch_of())[:-4], "cut off"),
        (bytes(9 << 20), "at most"),
    ],
)
def test_a_body_that_is_no_batch_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        unpack_batch(body)
