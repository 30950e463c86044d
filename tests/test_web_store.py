"""A collector's store on the page: its figures agree with each other, and with what was told of it."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from computeflow.collection.outputs.snapshots import STATE_FILE
from page_client import page_client

STORE = Path(__file__).parent / "data" / "gpu_store"


def test_accounts_of_the_last_steps_are_those_of_their_ranks() -> None:
    flow = page_client(STORE).get("/flow?window=last").json()
    (band,) = (each for each in flow["bands"] if each["account"] == "input")
    (rank,) = band["ranks"]
    assert band["gpu_seconds"] == pytest.approx(rank["gpu_seconds"])


def test_the_price_of_serve_is_for_runs_whose_collector_had_none(tmp_path: Path) -> None:
    store = Path(shutil.copytree(STORE, tmp_path / "store"))
    (priced,) = page_client(store, price=3.0).get("/findings").json()["findings"]
    with sqlite3.connect(store / STATE_FILE) as state:
        state.execute("UPDATE runs SET data = json_set(data, '$.usd_per_gpu_hour', NULL)")
        state.execute(
            "UPDATE findings SET data = json_set(data, '$.usd_per_hour', NULL, '$.usd', NULL)"
        )
    (free,) = page_client(store).get("/findings").json()["findings"]
    assert free["usd"] is None
    (mine,) = page_client(store, price=3.0).get("/findings").json()["findings"]
    for name in ("usd_per_hour", "usd"):
        assert mine[name] == pytest.approx(priced[name] * 3.0 / 2.0)  # its collector's was $2.00
    latest = page_client(store, price=3.0).get("/runs").json()["runs"][0]
    assert latest["usd_per_hour"] == 3.0
