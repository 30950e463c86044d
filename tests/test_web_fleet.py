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
from computeflow.collection.store.state_reading import read_state
from computeflow.collection.store.store_folder import open_store
from computeflow.views import recorded_fleets
from computeflow.views.fleet_maps import HEALTH
from computeflow.web.sources.recordings.recorded_runs import RecordingOpening
from live_store_maker import LATE_RANK, RUN, late_rank, young_store
from live_value_maker import live_finding, live_node, live_run, write_store
from page_client import RUNS, page_client
from run_folder_maker import MS, Training

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


def positions(store: Path) -> dict[tuple[int, int], Any]:
    path = store / "state.sqlite"
    return read_state(path, lambda base: StateDatabase(path, reading=base).positions(RUN))


def test_places_of_ranks_are_known_as_soon_as_they_are_heard_of(tmp_path: Path) -> None:
    store = young_store(tmp_path)
    assert read_rank_places(store, [RUN]) == {RUN: {0: "node-0", 1: "node-1"}}
    assert positions(store) == {}, "how far they came follows with their journal"


def test_places_are_kept_when_the_journal_is_sealed(tmp_path: Path) -> None:
    store = young_store(tmp_path, sealed=True)
    assert read_rank_places(store, [RUN]) == {RUN: {0: "node-0", 1: "node-1"}}
    assert set(positions(store)) == {(0, 0), (1, 0)}


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
        "healthy",
        "open finding",
    ]
    assert str(LATE_RANK) in measures["health"]["by_cell"]


def test_the_headline_counts_nodes_with_problems_once_each(tmp_path: Path) -> None:
    """A finding on a rank whose GPU is known counts as one on its node."""
    shown = page_client(young_store(tmp_path)).get("/fleet").json()
    assert shown["headline"] == "2 ranks on 2 nodes: 1 has an open finding."
    assert shown["problems"] == {"open finding": 1}
    run = live_run()
    findings = [live_finding(ranks=(3, 17), nodes=("node-00", "node-02"))]
    silent = [live_node(node=run.nodes[3], signals=(), last_seen=time.time() - 1e3)]
    shown = page_client(write_store(tmp_path / "b", [run], findings, silent)).get("/fleet").json()
    assert shown["problems"] == {"open finding": 2, "silent": 1}
    assert shown["headline"].endswith(" nodes: 2 have open findings, 1 is silent.")


def test_a_late_rank_whose_gpu_is_not_known_stands_for_its_node(tmp_path: Path) -> None:
    run = live_run()
    finding = live_finding(ranks=(3, 17), nodes=("node-00", "node-02"))
    agents = [live_node(node=name, signals=(), last_seen=time.time() + 1e3) for name in run.nodes]
    _, measures = measures_of(write_store(tmp_path, [run], [finding], agents))
    assert measures["wait"]["by_cell"] == {}
    assert measures["wait"]["by_node"][:4] == [0.21, 0.0, 0.012, 0.0]
    found = [HEALTH[int(each)] for each in measures["health"]["by_node"][:3]]
    assert found == ["open finding", "healthy", "open finding"]


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


# Recordings


def fleet_of(folder: Path, query: str = "") -> dict[str, Any]:
    content: dict[str, Any] = page_client(folder).get(f"/fleet{query}").json()
    return content


def no_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a map of recorded runs audits none of them")

    monkeypatch.setattr(RecordingOpening, "_audit", refuse)


def test_all_recorded_runs_are_on_the_map_each_with_its_own_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_audits(monkeypatch)
    content = fleet_of(RUNS)
    shown = content["result"]
    assert content["headline"] == "14 ranks of 7 recorded runs on 1 node."
    assert (content["of"], shown["of"], content["left_out"]) == ("rank", "rank", [])
    assert shown["grouped_by"] == "run"
    names = [run["name"] for run in shown["runs"]]
    assert [group["name"] for group in shown["groups"]] == names and len(set(names)) == 7
    assert all(group["nodes"] == 1 for group in shown["groups"])
    assert shown["cells"] == [2] * 7 and shown["run_of"] == [*range(7)]
    assert shown["ranks"] == [[0, 0, 1, 1]] * 7
    waits, mfu, *_ = shown["measures"]
    slow = 2 * [run["id"] for run in shown["runs"]].index("slow")
    pair = [waits["by_cell"][str(slow)], waits["by_cell"][str(slow + 1)]]
    assert max(pair) > 0.03 > min(pair)
    assert mfu["missing"] == "the FLOPs of the model, or the device, are not known of 7 of 7 runs"


def test_one_recorded_run_that_is_asked_for_is_alone_on_the_map() -> None:
    content = fleet_of(RUNS, "?run=slow")
    assert content["headline"] == "2 ranks on 1 node."
    assert content["left_out"] == ["6 other runs: this one was asked for"]
    assert [run["id"] for run in content["result"]["runs"]] == ["slow"]
    assert content["result"]["groups"] == [{"name": "all nodes", "above": "", "nodes": 1}]


def test_runs_whose_waits_are_not_known_say_why_and_a_gpu_is_one(tmp_path: Path) -> None:
    Training(steps=40, device="cuda", extra=late_rank).write(tmp_path / "pair")
    alone = Training(steps=40, device="cuda", ranks=1, begins=100_000 * MS)
    alone.write(tmp_path / "alone")
    content = fleet_of(tmp_path)
    assert content["of"] == "GPU"
    assert content["headline"] == "3 GPUs of 2 recorded runs on 1 node."
    wait = content["result"]["measures"][0]
    assert wait["missing"] == "" and wait["by_node"] == [None, None]
    assert wait["missing_of"].startswith("who waits is not known of 1 of 2 runs: it needs files of")
    assert wait["by_cell"] == {"1": 0.0, "2": pytest.approx(WAIT, rel=0.05)}
    Training(steps=40, begins=200_000 * MS).write(tmp_path / "cpu")
    assert fleet_of(tmp_path)["of"] == "rank"


def test_runs_that_do_not_fit_on_the_map_and_unreadable_ones_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        Training(steps=10, begins=number * 100_000 * MS).write(tmp_path / f"run-{number}")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "rank-0.attempt-0.cfr").write_bytes(b"CFREC\x09\r\n")
    monkeypatch.setattr(recorded_fleets, "MAX_CELLS", 5)
    content = fleet_of(tmp_path)
    assert content["headline"] == "4 ranks of 2 recorded runs on 1 node. 4 more are not shown."
    assert content["result"]["run_of"] == [0, 1]
    assert [run["id"] for run in content["result"]["runs"]] == [
        "run-3",
        "run-2",
    ]
    most, unread = content["left_out"]
    assert most.startswith("2 runs: the map has") and "format version 9" in unread


def test_a_watched_run_on_the_host_has_ranks_and_no_gpus(tmp_path: Path) -> None:
    content = page_client(young_store(tmp_path)).get("/fleet").json()
    assert content["of"] == "rank" and content["headline"].startswith("2 ranks on 2 nodes")
    agent = live_node(node="node-0", gpus=1)
    mixed = write_store(tmp_path / "mixed", [live_run(device="cpu")], [], [agent])
    assert page_client(mixed).get("/fleet").json()["of"] == "GPU"


def test_runs_on_the_host_have_rank_seconds() -> None:
    assert page_client(RUNS).get("/runs").json()["headline"].startswith("7 runs, 366 rank-s")
