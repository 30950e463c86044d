"""The page without a browser: who may look and act, the library's JSON, no HTML from data."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import computeflow as cf
from computeflow.answers.action_lists import list_actions
from computeflow.collection.collector.clients import RefusedError
from computeflow.collection.store.state_database import StateDatabase
from computeflow.errors import InputError
from computeflow.ledger import Entry, Ledger, Window, ranks_with_most
from computeflow.telemetry import source_registry
from computeflow.telemetry.opening import read_head
from computeflow.telemetry.run_folders.run_facts import PlannedStep
from computeflow.views.flow_bands import flow_bands
from computeflow.views.html_report import plotly_script
from computeflow.web import serve
from computeflow.web.access.security import MAX_BODY_BYTES
from computeflow.web.events import Broadcaster
from computeflow.web.page_list import PAGES, is_page
from computeflow.web.pages import flow
from computeflow.web.sources.opening import AuditOptions, open_directory
from computeflow.web.start_checks import check_directory
from live_value_maker import live_run
from page_client import (
    ACTING,
    OPERATOR,
    READER,
    RUNS,
    doorkeeper,
    example_address,
    made_store,
    page_client,
    revision_of,
)

STATIC = Path(cf.__file__).parent / "web" / "static"
HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
SCRIPT = "<script>document.title='run'</script><img src=x onerror=alert(1)>"
ROUTES = [
    *(example_address(page.address) for page in PAGES),
    *("/choices", "/plan/front", "/plan/files", "/plan/file?framework=slurm&file=job.sbatch"),
    *("/", "/session", "/events?of=/runs", "/trace/slow", "/readings/slow", "/openapi.json"),
    *("/static/shell.js", "/static/plotly.min.js", "/static/index.html", "/nothing"),
]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    yield page_client(RUNS, price=2.5)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return made_store(tmp_path)[0]


# Who may look, who may act


@pytest.mark.parametrize("suffix", ["", ".json"])
@pytest.mark.parametrize("route", ROUTES)
def test_every_route_refuses_without_a_token(route: str, suffix: str) -> None:
    stranger = page_client(RUNS, token=None)
    path, mark, query = route.partition("?")
    for headers in ({}, HTML, {"authorization": "Bearer wrong"}, {"cookie": "computeflow-1=x"}):
        answer = stranger.get(f"{path}{suffix}{mark}{query}", headers=headers)
        assert answer.status_code == 401, headers
        assert "computeflow" not in answer.text.lower().replace("<title>computeflow</title>", "")


@pytest.mark.parametrize("verb", ["approve", "dismiss", "undo"])
def test_an_action_needs_a_token_and_one_of_an_operator(store: Path, verb: str) -> None:
    address = f"/actions/1/{verb}"
    assert page_client(store, None).post(address, headers=ACTING, json={}).status_code == 401
    refused = page_client(store).post(address, headers=ACTING, json={})
    assert refused.status_code == 403 and "operator" in refused.json()["error"]
    assert {each.state for each in list_actions(store=store).actions} == {"proposed", "done"}


def test_an_operator_approves_and_undoes_and_the_name_is_kept(store: Path) -> None:
    operator = page_client(store, OPERATOR)
    done = operator.post("/actions/2/approve", headers=ACTING, json={})
    assert done.json()["approved_by"] == "ada" and done.json()["state"] == "approved"
    again = operator.post("/actions/2/approve", headers=ACTING, json={})
    assert again.status_code == 409 and "only proposed" in again.json()["error"]
    assert operator.post("/actions/1/undo", headers=ACTING, json={}).json()["state"] == "undoing"
    assert operator.post("/actions/9/undo", headers=ACTING, json={}).status_code == 404
    assert (
        operator.get("/findings").json()["actions"]
        == list_actions(store=store).to_dict()["actions"]
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"x-computeflow": None},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_an_action_from_another_site_is_refused(store: Path, headers: dict[str, Any]) -> None:
    sent = {name: value for name, value in (ACTING | headers).items() if value is not None}
    answer = page_client(store, OPERATOR).post("/actions/2/approve", headers=sent, json={})
    assert answer.status_code == 403
    assert list_actions(store=store).actions[0].state == "proposed"


def test_a_get_never_acts(store: Path) -> None:
    operator = page_client(store, OPERATOR)
    for verb in ("approve", "dismiss", "undo"):
        assert operator.get(f"/actions/1/{verb}").status_code == 405
    assert list_actions(store=store).actions[0].state == "proposed"


def test_a_reader_becomes_an_operator_by_a_token_and_leaves(store: Path) -> None:
    client = page_client(store)
    assert client.get("/session").json()["role"] == "reader"
    wrong = client.post("/session", headers=ACTING, json={"token": "guess"})
    assert wrong.status_code == 403 and client.get("/session").json()["role"] == "reader"
    assert client.post("/session", headers=ACTING, json={"token": OPERATOR}).json()["name"] == "ada"
    assert client.get("/session").json()["role"] == "operator"
    client.post("/session/end", headers=ACTING, json={})
    assert client.get("/session").status_code == 401


def test_a_program_sends_its_token_with_each_request(store: Path) -> None:
    program = page_client(store, None)
    bearer = {"authorization": f"Bearer {READER}"}
    assert program.get("/findings", headers=bearer).status_code == 200
    assert program.get("/findings").status_code == 401


def test_cookies_are_out_of_reach_of_scripts_and_other_sites() -> None:
    line = page_client(RUNS, None).get(f"/open?token={READER}").headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(line.split("; ")) and READER not in line
    assert "; Secure" in doorkeeper(scheme="https").cookie_line("x")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8470", 200),
        ("127.0.0.1:8470", 200),
        ("[::1]:8470", 200),
        ("evil.example", 421),
        ("[127.0.0.1]evil.example", 421),
        ("localhost:80@evil.example", 421),
        ("127.0.0.1:1/flow?", 421),
        ("127.0.0.1:1/flow#", 421),
        ("", 421),
    ],
)
def test_a_host_name_that_is_not_ours_is_refused(client: Any, host: str, status: int) -> None:
    bearer = {"authorization": f"Bearer {READER}"}
    assert client.get("/session", headers=bearer | {"host": host}).status_code == status


def test_requests_and_bodies_are_limited(store: Path) -> None:
    operator = page_client(store, OPERATOR)
    large = {"token": "x" * MAX_BODY_BYTES}
    assert operator.post("/session", headers=ACTING, json=large).status_code == 413
    chunks = operator.post("/session", headers=ACTING, content=iter([b"{}"]))
    assert chunks.status_code == 411


def test_who_asks_too_often_is_told_when_to_come_again() -> None:
    keeper = doorkeeper()
    known = {b"authorization": f"Bearer {READER}".encode()}
    codes = [_status(lambda: keeper.viewer(known, "10.0.0.1", 0.0)) for _ in range(300)]
    assert codes[:100] == [200] * 100 and codes[-1] == 429
    assert _status(lambda: keeper.viewer(known, "10.0.0.2", 0.0)) == 200
    assert _status(lambda: keeper.viewer(known, "10.0.0.1", 1.0)) == 200
    guesses = [_status(lambda: keeper.open_session("guess", "10.0.0.1", 0.0)) for _ in range(40)]
    assert guesses[0] == 403 and guesses[-1] == 429


def _status(ask: Callable[[], object]) -> int:
    try:
        ask()
    except RefusedError as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"listen": "0.0.0.0:8470"}, "--cert"),
        ({"listen": "0.0.0.0:8470", "behind_proxy": True}, "--host"),
        ({"cert": "x.pem"}, "belong together"),
        ({"listen": "8470"}, "HOST:PORT"),
        ({"operator_token_file": "absent"}, "No such file"),
        ({"directory": "absent"}, "there is no such file or folder"),
        ({"directory": "/dev/zero"}, "not a file"),
        ({"on": "h300-sxm"}, "nearest: .*h200-sxm"),
        ({"on": "h200-sxm:x"}, "accelerator:count"),
        ({"model": "llama-3.1-8b"}, "--model needs --global-batch and --seq-len"),
        ({"global_batch": 8, "seq_len": 128}, "need --model"),
        ({"model": "llama-9"}, "unknown model 'llama-9'; nearest: llama"),
        ({"expect": "absent.json"}, "--expect absent.json: No such file"),
        ({"expect": RUNS / "clean" / "run.json"}, "--expect .*predict or plan -o json"),
        ({"seconds": 0.0}, "more than 0"),
    ],
)
def test_what_cannot_be_served_is_refused_before_it_listens(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        serve(**{"directory": RUNS, "listen": "127.0.0.1:0", **options})


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.bin", b"\x00\x9f\x01" * 500, "none of kineto, .* by its content"),
        ("x.json", b'{"a": 1}', "not a profiler's trace"),
        ("state.sqlite", b"no database" * 500, "file is not a database"),
        ("notes.md", b"words\n", "files of other kinds: 1 .md"),
    ],
)
def test_a_folder_or_a_file_that_holds_no_recording_is_refused_before_it_listens(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    single = name in ("x.bin", "x.json")
    with pytest.raises(InputError, match=says) as refused:
        serve(tmp_path / name if single else tmp_path, listen="127.0.0.1:0")
    assert str(tmp_path) in str(refused.value) and "--store" not in str(refused.value)


def test_what_holds_nothing_yet_is_served(tmp_path: Path) -> None:
    check_directory(tmp_path)
    (tmp_path / "run").mkdir()
    check_directory(tmp_path)
    (tmp_path / "run" / "run.json").write_text("{}")
    check_directory(tmp_path)
    StateDatabase(tmp_path / "state.sqlite").close()
    check_directory(tmp_path)


def test_who_recorded_nothing_yet_is_told_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(InputError, match="computeflow record"):
        serve(listen="127.0.0.1:0")


def test_no_more_than_the_first_recording_of_a_folder_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Path] = []

    def counted(path: Path) -> bytes:
        opened.append(path)
        return read_head(path)

    monkeypatch.setattr(source_registry, "read_head", counted)
    check_directory(RUNS.parent / "h200_traces")
    check_directory(RUNS)
    assert len(opened) == 1


def test_runs_are_listed_where_a_device_is_given_with_a_count() -> None:
    runs = page_client(RUNS, on="h200-sxm:2").get("/runs").json()["runs"]
    assert len(runs) == len(page_client(RUNS).get("/runs").json()["runs"])


def test_flops_are_counted_from_a_model_where_a_recording_does_not_state_them() -> None:
    told: dict[str, Any] = {
        "on": "h200-sxm:1",
        "model": "llama-3.2-1b",
        "global_batch": 8,
        "seq_len": 128,
    }
    without, found = page_client(RUNS / "clean"), page_client(RUNS / "clean", **told)
    assert "compute.model" in without.get("/flow").json()["unavailable"]
    assert found.get("/flow").json()["run"]["mfu"] > 0


def test_a_device_alone_hides_no_recording() -> None:
    """It is for FLOPs that a recording states: those of another one are not."""
    for page in ("/flow", "/findings", "/runs/clean"):
        assert page_client(RUNS, on="h200-sxm").get(page).status_code == 200, page


# Answers


@pytest.mark.parametrize("route", ROUTES)
def test_every_answer_carries_the_strict_headers(client: Any, route: str) -> None:
    if route.startswith("/events"):
        return
    for headers in (HTML, {}):
        given = client.get(route, headers=headers, follow_redirects=False).headers
        policy = given["content-security-policy"]
        assert "unsafe" not in policy and "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy and given["x-content-type-options"] == "nosniff"
        assert given["referrer-policy"] == "no-referrer"


def test_a_page_is_html_for_people_and_json_for_programs_at_one_address(client: Any) -> None:
    for path in ("/flow", "/runs/slow"):
        assert client.get(path, headers=HTML).text == (STATIC / "index.html").read_text()
        plain = client.get(path).json()
        assert client.get(f"{path}.json", headers={"accept": "*/*"}).json() == plain
        assert plain["schema"] == "computeflow.page/1"
        assert client.get(f"{path}.json", headers=HTML).json() == plain  # a link to it


def test_a_recording_named_as_json_is_has_a_page_and_json(tmp_path: Path) -> None:
    shutil.copytree(RUNS / "clean", tmp_path / "a.json")
    shutil.copytree(RUNS / "slow", tmp_path / "a")
    client = page_client(tmp_path)
    runs = {each["name"]: each["id"] for each in client.get("/runs").json()["runs"]}
    for name, place in runs.items():
        address = f"/runs/{quote(place, safe='')}"
        assert client.get(address, headers=HTML).text == (STATIC / "index.html").read_text()
        assert client.get(f"{address}.json", headers=HTML).json()["run"]["name"] == name


def test_json_is_what_the_library_returns(client: Any, store: Path) -> None:
    audit = cf.audit(RUNS / "slow", price=2.5).to_dict()
    assert client.get("/flow?run=slow").json()["result"] == audit
    assert client.get("/runs/slow").json()["result"] == audit
    assert client.get("/findings?run=slow").json()["result"] == audit
    assert client.get("/runs").json()["result"] == cf.runs(RUNS, price=2.5).to_dict()
    live, top = page_client(store).get("/findings").json(), cf.top(store=store).to_dict()
    assert live["result"] | {"taken": 0} == top | {"taken": 0}


def test_findings_of_recordings_cost_dollars_in_all_not_an_hour(client: Any) -> None:
    content = client.get("/findings").json()
    assert content["usd"] == pytest.approx(sum(each["usd"] for each in content["findings"]))
    ledgers = [cf.audit(path).to_dict()["ledger"] for path in sorted(RUNS.iterdir())]
    hours = sum(ledger["gpus"] * ledger["wall_seconds"] for ledger in ledgers) / 3600
    assert content["runs_usd"] == pytest.approx(2.5 * hours)
    assert content["headline"] == (
        "8 findings in 6 of 7 runs cost $0.08 of the $0.25 of these runs. "
        "The largest is gc-pause in gc: $0.05."
    )
    assert client.get("/findings?run=clean").json()["headline"].startswith("No finding: ")


def test_findings_of_recordings_without_a_price_have_no_cost() -> None:
    content = page_client(RUNS).get("/findings").json()
    assert content["usd"] is None and content["runs_usd"] is None
    assert content["headline"] == (
        "8 findings in 6 of 7 runs. The largest is gc-pause in gc, 70.6 % of its time."
    )


def test_an_order_that_runs_do_not_have_is_refused_with_those_they_have(client: Any) -> None:
    answer = client.get("/runs?sort=foo")
    assert (answer.status_code, answer.json()["field"]) == (400, "sort")
    columns = re.findall(r'key: "(\w+)"', (STATIC / "pages" / "runs.js").read_text())
    assert f"'foo' is none of {', '.join(columns)}; each with -" in answer.json()["error"]
    for name in columns:
        for order in (name, f"-{name}"):
            assert client.get(f"/runs?sort={order}").json() == client.get("/runs").json()


def test_the_flow_of_a_run_that_goes_on_is_all_of_it_or_its_last_steps(tmp_path: Path) -> None:
    plan = PlannedStep(
        source="plan.json",
        gpus=256,
        step_seconds=1.0,
        high_seconds=1.2,
        accounts={"compute": 256.0},
    )
    run = live_run(planned=plan)
    client = page_client(made_store(tmp_path, planned=plan)[0])
    whole, last = (client.get(f"/flow?window={each}").json() for each in ("whole", "last"))
    assert client.get("/flow").json() == last  # a finding is open
    accounts = {band["account"] for band in whole["bands"]}
    assert "startup" in accounts and whole["basis"] == "the whole run up to step 6,120"
    assert whole["gpus"] * whole["wall_seconds"] == pytest.approx(sum(run.booked.values()))
    assert last["wall_seconds"] == pytest.approx(60.0) and last["basis"] == "its last 60 s"
    assert whole["expected_from"] == "plan.json"
    assert any(line["expected"] == pytest.approx(6_100 * 256.0) for line in whole["lines"])


def test_the_flow_of_a_run_that_goes_on_names_the_ranks_of_its_last_window(tmp_path: Path) -> None:
    most = ranks_with_most({rank: {"compute": 1.0 + rank, "input": 0.5} for rank in range(64)})
    fields = {"ranks_by_account": most, "window_ranks": 64}
    content = page_client(made_store(tmp_path, **fields)[0]).get("/flow").json()
    bands = {band["account"]: band for band in content["bands"]}
    assert content["ranks_in"] == "last 60 s, 64 of 256 ranks"
    assert [part["rank"] for part in bands["input"]["ranks"]] == list(range(16))
    assert bands["compute"]["ranks"][0] == {"rank": 63, "gpu_seconds": 64}
    assert bands["idle"]["ranks"] == [] and bands["idle"]["ranks_of"] == ""


def test_parts_of_an_account_have_the_ranks_of_the_whole() -> None:
    """FLOPs are of all ranks together: nobody knows the model's share of one rank's compute."""
    entries = [Entry(account=name, gpu_seconds=1.0) for name in ("compute.model", "input")]
    ledger = Ledger.closed(
        entries, gpus=2, wall_seconds=1.0, window=Window(label="a step"), basis="measured"
    )
    most = ranks_with_most({0: {"compute": 0.4, "input": 0.6}, 1: {"compute": 0.6, "input": 0.4}})
    model, data = flow_bands(ledger, ranks=most)
    assert (model.ranks_of, [part.rank for part in model.ranks]) == ("compute", [1, 0])
    assert (data.ranks_of, [part.rank for part in data.ranks]) == ("input", [0, 1])


def test_the_flow_of_a_run_that_has_kept_no_step_yet_has_no_lines(tmp_path: Path) -> None:
    plan = PlannedStep(
        source="plan.json",
        gpus=256,
        step_seconds=1.0,
        high_seconds=1.2,
        accounts={"compute": 256.0},
    )
    client = page_client(made_store(tmp_path, planned=plan, kept_steps=0)[0])
    given = client.get("/flow?window=whole")
    assert given.status_code == 200 and given.json()["lines"] == []


def test_a_run_that_is_gone_when_its_flow_is_made_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        flow, "find_run", lambda opening, run: replace(opening.runs()[0], id="gone")
    )
    given = page_client(made_store(tmp_path)[0]).get("/flow?run=gone")
    assert given.status_code == 404 and "run 'gone'" in given.text


def test_a_flow_adds_up_to_all_that_was_contracted(client: Any) -> None:
    flow = client.get("/flow?run=slow").json()
    total, small = flow["gpus"] * flow["wall_seconds"], flow["left_out_gpu_seconds"]
    assert sum(band["share"] for band in flow["bands"]) == pytest.approx(1.0 - small / total)
    assert sum(band["gpu_seconds"] for band in flow["bands"]) + small == pytest.approx(total)
    assert 100 * sum(band["share"] for band in flow["bands"]) == pytest.approx(100.0, abs=0.1)
    assert min(band["share"] for band in flow["bands"]) >= 0.0005
    assert not {*flow["left_out_accounts"]} & {band["account"] for band in flow["bands"]}
    assert sum(flow["result"]["ledger"]["accounts"].values()) == pytest.approx(total)
    straggler = next(band for band in flow["bands"] if band["account"] == "straggler")
    assert straggler["ranks"][0]["rank"] == 0  # that is where the second passed


@pytest.mark.parametrize("name", ["gpu_store", "gpu_runs", "h200_traces/gc-storm-200.json.gz"])
def test_wherever_an_mfu_is_shown_its_other_convention_and_its_peak_are(
    name: str, tmp_path: Path
) -> None:
    folder = RUNS.parent / name
    copied = shutil.copytree(folder, tmp_path / "copy") if folder.is_dir() else folder
    client = page_client(Path(copied))
    for line in client.get("/runs").json()["runs"]:
        assert 1.0 < line["mfu_palm"] / line["mfu"] < 1.2 and line["peak_precision"] == "bf16"
        for window in ("whole", "last"):
            flow = client.get(f"/flow?run={line['id']}&window={window}").json()
            useful = flow["bands"][0]
            assert useful["account"] == "compute.model"
            ratio = line["mfu_palm"] / line["mfu"]
            assert flow["mfu_palm"] == pytest.approx(useful["share"] * ratio)


def test_a_trace_has_its_prediction_beside_it() -> None:
    trace = RUNS.parent / "h200_traces" / "slow-loader-0.03.json.gz"
    flow = page_client(trace, price=2.5).get("/flow").json()
    found = {band["account"]: band for band in flow["bands"]}
    total = flow["gpus"] * flow["wall_seconds"]
    assert found["input"]["share"] > 0.6 and found["input"]["expected_gpu_seconds"] == 0.0
    model = found["compute.model"]
    assert model["expected_gpu_seconds"] / total == pytest.approx(model["share"], rel=1e-3)


def test_a_run_is_shown_step_by_step_and_rank_by_rank(client: Any) -> None:
    run = client.get("/runs/slow?of=own").json()
    assert run["heat"]["ranks"] == [0, 1] and len(run["heat"]["steps"]) == 120
    assert run["heat"]["of"] == "own" and len(run["curve"]["middle_seconds"]) == 120
    step = client.get("/timeline/slow?step=60").json()["timeline"]
    for line in step["ranks"]:
        phases = [span for span in line["spans"] if span["name"] != "wait"]
        assert sum(span["seconds"] for span in phases) == pytest.approx(line["seconds"])
    wait = next(span for span in step["ranks"][0]["spans"] if span["name"] == "wait")
    assert wait["detail"] == "for rank 1" and wait["owner"] == "site"


def test_a_step_opens_in_perfetto(client: Any) -> None:
    answer = client.get("/trace/slow?step=60")
    assert 'filename="slow-step-60.json"' in answer.headers["content-disposition"]
    events = answer.json()["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


def test_an_unknown_run_is_named_with_the_nearest(client: Any) -> None:
    answer = client.get("/runs/slo")
    assert answer.status_code == 404 and "nearest: slow" in answer.json()["error"]
    assert client.get("/timeline/slow?step=999999").json()["empty"]


def test_a_run_is_found_by_its_name_where_no_other_has_it(tmp_path: Path) -> None:
    client = page_client(RUNS)
    lines = client.get("/runs").json()["runs"]
    unique = [line for line in lines if [each["name"] for each in lines].count(line["name"]) == 1]
    assert unique
    for line in unique:
        for address in ("/runs/{}", "/flow?run={}"):
            assert client.get(address.format(line["name"])).json()["run"] == line
        assert client.get(f"/findings?run={line['name']}").status_code == 200
    for number in (1, 2):
        shutil.copytree(RUNS / unique[0]["id"], tmp_path / f"again-{number}")
    twice = page_client(tmp_path).get(f"/runs/{unique[0]['name']}")
    assert twice.status_code == 400
    assert "ask for one by its id" in twice.json()["error"] and "again-2" in twice.json()["error"]


def test_a_bad_step_of_a_timeline_is_refused(client: Any) -> None:
    assert client.get("/timeline/slow?step=-1").status_code == 422


@pytest.mark.parametrize("page", ["/flow", "/findings", "/runs"])
def test_an_empty_folder_says_what_to_run(tmp_path: Path, page: str) -> None:
    content = page_client(tmp_path).get(page).json()
    assert content["empty"]["commands"] == [
        f"computeflow record --out {tmp_path}/run-1 -- torchrun --nproc-per-node 8 train.py"
    ]
    open_store_only = made_store(tmp_path / "x")[0]
    assert "empty" not in page_client(open_store_only).get(page).json()


def test_a_suggested_recording_is_quoted_and_has_a_new_name(tmp_path: Path) -> None:
    folder = tmp_path / "my runs"
    for number in (1, 2):
        folder.mkdir(exist_ok=True)
        words = shlex.split(flow.record_command(open_directory(folder, AuditOptions())))
        assert words[words.index("--out") + 1] == str(folder / f"run-{number}")
        (folder / f"run-{number}").mkdir()


def test_script_in_names_reaches_no_html(tmp_path: Path) -> None:
    path, _ = made_store(tmp_path, name=SCRIPT, command=SCRIPT, title=SCRIPT, action=SCRIPT)
    client = page_client(path)
    for page in ("/flow", "/findings", "/runs", f"/runs/{SCRIPT}", "/nothing" + SCRIPT):
        answer = client.get(page, headers=HTML)
        kind = answer.headers["content-type"]
        assert "script>document" not in answer.text or kind.startswith("application/json"), page
    assert client.get("/runs").json()["runs"][0]["name"] == SCRIPT


def test_the_page_builds_no_html_from_text_and_runs_no_text() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?://"
    )
    files = [*STATIC.rglob("*.js"), STATIC / "index.html", STATIC / "page.css"]
    namespace = "http://www.w3.org/2000/svg"
    found = {
        path.name: forbidden.findall(path.read_text().replace(namespace, "")) for path in files
    }
    assert not any(found.values()), found
    shell = (STATIC / "index.html").read_text()
    assert not re.search(r"\son\w+=|style=|<style|<script>", shell)


def test_plotly_sets_no_style_that_the_policy_forbids(client: Any) -> None:
    """Its colour bars would, and each time a line is in the console; nothing else of it is left out."""
    served, whole = client.get("/static/plotly.min.js").text, plotly_script()
    empty = '.attr("style","")'
    assert empty in whole and empty not in served
    assert len(served) == len(whole) - whole.count(empty) * len(empty)


def test_every_page_has_its_script_and_an_entry_in_openapi(client: Any) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for page in PAGES:
        assert (STATIC / "pages" / f"{page.script}.js").is_file()
        assert page.address.replace(":path", "") in paths and is_page(page.address)


# Events


def test_an_event_comes_once_for_each_change_and_to_all(tmp_path: Path) -> None:
    async def story() -> tuple[list[bytes], int]:
        asked = 0
        revision = 0

        async def fetch(_: str) -> bytes:
            nonlocal asked
            asked += 1
            return json.dumps({"asked": revision // 2}).encode()

        events = Broadcaster(fetch, revision_of(lambda: revision), look_seconds=0.001)
        streams = [events.stream(["/runs"], []) for _ in range(3)]
        got = []
        for stream in streams:
            assert (await anext(stream)).startswith(b"retry")
        for stream in streams:
            got.append(await anext(stream))
        revision = 1  # the same content
        await asyncio.sleep(0.05)
        revision = 2
        for stream in streams:
            got.append(await anext(stream))
        events.close()
        for stream in streams:
            assert [part async for part in stream] == []
        assert events.viewers == 0
        return got, asked

    got, asked = asyncio.run(story())
    assert len(got) == 6 and len(set(got)) == 2 and asked == 3
    content = json.loads(got[-1].split(b"data: ")[1])
    assert content["address"] == "/runs" and content["content"] == {"asked": 1}


def test_events_of_an_address_that_is_no_page_are_refused(client: Any) -> None:
    assert client.get("/events?of=/session").status_code == 404
    assert client.get("/events").status_code == 422


def test_what_has_not_changed_is_read_once(tmp_path: Path, monkeypatch: Any) -> None:
    opening = open_directory(RUNS, AuditOptions(price=2.5))
    assert opening.audit("slow") is opening.audit("slow")
    assert opening.revision() == opening.revision()
    with pytest.raises(cf.InputError, match="nearest"):
        opening.audit("slo")


def test_too_many_viewers_are_told_to_come_again(monkeypatch: Any) -> None:
    monkeypatch.setattr("computeflow.web.events.MAX_VIEWERS", 1)

    async def story() -> None:
        async def fetch(_: str) -> bytes:
            return b"{}"

        events = Broadcaster(fetch, revision_of(lambda: 0))
        first = events.stream(["/runs"], [])
        await anext(first)
        with pytest.raises(RefusedError):
            await anext(events.stream(["/runs"], []))
        events.close()

    asyncio.run(story())
