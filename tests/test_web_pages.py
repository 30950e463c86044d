"""Plan, fleet, decide, simulate, catalog, accuracy as JSON: the library's answers, in bounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from benchmarks.made_fleet import write_fleet
from fastapi.testclient import TestClient

import computeflow as cf
from computeflow.answers.catalogs import list_rows, overview
from computeflow.answers.live_tops import top
from computeflow.catalog import load_catalog
from computeflow.catalog.lookup import GROUPS, group_rows
from computeflow.cluster.topology import read_topology
from computeflow.collection.collector.clients import RefusedError
from computeflow.collection.online.live_values import LiveGpu
from computeflow.collection.outputs.rank_places import read_rank_places
from computeflow.errors import InputError, UnknownNameError
from computeflow.views.fleet_maps import HEALTH, fleet_map
from computeflow.web.application import PageServer
from computeflow.web.sources.opening import AuditOptions, open_directory
from computeflow.web.workers.workbench import MAX_WAITING, Lane, Workbench, Working
from computeflow.web.workers.worker_process import RunHere, WorkerProcess
from computeflow.web.wrong_fields import WrongFieldError, field_of, form_text
from live_value_maker import live_run
from page_client import READER, RUNS, doorkeeper

FACTS = load_catalog([])
SMALL = "model=llama-3.1-8b&gpus=16&batch=64"
LONGEST = 300.0


def client_of(path: Path, **more: Any) -> TestClient:
    """Answers are computed in this process."""
    opening = open_directory(path, AuditOptions(price=2.5))
    server = PageServer(opening, doorkeeper(), Workbench(RunHere), **more)
    client = TestClient(server.application, base_url="http://localhost")
    client.headers["authorization"] = f"Bearer {READER}"
    return client


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    yield client_of(RUNS)


def answer(client: TestClient, address: str) -> dict[str, Any]:
    """The content of an address, asked for as often as it takes."""
    end = time.monotonic() + LONGEST
    while True:
        response = client.get(address)
        if response.status_code != 202:
            assert response.status_code == 200, response.text
            content: dict[str, Any] = response.json()
            return content
        assert set(response.json()["working"]) == {"progress", "seconds"}
        assert time.monotonic() < end


def without_times(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != "search_seconds"}


# Plan


@pytest.mark.parametrize("search", ["quick", "full"])
def test_a_plan_is_the_library_s(client: TestClient, search: str) -> None:
    content = answer(
        client, f"/plan?{SMALL}&tokens=100B&deadline=60&price=2&precision=fp8&search={search}"
    )
    plan = cf.plan(
        "llama-3.1-8b",
        on="h100-sxm:16",
        seq_len=8192,
        global_batch=64,
        precision="fp8",
        tokens="100B",
        deadline="60d",
        price=2.0,
        quick=search == "quick",
    )
    assert without_times(content["result"]) == without_times(plan.to_dict())
    assert content["headline"] == plan.headline
    assert [part["kind"] for part in content["parts"]] == ["figure"] * 3


def test_the_quick_search_finds_the_plan_of_the_whole_one_where_networks_are_fast() -> None:
    options: dict[str, Any] = {"on": "h100-sxm:64", "seq_len": 8192, "global_batch": 256}
    quick = cf.plan("llama-3.1-8b", **options, quick=True, top=1).to_dict()["plans"][0]
    whole = cf.plan("llama-3.1-8b", **options, top=1).to_dict()["plans"][0]
    assert quick["step_seconds"] <= 1.01 * whole["step_seconds"]
    with pytest.raises(InputError, match="--quick"):
        cf.plan("llama-3.1-8b", **options, quick=True, fix={"tp": 2})


def test_the_front_has_fewer_and_more_gpus(client: TestClient) -> None:
    content = answer(client, f"/plan/front?{SMALL}")
    expected = cf.plan(
        "llama-3.1-8b",
        on="h100-sxm:128",
        seq_len=8192,
        global_batch=64,
        gpus=(2, 128),
        quick=True,
    )
    assert content["result"] == expected.to_dict()
    assert [row["gpus"] for row in content["result"]["front"]][-1] == 128


def test_the_front_of_one_node_goes_beyond_it(client: TestClient) -> None:
    content = answer(client, "/plan/front?model=llama-3.1-8b&gpus=7&batch=56")
    assert [row["gpus"] for row in content["result"]["front"]] == [7, 14, 28, 56]
    assert content["left_out"] == [] and content["note"] == ""


def test_what_the_front_leaves_out_is_said_and_fails_nothing_else(client: TestClient) -> None:
    content = answer(client, "/plan/front?model=llama-3.1-8b&gpus=4&batch=64&device=rtx-4090")
    planned = [row["gpus"] for row in content["result"]["front"]]
    assert planned and content["left_out"] and not {*planned} & {*content["left_out"]}
    assert all(f"{size:,}" in content["note"] for size in content["left_out"])
    assert content["parts"][0]["summary"].endswith(content["note"])
    none = answer(client, "/plan/front?model=llama-3.1-405b&gpus=1")
    assert none["result"] is None and none["parts"] == []
    assert none["note"] == (
        "No layout that published runs tested fits and meets the limits on 1, 2, 4 or 8 GPUs."
    )


def test_every_file_of_a_plan_can_be_downloaded(client: TestClient) -> None:
    exports = answer(client, f"/plan/files?{SMALL}")["exports"]
    assert {"torchtitan", "megatron", "slurm"} <= {each["name"] for each in exports}
    for each in exports:
        for name, text in each["files"].items():
            got = client.get(f"/plan/file?framework={each['name']}&file={name}&{SMALL}")
            assert got.text == text
            assert got.headers["content-type"].startswith("text/plain")
            assert got.headers["content-disposition"] == f'attachment; filename="{name}"'
    wrong = client.get(f"/plan/file?framework=torchtitan&file=../../etc/passwd&{SMALL}")
    assert wrong.status_code == 404


@pytest.mark.parametrize(
    ("address", "status", "field"),
    [
        ("/plan?model=llama-9", 404, "model"),
        ("/plan?model=/etc/config.json", 404, "model"),
        ("/plan?model=../cluster.toml", 404, "model"),
        ("/plan?device=h900", 404, "device"),
        ("/plan?device=cluster.toml", 404, "device"),
        ("/plan?precision=fp3", 404, "precision"),
        ("/plan?deadline=3", 400, "deadline"),
        ("/plan?tokens=many", 400, "tokens"),
        ("/plan?tokens=2,5T", 400, "tokens"),
        ("/plan?gpus=0", 422, "gpus"),
        ("/plan?gpus=16385", 422, "gpus"),
        ("/plan?sequence=99999999", 422, "sequence"),
        ("/plan?batch=x", 422, "batch"),
        ("/plan?price=nan", 422, "price"),
        ("/plan?device=a100-80-sxm&precision=fp8", 404, "precision"),
        ("/plan?model=llama-3.1-405b&gpus=8", 400, ""),
        ("/decide?tokens=0", 400, "tokens"),
        ("/decide?devices=h900", 404, "device"),
        ("/simulate?failures=never", 404, ""),
        ("/simulate?simulations=1000000", 422, "simulations"),
        ("/catalog/nothing", 404, ""),
        ("/catalog/models/config.json", 404, "model"),
        ("/catalog/models/config.toml", 404, ""),
        ("/catalog/accelerators/h900", 404, "device"),
        ("/catalog/models/%20", 404, ""),
    ],
)
def test_a_wrong_value_is_refused_and_its_field_named(
    client: TestClient, address: str, status: int, field: str
) -> None:
    response = client.get(address)
    while response.status_code == 202:
        response = client.get(address)
    assert response.status_code == status, response.text
    said = response.json()
    assert said["field"] == field
    assert status != 422 or said["detail"][0]["loc"][-1] == field


def test_more_names_than_are_taken_are_refused(client: TestClient) -> None:
    many = ",".join(f"provider-{number}" for number in range(13))
    answer = client.get(f"/decide?providers={many}")
    assert answer.status_code == 400
    assert answer.json() == {"error": "at most 12 names, not 13", "field": "providers"}


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/plan?gpus=-3", "gpus: at least 1, not -3"),
        ("/plan?gpus=99999999", "gpus: at most 16,384, not 99999999"),
        ("/plan?batch=x", "batch: a whole number, not 'x'"),
        ("/plan?price=0", "price: more than 0, not 0"),
        ("/plan?price=cheap", "price: a number, not 'cheap'"),
        ("/plan?price=nan", "price: a finite number, not 'nan'"),
        ("/plan?search=slow", "search: 'quick' or 'full', not 'slow'"),
        ("/decide?tokens=", "tokens: at least 1 character, not 0"),
        (f"/decide?budget={'9' * 40}", "budget: at most 32 characters, not 40"),
        (f"/decide?unproven={'x' * 50}", f"unproven: true or false, not '{'x' * 40}...'"),
        ("/events", "of: no value given"),
    ],
)
def test_a_limit_is_named_with_the_value_that_passes_it(
    client: TestClient, address: str, said: str
) -> None:
    response = client.get(address)
    assert (response.status_code, response.json()["error"]) == (422, said)


def test_an_error_s_field_is_the_option_it_names() -> None:
    assert field_of(UnknownNameError("model", "x", ["y"])) == "model"
    assert field_of(InputError("--seq-len 3: too short")) == "sequence"
    assert field_of(InputError("--storage x: no such")) == ""
    assert field_of(InputError("nothing fits")) == ""


def test_an_error_names_fields_of_the_form_not_options_of_the_command() -> None:
    assert form_text("--seq-len 3: too short") == "Sequence length 3: too short"
    assert form_text("name a cluster of that size with --on").endswith(
        "with device type and number of devices"
    )
    assert form_text("--storage x: no such") == "--storage x: no such"
    assert form_text("nothing fits") == "nothing fits"


# Decide, simulate, accuracy


def test_a_simulation_is_the_library_s(client: TestClient) -> None:
    content = answer(client, f"/simulate?{SMALL}&tokens=10B&simulations=20&interval=10&spares=1")
    best = cf.plan(
        "llama-3.1-8b", on="h100-sxm:16", seq_len=8192, global_batch=64, quick=True
    ).to_dict()["plans"][0]["layout"]
    best.pop("gpus")
    expected = cf.simulate(
        "llama-3.1-8b",
        on="h100-sxm:16",
        seq_len=8192,
        global_batch=64,
        tokens="10B",
        simulations=20,
        interval="10min",
        spares=1,
        best=True,
        timeline=True,
        **best,
    )
    assert content["result"] == expected.to_dict()
    assert len([part for part in content["parts"] if part["kind"] == "figure"]) == 4
    by_interval = next(
        part for part in content["parts"] if "by checkpoint interval" in part["title"]
    )
    assert by_interval["summary"].startswith("The run saves every 10 min (600 seconds): ")
    assert (
        f"{expected.simulation.seconds.mean / 86400:.2f} days on average" in by_interval["summary"]
    )
    assert by_interval["data"][1]["x"] == [600.0, 600.0]
    run, (low, high) = expected.simulation.run, content["seconds_with_step_range"]
    assert run.work_seconds is not None and run.work_seconds_range is not None
    assert high / low == pytest.approx(run.work_seconds_range[1] / run.work_seconds_range[0])
    assert low <= expected.simulation.seconds.p50 <= high
    assert "With the step at the ends of its predicted range: " in content["headline"]
    first, last = content["interval_range_seconds"]
    curve = expected.interval
    assert curve is not None and first <= curve.best_seconds <= last
    least = min(point.pace_seconds for point in curve.points)
    for point in curve.points:
        if first < point.at < last:
            assert point.pace_seconds <= 1.002 * least


def test_a_decision_is_the_library_s(client: TestClient) -> None:
    asked = "/decide?model=llama-3.1-8b&tokens=20B&deadline=30&providers=lambda&devices=h100-sxm"
    content = answer(client, asked)
    expected = cf.decide(
        "llama-3.1-8b", tokens="20B", deadline="30d", providers=["lambda"], devices=["h100-sxm"]
    )
    assert content["result"] == expected.to_dict()
    offers = answer(client, f"{asked}&show=offers")
    assert offers["result"]["schema"] == "computeflow.comparison/1"


def test_accuracy_is_what_validate_says_with_its_misses(client: TestClient) -> None:
    content = answer(client, "/accuracy")
    expected = cf.validate().to_dict()
    assert content["result"] == expected
    outside = sum(
        not row["low_seconds"] <= row["measured_seconds"] <= row["high_seconds"]
        for row in expected["rows"]
    )
    inside, missed = content["parts"][0]["data"]
    assert len(missed["x"]) == outside and len(inside["x"]) == len(expected["rows"]) - outside


# Catalog


def test_the_catalog_s_rows_have_their_source(client: TestClient) -> None:
    assert client.get("/catalog").json()["result"] == overview().to_dict()
    for kind in (each["kind"] for each in client.get("/catalog").json()["kinds"]):
        content = client.get(f"/catalog/{kind}").json()
        assert content["result"] == list_rows(kind, all=True).to_dict()
        for part in content["lists"]:
            assert len(part["names"]) == len(part["table"]["rows"])
    row = client.get("/catalog/accelerators/h100-sxm").json()
    assert row["result"] == list_rows("accelerators", "h100-sxm").to_dict()
    assert row["source"] and row["as_of"]


def test_the_catalog_says_what_it_holds_and_how_new_it_is(client: TestClient) -> None:
    kinds = client.get("/catalog").json()["kinds"]
    assert [each["kind"] for each in kinds] == list(GROUPS)
    for each in kinds:
        rows = [row for rows in group_rows(FACTS, each["kind"]).values() for row in rows]
        assert each["holds"]
        assert each["newest"] in {row.as_of for row in rows}


@pytest.mark.parametrize(
    "search, kind, name, spelled",
    [
        ("h100-s", "accelerators", "h100-sxm", ""),
        ("H100 SXM5", "accelerators", "h100-sxm", "H100-SXM5"),
        ("p5.48", "offers", "aws/p5.48xlarge", ""),
    ],
)
def test_a_part_of_a_name_finds_rows_that_have_a_page(
    client: TestClient, search: str, kind: str, name: str, spelled: str
) -> None:
    found = client.get("/catalog", params={"search": search}).json()["found"]
    row = next(each for each in found["rows"] if (each["kind"], each["name"]) == (kind, name))
    assert row["as"].startswith(spelled) and bool(row["as"]) == bool(spelled)
    for each in found["rows"][:20]:
        assert client.get(f"/catalog/{each['kind']}/{each['name']}").status_code == 200, each


def test_a_search_for_nothing_finds_nothing(client: TestClient) -> None:
    assert client.get("/catalog?search=%20").json()["found"] is None
    assert client.get("/catalog?search=zzzz").json()["found"] == {"rows": [], "total": 0}


def test_precisions_of_a_device_can_be_planned_with(client: TestClient) -> None:
    devices = {each["name"]: each for each in client.get("/choices").json()["devices"]}
    assert devices["a100-80-sxm"]["precisions"] == ["fp32", "tf32", "fp16", "bf16", "int8"]
    assert {"mxfp8", "nvfp4"} <= set(devices["b200-sxm"]["precisions"])
    for precision in devices["h100-sxm"]["precisions"]:
        assert answer(client, f"/plan?{SMALL}&precision={precision}")["result"], precision


# Fleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fleet(tmp_path_factory.mktemp("fleet"), gpus=1_024)


def test_a_fleet_is_grouped_by_switch_and_every_rank_has_its_place(fleet: Path) -> None:
    topology = read_topology((fleet / "topology.conf").read_text(), "topology.conf")
    content = client_of(fleet, topology=topology).get("/fleet").json()
    shown = content["result"]
    assert sum(shown["cells"]) == 1_024 and len(shown["nodes"]) == 128
    assert [(group["above"], group["name"], group["nodes"]) for group in shown["groups"]] == [
        ("pod0", f"leaf0{number}", 32) for number in range(4)
    ]
    assert shown["nodes"][:2] == ["node-0000", "node-0001"]
    assert shown["ranks"][1] == [8, 15] and shown["ranks"][127] == []
    assert shown["run_of"][0] == 0 and shown["run_of"][127] is None
    measures = {each["name"]: each for each in shown["measures"]}
    assert list(measures) == ["mfu", "wait", "power", "temperature", "health"]
    assert measures["mfu"]["by_node"][0] == 0.41 and measures["mfu"]["by_node"][127] is None
    snapshot = top(store=fleet).snapshot
    (finding,) = snapshot.open_findings
    cell = next(
        at
        for at, rank in enumerate(
            rank
            for spans in shown["ranks"]
            for first, last in zip(spans[::2], spans[1::2], strict=True)
            for rank in range(first, last + 1)
        )
        if rank == finding.ranks[0]
    )
    assert content["health"][int(measures["health"]["by_cell"][str(cell)])] == "open finding"
    assert measures["wait"]["by_cell"][str(cell)] == 0.31
    assert len(set(measures["power"]["by_gpu"][:8])) > 1  # of one node
    assert max(measures["power"]["by_gpu"][:8]) == round(measures["power"]["by_node"][0])


def test_gpus_that_an_agent_does_not_number_have_the_largest_reading_of_their_node(
    tmp_path: Path,
) -> None:
    from live_value_maker import live_node, write_store

    hot = LiveGpu(gpu=1, readings={"DCGM_FI_DEV_GPU_TEMP": 86.0})
    beyond = LiveGpu(gpu=9, readings={"DCGM_FI_DEV_GPU_TEMP": 99.0})
    nodes = [live_node(node="a", gpus=2, by_gpu=(hot, beyond)), live_node(node="b", gpus=1)]
    shown = client_of(write_store(tmp_path, nodes=nodes)).get("/fleet").json()["result"]
    measures = {each["name"]: each for each in shown["measures"]}
    assert shown["cells"] == [2, 1]
    assert measures["temperature"]["by_gpu"] == [None, 86, None]
    assert measures["temperature"]["by_node"] == [86.0, 86.0]
    assert measures["power"]["by_gpu"] == []


def test_without_agents_what_is_unknown_says_so(tmp_path: Path) -> None:
    from live_value_maker import write_store

    store = write_store(tmp_path, [live_run(mfu=None, slowest=())])
    shown = client_of(store).get("/fleet").json()["result"]
    assert sum(shown["cells"]) == 256
    for measure in shown["measures"]:
        assert measure["missing"] and set(measure["by_node"]) == {None}


def test_an_empty_store_says_what_to_run(tmp_path: Path) -> None:
    from live_value_maker import write_store

    content = client_of(write_store(tmp_path)).get("/fleet").json()
    assert any("computeflow agent" in command for command in content["empty"]["commands"])


def test_a_recording_s_fleet_is_its_ranks(client: TestClient) -> None:
    shown = client.get("/fleet?run=slow").json()["result"]
    assert sum(shown["cells"]) == 2
    wait = shown["measures"][0]
    assert wait["name"] == "wait" and len(wait["by_cell"]) == 2


def test_a_map_of_16384_gpus_is_small(tmp_path: Path) -> None:
    store = write_fleet(tmp_path, gpus=16_384)
    response = client_of(store).get("/fleet")
    shown = response.json()["result"]
    assert sum(shown["cells"]) == 16_384
    assert len(response.content) < 400_000
    snapshot = top(store=store).snapshot
    found = fleet_map(snapshot, read_rank_places(store, [run.run for run in snapshot.runs]))
    assert len(found.groups) == 1 and HEALTH[0] == "healthy"


# The workbench


class Held:
    """A runner that waits until it is let go."""

    def __init__(self, limit_seconds: float = 0.0) -> None:
        self.go, self.ran = threading.Event(), list[str]()

    def start(self) -> None:
        pass

    def run(
        self,
        task: str,
        parameters: Mapping[str, Any],
        progress: Callable[[str], None],
        wanted: Callable[[], bool],
    ) -> bytes:
        progress("half way")
        while not self.go.wait(0.01):
            if not wanted():
                raise RefusedError(503, "left", 1.0)
        self.ran.append(parameters["name"])
        if parameters["name"] == "wrong":
            raise WrongFieldError(400, "no", "name")
        if parameters["name"] == "broken":
            raise ZeroDivisionError
        return parameters["name"].encode()  # type: ignore[no-any-return]

    def close(self) -> None:
        self.go.set()


def test_a_question_is_answered_once_and_others_wait_for_it() -> None:
    runner = Held()
    lane = Lane(runner)
    first = lane.ask("x", {"name": "a"}, 0.05)
    assert isinstance(first, Working)
    runner.go.set()
    assert lane.ask("x", {"name": "a"}, LONGEST) == b"a"
    assert lane.ask("x", {"name": "a"}, 0.0) == b"a"
    assert runner.ran == ["a"]
    for _ in range(2):
        with pytest.raises(WrongFieldError, match="no"):
            lane.ask("x", {"name": "wrong"}, LONGEST)
    assert runner.ran == ["a", "wrong"]
    with pytest.raises(RefusedError, match="ZeroDivisionError"):
        lane.ask("x", {"name": "broken"}, LONGEST)
    assert lane.ask("x", {"name": "b"}, LONGEST) == b"b"
    lane.close()


def test_more_questions_than_can_wait_are_refused() -> None:
    runner = Held()
    lane = Lane(runner)
    lane.ask("x", {"name": "first"}, 0.2)
    for number in range(MAX_WAITING):
        lane.ask("x", {"name": f"{number}"}, 0.0)
    with pytest.raises(RefusedError) as refused:
        for number in range(2):
            lane.ask("x", {"name": f"more {number}"}, 0.0)
    assert refused.value.status == 429 and refused.value.retry_seconds
    lane.close()


def test_a_question_that_nobody_waits_for_is_left_for_one_that_somebody_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("computeflow.web.workers.workbench._ABANDONED_SECONDS", 0.05)
    runner = Held()
    lane = Lane(runner)
    assert isinstance(lane.ask("x", {"name": "left"}, 0.01), Working)
    time.sleep(0.1)
    assert isinstance(lane.ask("x", {"name": "left"}, 0.2), Working)  # alone it goes on
    time.sleep(0.1)
    threading.Timer(0.5, runner.go.set).start()
    assert lane.ask("x", {"name": "next"}, LONGEST) == b"next"
    assert runner.ran == ["next"]
    assert lane.ask("x", {"name": "left"}, LONGEST) == b"left"
    lane.close()


def test_a_worker_process_answers_refuses_and_is_ended_where_it_takes_too_long() -> None:
    worker, said = WorkerProcess(LONGEST), list[str]()
    sliders: dict[str, Any] = {
        "model": "llama-3.1-8b",
        "device": "h100-sxm",
        "gpus": 8,
        "sequence": 8192,
        "batch": 64,
    } | {"precision": "bf16", "tokens": None, "deadline": None, "price": None, "search": "quick"}
    assert worker.run("plan", sliders, said.append, lambda: True).startswith(b"{")
    with pytest.raises(WrongFieldError) as wrong:
        worker.run("plan", sliders | {"model": "llama-9"}, said.append, lambda: True)
    assert (wrong.value.status, wrong.value.field) == (404, "model")
    worker._limit_seconds = 0.05
    with pytest.raises(RefusedError, match="ask for less"):
        worker.run(
            "plan",
            sliders | {"gpus": 4096, "batch": 4096, "search": "full"},
            said.append,
            lambda: True,
        )
    worker._limit_seconds = LONGEST
    assert worker.run("plan", sliders, said.append, lambda: True).startswith(b"{")
    with pytest.raises(RefusedError, match="ended early"):
        large = sliders | {"gpus": 4096, "batch": 4096, "search": "full"}
        worker.run("plan", large, said.append, lambda: False)
    worker.close()
