"""Who reads a collector's store leaves it as it was, and sees what a writer has written."""

from __future__ import annotations

import shutil
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

import computeflow as cf
from computeflow.answers.action_lists import list_actions, report_actions, show_action
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.state_reading import read_state
from live_value_maker import live_run
from page_browser import served
from page_client import made_store, page_client

PAGES = ("/flow", "/findings", "/runs", "/fleet", "/readings/7b-20261118")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names(database: sqlite3.Connection) -> list[str]:
    return [name for (name,) in database.execute("SELECT run FROM runs ORDER BY run")]


def test_pages_and_lists_of_a_store_leave_it_as_it_was(tmp_path: Path) -> None:
    store, _ = made_store(tmp_path)
    before = contents(store)
    client = page_client(store)
    for page in PAGES:
        assert client.get(page).status_code == 200
    cf.top(store=store)
    list_actions(store=store)
    report_actions(store=store)
    show_action(1, store=store)
    assert contents(store) == before


def test_what_a_writer_has_just_written_is_read_and_its_files_go_with_it(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    with closing(StateDatabase(path)) as state:
        for number in range(3):
            state.save_view([], [live_run(run=f"run-{number}")])
            assert len(read_state(path, names)) == number + 1
        assert len(contents(tmp_path)) == 3
    assert [*contents(tmp_path)] == ["state.sqlite"]
    assert read_state(path, names) == ["run-0", "run-1", "run-2"]
    assert [*contents(tmp_path)] == ["state.sqlite"]


def test_the_log_of_a_collector_that_was_killed_is_read(tmp_path: Path) -> None:
    path, killed = tmp_path / "state.sqlite", tmp_path / "killed"
    killed.mkdir()
    with closing(StateDatabase(path)) as state:
        state.save_view([], [live_run(run="last")])
        for name in ("state.sqlite", "state.sqlite-wal"):
            shutil.copy(tmp_path / name, killed / name)
    assert read_state(killed / "state.sqlite", names) == ["last"]


def test_a_database_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    StateDatabase(path).close()
    seen: list[int] = []

    def look(database: sqlite3.Connection) -> list[str]:
        found = names(database)
        if not seen:
            with closing(StateDatabase(path)) as state:
                state.save_view([], [live_run(run=f"run-{n}") for n in range(100)])
        seen.append(len(found))
        return found

    assert len(read_state(path, look)) == 100
    assert seen == [0, 100]


def test_a_damaged_database_is_said_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        read_state(path, names)
    assert [*contents(tmp_path)] == ["state.sqlite"]


@pytest.mark.live
def test_a_server_that_is_told_to_stop_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    store, _ = made_store(tmp_path)
    before = contents(store)
    with served(store) as server:
        for page in PAGES:
            asked = urllib.request.Request(
                f"{server.base}{page}.json", headers={"Authorization": f"Bearer {server.token}"}
            )
            assert urllib.request.urlopen(asked, timeout=60).status == 200
    assert contents(store) == before
