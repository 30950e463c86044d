"""The fleet's map: what a young run, or a small one, does not say is unknown, and never zero."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from computeflow.collection.outputs.rank_places import read_rank_places
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import open_store
from computeflow.views.fleet_maps import HEALTH
from live_store_maker import LATE_RANK, RUN, young_store
from live_value_maker import live_finding, live_node, live_run, write_store
from page_client import page_client

WAIT = 0.06


def measures_of(store: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    shown = page_client(store).get("/fleet").json()["result"]
    return shown, {each["name"]: each for each in shown["measures"]}


def values(measure: dict[str, Any], cells: int) -> list[float | None]:
    """What the page shows of each GPU, where each has its own node."""
    by_node = measure["by_node"]
    return [
        measure["by_cell"].get(str(cell), by_node[min(cell, len(by_node) - 1)])
        for cell in range(cells)
    ]


def forget_places(store: Path) -> None:
    """As in a store of a collector that noted places only with a sealed journal."""
    with closing(sqlite3.connect(store / "state.sqlite")) as database, database:
        database.execute("DELETE FROM ranks")


def test_places_of_ranks_are_known_as_soon_as_they_are_heard_of(tmp_path: Path) -> None:
    store = young_store(tmp_path)
    assert read_rank_places(store, [RUN]) == {RUN: {0: "node-0", 1: "node-1"}}
    state = StateDatabase(store / "state.sqlite", read_only=True)
    assert state.positions(RUN) == {}, "how far they came follows with their journal"
    state.close()


def test_places_are_kept_when_the_journal_is_sealed(tmp_path: Path) -> None:
    store = young_store(tmp_path, sealed=True)
    assert read_rank_places(store, [RUN]) == {RUN: {0: "node-0", 1: "node-1"}}
    state = StateDatabase(store / "state.sqlite", read_only=True)
    assert set(state.positions(RUN)) == {(0, 0), (1, 0)}
    state.close()


@pytest.mark.parametrize("places", ["noted", "from the slowest ranks"])
def test_the_late_rank_of_a_young_run_is_on_the_map(tmp_path: Path, places: str) -> None:
    store = young_store(tmp_path)
    if places != "noted":
        forget_places(store)
    shown, measures = measures_of(store)
    assert (shown["nodes"], shown["cells"], shown["ranks"]) == (
        ["node-0", "node-1"],
        [1, 1],
        [[0, 0], [1, 1]],
    )
    assert values(measures["wait"], 2) == [0.0, pytest.approx(WAIT, rel=0.05)]
    assert [HEALTH[int(each or 0)] for each in values(measures["health"], 2)] == [
        "nothing wrong",
        "open finding",
    ]
    assert str(LATE_RANK) in measures["health"]["by_cell"]


def test_a_late_rank_whose_gpu_is_not_known_stands_for_its_node(tmp_path: Path) -> None:
    run = live_run()
    finding = live_finding(ranks=(3, 17), nodes=("node-00", "node-02"))
    agents = [live_node(node=name, signals=(), last_seen=time.time() + 1e3) for name in run.nodes]
    _, measures = measures_of(write_store(tmp_path, [run], [finding], agents))
    assert measures["wait"]["by_cell"] == {}
    assert measures["wait"]["by_node"][:4] == [0.21, 0.0, 0.012, 0.0]
    found = [HEALTH[int(each)] for each in measures["health"]["by_node"][:3]]
    assert found == ["open finding", "nothing wrong", "open finding"]


def test_lateness_that_is_not_known_is_not_zero(tmp_path: Path) -> None:
    """Ranks that nobody compared, and those of a run that says nothing of lateness at all."""
    one, two, *_ = live_run().slowest
    known = live_run(
        world=2,
        ranks=2,
        nodes=("a", "b"),
        slowest=(replace(one, rank=0, node="a"), replace(two, rank=1, node="b", late_seconds=None)),
    )
    alone = live_run(
        run="alone",
        world=1,
        ranks=1,
        nodes=("c",),
        mfu=None,
        slowest=(replace(one, rank=0, node="c", late_seconds=None),),
    )
    _, measures = measures_of(write_store(tmp_path, [known, alone]))
    assert values(measures["wait"], 3) == [0.21, None, None]
    assert values(measures["mfu"], 3) == [0.412, 0.412, None]
    assert values(measures["health"], 3) == [None] * 3
    assert measures["health"]["missing"]


def test_gpus_that_a_run_does_not_use_have_neither_its_mfu_nor_its_waits(tmp_path: Path) -> None:
    one, two, *_ = live_run().slowest
    run = live_run(
        world=2,
        ranks=2,
        nodes=("a",),
        slowest=(replace(one, rank=0, node="a"), replace(two, rank=1, node="a", late_seconds=-0.1)),
    )
    store = write_store(tmp_path, [run], [], [live_node(node="a", gpus=4)])
    shown, measures = measures_of(store)
    assert shown["cells"] == [4] and shown["ranks"] == [[0, 1]]
    assert values(measures["wait"], 4) == [0.21, 0.0, None, None]
    assert values(measures["mfu"], 4) == [0.412, 0.412, None, None]


def test_a_node_of_two_runs_has_the_ranks_of_the_one_that_is_shown(tmp_path: Path) -> None:
    one, *_ = live_run().slowest
    runs = [
        live_run(
            run="first", world=1, ranks=1, nodes=("a",), slowest=(replace(one, rank=5, node="a"),)
        ),
        live_run(run="second", world=64, ranks=64, nodes=("a",), mfu=0.2, slowest=()),
    ]
    store = write_store(tmp_path, runs, [], [live_node(node="a", gpus=1)])
    shown, measures = measures_of(store)
    assert shown["ranks"] == [[]] and shown["run_of"] == [1]
    assert measures["wait"]["by_node"] == [None] and measures["mfu"]["by_node"] == [0.2]


def test_a_rank_that_moves_is_where_it_was_heard_last(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    state = StateDatabase(store.state)
    state.add_places({(RUN, 0, 0): ("a", 1), (RUN, 1, 0): ("b", 1)})
    state.add_places({(RUN, 0, 0): ("c", 2)})
    state.close()
    assert read_rank_places(store.path, [RUN]) == {RUN: {0: "c", 1: "b"}}
