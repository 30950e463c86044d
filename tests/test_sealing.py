"""Sealed run folders: four tables of one schema, whole or not there."""

from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Any

import pytest

from computeflow.collection.sealing import seal
from computeflow.recorder.frames import MAGIC, packed_all
from computeflow.telemetry.source_registry import sort_files
from run_folder_maker import EPOCH_NS, MS, Training

duckdb = pytest.importorskip("duckdb")
PAGE = Path(__file__).parents[1] / "docs" / "sources" / "run-folder.md"


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as engine:
        found: list[tuple[Any, ...]] = engine.execute(
            re.sub(r"FROM (\w+)", rf"FROM read_parquet('{folder}/\1.parquet')", query)
        ).fetchall()
    return found


def test_every_step_span_and_collective_is_a_row(tmp_path: Path) -> None:
    folder = Training(ranks=3, steps=20, timed=True).write(tmp_path)
    sealed = seal(folder)
    assert not sealed.left_out
    assert sealed.rows["steps.parquet"] == 60 and sealed.rows["collectives.parquet"] == 180
    assert rows(folder, "SELECT count(*), min(step), max(optimizer_step) FROM steps") == [
        (60, 1, 20)
    ]
    ((seconds,),) = rows(folder, "SELECT sum(seconds) FROM steps")
    ((in_spans,),) = rows(folder, "SELECT sum(seconds) FROM spans")
    assert in_spans == pytest.approx(seconds)
    phases = dict(rows(folder, "SELECT phase, count(*) FROM spans GROUP BY phase"))
    assert phases == {"input": 60, "forward": 60, "backward": 60, "optimizer": 60, "gap": 120}
    ((start,),) = rows(folder, "SELECT epoch_us(min(start)) FROM steps")
    assert start == EPOCH_NS // 1000 + 2_000 * MS


def test_what_is_not_recorded_is_null(tmp_path: Path) -> None:
    (records,) = Training(ranks=1, steps=3).records()
    for record in records:
        for name in ("o", "tok", "loss"):
            record.pop(name, None)
    (tmp_path / "rank-0.attempt-0.cfr").write_bytes(MAGIC + packed_all(records))
    seal(tmp_path)
    query = "SELECT count(optimizer_step), count(tokens), count(loss), count(samples) FROM steps"
    assert rows(tmp_path, query) == [(0, 0, 0, 3)]
    assert rows(tmp_path, "SELECT count(finish), count(arrival) FROM collectives") == [(0, 9)]


def test_a_folder_is_sealed_again_and_stays_one_run(tmp_path: Path) -> None:
    folder = Training(steps=5).write(tmp_path)
    seal(folder)
    Training(steps=9).write(tmp_path)
    assert seal(folder).rows["steps.parquet"] == 18
    assert rows(folder, "SELECT count(*) FROM steps") == [(18,)]
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []
    found = sort_files([folder])
    assert set(found.files) == {"recording"} and not found.left_out


def test_without_duckdb_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Training(steps=5).write(tmp_path)
    real = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name == "duckdb":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    sealed = seal(folder)
    assert not sealed.rows and "computeflow[store]" in sealed.left_out[0]
    assert not list(folder.glob("*.parquet"))


def test_the_schema_is_the_documented_one(tmp_path: Path) -> None:
    seal(Training(steps=3).write(tmp_path))
    page = PAGE.read_text()
    for table in ("steps", "spans", "collectives", "events"):
        described = rows(tmp_path, f"DESCRIBE SELECT * FROM {table}")
        (line,) = re.findall(rf"^\| `{table}.parquet` \| (.*) \|$", page, re.M)
        assert re.findall(r"`(\w+)`", line) == [row[0] for row in described]
