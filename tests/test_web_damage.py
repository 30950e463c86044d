"""Stores that are damaged, locked or on a full disk: the rest is shown, what is left out is said."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from computeflow.answers import action_lists
from computeflow.collection.outputs.snapshots import STATE_FILE
from computeflow.collection.store import state_reading
from computeflow.collection.store.segment_tables import SCHEMAS
from computeflow.collection.store.state_database import StateDatabase
from computeflow.errors import InputError
from computeflow.files.parquet import parquet_engine
from computeflow.web import page_routes
from computeflow.web.sources.remembered import Remembered
from page_client import ACTING, OPERATOR, made_store, page_client

STORE = Path(__file__).parent / "data" / "gpu_store"
RUN = "run-llama-1b-e060531d8c"
LONGEST = 300


@pytest.fixture
def store(tmp_path: Path) -> Path:
    copied = tmp_path / "store"
    shutil.copytree(STORE, copied)
    return copied


def _steps(client: Any) -> tuple[int, list[str]]:
    content = client.get(f"/runs/{RUN}").json()
    return len(content["curve"]["steps"]), content["left_out"]


# The journal and sealed files


def test_a_flipped_byte_of_a_journal_is_said(store: Path) -> None:
    whole, none = _steps(page_client(store))
    journal = store / "journal" / "000001.cfj"
    content = bytearray(journal.read_bytes())
    content[len(content) // 3] ^= 0xFF
    journal.write_bytes(content)
    client = page_client(store)
    fewer, said = _steps(client)
    assert none == [] and fewer < whole
    assert len(said) == 1 and said[0].startswith("left out: 000001.cfj: damaged behind byte ")
    for page in (f"/readings/{RUN}", f"/timeline/{RUN}"):
        assert client.get(page).json()["left_out"] == said


def test_another_journal_that_is_none_hides_no_run(store: Path) -> None:
    whole = _steps(page_client(store))[0]
    (store / "journal" / "000002.cfj").write_bytes(b"\xff" * 200_000)
    (store / "journal" / "000003.cfj").symlink_to("/nonexistent")
    client = page_client(store)
    assert _steps(client) == (
        whole,
        [
            "left out: 000002.cfj: not a journal of this version, 200,000 bytes",
            "left out: 000003.cfj: a link to nothing, 0 bytes",
        ],
    )
    assert client.get(f"/timeline/{RUN}").status_code == 200


@pytest.mark.parametrize("kind", ["garbage", "columns"])
def test_a_sealed_file_that_is_damaged_hides_no_run(store: Path, kind: str) -> None:
    whole = _steps(page_client(store))[0]
    for table in ("steps", "spans", "leads", "readings"):
        folder = store / "parquet" / "host" / table / "20261118"
        folder.mkdir(parents=True)
        _sealed(folder / "segment-000001.parquet", SCHEMAS[table])
        damaged = folder / "segment-000002.parquet"
        if kind == "garbage":
            damaged.write_bytes(b"PAR1garbagePAR1")
        else:
            _sealed(damaged, "step VARCHAR, seconds DOUBLE")
    client = page_client(store)
    steps, said = _steps(client)
    assert steps == whole and len(said) == 1 and "steps/20261118/segment-000002.parquet" in said[0]
    readings = client.get(f"/readings/{RUN}").json()
    assert readings["readings"]["meters"] and len(readings["left_out"]) == 1
    step = client.get(f"/timeline/{RUN}").json()
    assert step["timeline"] and len(step["left_out"]) == 3


def _sealed(path: Path, schema: str) -> None:
    with parquet_engine("a test") as (engine, _):
        engine.execute(f"CREATE TABLE made ({schema})")
        engine.execute(f"COPY made TO '{path}' (FORMAT parquet)")


def test_a_row_of_the_state_that_cannot_be_read_is_said_on_every_page(store: Path) -> None:
    with sqlite3.connect(store / STATE_FILE) as database:
        database.execute("INSERT INTO runs VALUES ('gone', 'not json', 1)")
    client = page_client(store)
    pages = ("/runs", "/fleet", "/flow", "/findings", f"/runs/{RUN}", f"/timeline/{RUN}")
    for page in (*pages, f"/readings/{RUN}"):
        (said,) = client.get(page).json()["left_out"]
        assert f"{STATE_FILE}: runs" in said, page


# Actions


@pytest.mark.parametrize(
    "change", ["data = 'not json'", "data = '{}'", "data = '[1e999]'", "state = 'weird'"]
)
def test_an_action_that_cannot_be_read_is_left_out_and_said(tmp_path: Path, change: str) -> None:
    store = made_store(tmp_path)[0]
    with sqlite3.connect(store / STATE_FILE) as base:
        base.execute(f"UPDATE actions SET {change} WHERE id = 1")
    client = page_client(store, OPERATOR)
    content = client.get("/findings").json()
    assert [each["id"] for each in content["actions"]] == [2]
    assert len(content["left_out"]) == 1 and "action 1" in content["left_out"][0]
    assert client.post("/actions/2/approve", headers=ACTING, json={}).status_code == 200
    assert client.post("/actions/1/approve", headers=ACTING, json={}).status_code == 404


def test_a_full_disk_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made_store(tmp_path)[0]
    client = page_client(store, OPERATOR)

    def full(*_: Any) -> bool:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(StateDatabase, "change_action", full)
    given = client.post("/actions/2/approve", headers=ACTING, json={})
    assert given.status_code == 503 and "disk is full" in given.json()["error"]


def test_a_store_that_another_process_writes_to_is_waited_for_briefly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made_store(tmp_path)[0]
    assert action_lists._BUSY_SECONDS <= 5.0
    monkeypatch.setattr(action_lists, "_BUSY_SECONDS", 0.01)
    client = page_client(store, OPERATOR)
    other = sqlite3.connect(store / STATE_FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    given = client.post("/actions/2/approve", headers=ACTING, json={})
    assert given.status_code == 503 and "locked" in given.json()["error"]
    other.execute("ROLLBACK")
    assert client.post("/actions/2/approve", headers=ACTING, json={}).status_code == 200


def test_a_table_that_is_gone_is_said_in_one_line(tmp_path: Path) -> None:
    store = made_store(tmp_path)[0]
    with sqlite3.connect(store / STATE_FILE) as base:
        base.execute("DROP TABLE actions")
    given = page_client(store).get("/findings")
    assert given.status_code == 503 and "no such table" in given.json()["error"]


@pytest.mark.parametrize("started", [-1e300, 1e300, 0.0])
def test_a_run_of_another_age_has_its_readings_page(store: Path, started: float) -> None:
    with sqlite3.connect(store / STATE_FILE) as base:
        base.execute("UPDATE runs SET data = json_set(data, '$.started', ?)", (started,))
    assert page_client(store).get(f"/readings/{RUN}").status_code in (200, 400)


def test_a_journal_that_is_mended_is_shown_at_once(store: Path) -> None:
    client = page_client(store)
    whole = client.get(f"/timeline/{RUN}").json()
    journal = store / "journal" / "000001.cfj"
    content = journal.read_bytes()
    journal.write_bytes(b"\xff" * len(content))
    for address in (f"/timeline/{RUN}?step=7", f"/timeline/{RUN}?step=8"):
        damaged = client.get(address).json()
        assert damaged["empty"] and "000001.cfj" in damaged["left_out"][0]
    journal.write_bytes(content)
    for step in (7, 8):
        mended = client.get(f"/timeline/{RUN}?step={step}").json()
        assert mended["timeline"]["step"] == step and not mended["left_out"]
    assert client.get(f"/timeline/{RUN}").json() == whole


def test_a_store_that_is_locked_is_said_as_such_and_holds_up_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made_store(tmp_path)[0]
    assert state_reading._BUSY_SECONDS <= 5.0
    monkeypatch.setattr(state_reading, "_BUSY_SECONDS", 0.5)
    monkeypatch.setattr(page_routes, "_LOOK_SECONDS", 0.01)
    client = page_client(store, OPERATOR)
    other = sqlite3.connect(store / STATE_FILE, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("CREATE TABLE more (x)")  # in the log, which readers must not miss
    soon = client.get("/runs", headers={"prefer": "wait=0"})
    assert soon.status_code == 202 and soon.json()["working"]["progress"] == "reading the store"
    assert client.get("/catalog").status_code == client.get("/static/api.js").status_code == 200
    for given in (client.get("/runs"), client.post("/actions/2/approve", headers=ACTING, json={})):
        assert given.status_code == 503 and "locked" in given.json()["error"]
    other.close()
    assert client.get("/runs").status_code == 200


def test_who_waits_for_a_reading_that_fails_does_not_try_it_again() -> None:
    remembered, began, go = Remembered(), threading.Event(), threading.Event()
    tries, failures = [], []

    def make() -> None:
        tries.append(1)
        began.set()
        go.wait(LONGEST)
        raise InputError("locked")

    def ask() -> None:
        with pytest.raises(InputError):
            remembered.get("read", 1, make)
        failures.append(1)

    askers = [threading.Thread(target=ask) for _ in range(5)]
    askers[0].start()
    assert began.wait(LONGEST)
    for each in askers[1:]:
        each.start()
    while sum(each.is_alive() for each in askers) < 5:
        pass
    time.sleep(0.2)  # until they wait
    go.set()
    for each in askers:
        each.join(LONGEST)
    assert len(tries) == 1 and len(failures) == 5
    assert remembered.get("read", 1, lambda: "now") == "now"
