"""The health of nodes on the fleet's map: faults are problems, and silence follows the clock."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from computeflow.collection.online.live_values import LiveNode
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import open_store
from computeflow.diagnosis.rules.live_states import SILENT_SECONDS
from computeflow.telemetry.kernel_logs.messages import tells_fault
from computeflow.views.fleet_maps import HEALTH
from computeflow.web.pages.flow import live_headline
from computeflow.web.sources.opening import RunLine
from computeflow.web.sources.store import store_runs
from live_value_maker import NOW, live_finding, live_node, live_run, write_store
from page_client import page_client

BOOT = "node booted Linux version 6.18.44 (gcc (GCC) 15.3.0) #1 SMP PREEMPT_DYNAMIC @0"
XID = "xid 79 NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
LINE = RunLine(
    id="a",
    name="a",
    state="running",
    gpus=8,
    device="",
    started=NOW,
    updated=NOW,
    step=100,
    step_seconds=1.0,
    tokens_per_second=None,
    mfu=None,
    mfu_palm=None,
    peak_precision="",
    goodput=None,
    restarts=0,
    usd_per_hour=None,
)


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def time(self) -> float:
        return self.now


def clock_at(monkeypatch: pytest.MonkeyPatch, now: float) -> Clock:
    clock = Clock(now)
    monkeypatch.setattr(store_runs, "time", clock)
    return clock


def healths(content: dict[str, Any]) -> list[str]:
    (measure,) = [each for each in content["result"]["measures"] if each["name"] == "health"]
    return [HEALTH[int(value)] for value in measure["by_node"]]


def node(name: str, *signals: str, last_seen: float = NOW) -> LiveNode:
    return live_node(node=name, signals=signals, last_seen=last_seen)


@pytest.mark.parametrize(
    ("signal", "fault"),
    [
        (BOOT, False),
        ("link up mlx5_0: port 1 is up", False),
        (XID, True),
        ("clock throttle gpu 3: hw_slowdown", True),
        ("something that is not known here", True),
        ("", True),
    ],
)
def test_a_boot_is_no_fault_and_what_is_not_known_is_one(signal: str, fault: bool) -> None:
    assert tells_fault(signal) is fault


def test_a_node_that_says_it_booted_has_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_at(monkeypatch, NOW)
    nodes = [node("a"), node("b", BOOT), node("c", XID, BOOT)]
    content = page_client(write_store(tmp_path, nodes=nodes)).get("/fleet").json()
    assert healths(content) == ["healthy", "healthy", "fault reported"]
    assert content["result"]["notes"] == {"2": XID}


def test_a_run_whose_collector_stopped_is_silent_on_every_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clock_at(monkeypatch, NOW)
    run, finding = live_run(updated=NOW), live_finding()
    with closing(StateDatabase(open_store(tmp_path / "store").state)) as state:
        state.save_view([finding], [run])
    client = page_client(tmp_path / "store")
    before = client.get("/runs").json()
    assert (before["runs"][0]["state"], before["runs"][0]["silent_since"]) == ("running", None)
    said = "20.0 % of llama-7b's recent step time can be won back: 255 ranks wait for rank 3"
    pages = ("/flow", f"/runs/{run.run}")
    assert all(client.get(page).json()["headline"].startswith(said) for page in pages)
    clock.now = NOW + SILENT_SECONDS + 1
    for page in pages:
        content = client.get(page).json()
        assert (content["run"]["state"], content["run"]["silent_since"]) == ("silent", NOW)
        said = "When llama-7b was last heard from, 20.0 % of its step time could be won back"
        assert content["headline"].startswith(said)
    assert client.get("/runs").json()["runs"][0]["silent_since"] == NOW
    findings = client.get("/findings").json()
    assert findings["silent"] == {run.run: NOW}
    assert "1 open finding, which cost $128.00 an hour when last heard from" in findings["headline"]
    assert client.get("/fleet").json()["result"]["runs"][0]["state"] == "silent"


@pytest.mark.parametrize(
    ("account", "share", "silent", "said"),
    [
        ("input", 0.453, None, "45.3 % of a's recent step time can be won back: it waits (5 ms)."),
        (
            "input",
            0.453,
            NOW,
            "When a was last heard from, 45.3 % of its step time could be won back: it waits (5 ms).",
        ),
        ("idle", 0.453, None, "45.3 % of a's time can be won back right now: it waits (5 ms)."),
        (
            "idle",
            0.453,
            NOW,
            "When a was last heard from, 45.3 % of its time could be won back: it waits (5 ms).",
        ),
        ("host", 0.0, None, "a: it waits (5 ms)."),
    ],
)
def test_a_headline_says_when_and_has_one_colon(
    account: str, share: float, silent: float | None, said: str
) -> None:
    line = replace(LINE, silent_since=silent)
    found = {"account": account, "share": share, "title": "it waits: 5 ms"}
    assert live_headline(line, [found]) == said
    less = found | {"share": -1.0}
    assert live_headline(line, [found, less]) == f"{said} 1 more open finding."
    assert live_headline(line, [found, less, less]) == f"{said} 2 more open findings."
    assert live_headline(line, []) == "a: no open findings."


def test_silence_follows_the_clock_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clock_at(monkeypatch, NOW)
    store = write_store(tmp_path, nodes=[node("a"), node("b", last_seen=NOW - 5)])
    client = page_client(store)
    first = client.get("/fleet")
    assert healths(first.json()) == ["healthy"] * 2 and first.json()["last_heard"] == NOW
    clock.now = NOW + SILENT_SECONDS - 6
    assert client.get("/fleet").headers["etag"] == first.headers["etag"]
    clock.now = NOW + SILENT_SECONDS - 4
    late = client.get("/fleet").json()
    assert healths(late) == ["healthy", "silent"]
    assert late["result"]["silent_since"] == {"1": NOW - 5}
    clock.now = NOW + SILENT_SECONDS + 1
    last = client.get("/fleet")
    assert healths(last.json()) == ["silent", "silent"]
    clock.now = NOW + 1e6
    assert client.get("/fleet").headers["etag"] == last.headers["etag"]
