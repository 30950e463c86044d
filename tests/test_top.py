"""`top`: the same snapshot from a store and from a collector, as tables, JSON and a screen."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import computeflow as cf
from computeflow import codec
from computeflow.cli import run
from computeflow.collection.outputs.snapshots import LiveSnapshot
from computeflow.diagnosis.rules.live_states import SILENT_SECONDS
from computeflow.ledger import ACCOUNTS
from computeflow.views.live_runs import (
    LETTERS,
    flow_letters,
    short_headline,
    sorted_findings,
    top_headline,
)
from computeflow.views.live_screen import ScreenState, draw_screen, press
from live_value_maker import NOW, busy_fleet, hostile_values, live_finding, live_run, write_store
from metrics_servers import Quiet, serving

SOON = time.time() + 1e6
"""Runs that were heard of then are not silent for as long as a test takes."""
Capture = pytest.CaptureFixture[str]


def snapshot(*values: Any) -> LiveSnapshot:
    runs, findings, nodes = values or busy_fleet()
    return LiveSnapshot(
        source="store",
        taken=NOW,
        runs=tuple(runs),
        findings=tuple(findings),
        nodes=tuple(nodes),
    )


def screen(state: ScreenState, width: int = 80, height: int = 24, shot: Any = None) -> list[str]:
    lines = draw_screen(shot or snapshot(), state, width, height)
    return ["".join(text for text, _ in line) for line in lines]


@contextmanager
def collector(token: str = "") -> Iterator[str]:
    runs, findings, nodes = busy_fleet(SOON)
    parts = {"/v1/runs": runs, "/v1/findings": findings, "/v1/nodes": nodes}

    class Answers(Quiet):
        def answer(self) -> None:
            if token and self.headers.get("Authorization") != f"Bearer {token}":
                self.reply(b"{}", status=401)
            elif self.path in parts:
                name = self.path.rpartition("/")[2]
                self.reply(codec.to_json({name: codec.encode(parts[self.path])}).encode())
            else:
                self.reply(b"nothing here", "text/plain", 404)

    with serving(Answers) as port:
        yield f"http://127.0.0.1:{port}"


def test_a_store_and_a_collector_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_store(tmp_path, *busy_fleet(SOON))
    monkeypatch.setenv("COMPUTEFLOW_TOKEN", "abc")
    with collector("abc") as address:
        there, here = (cf.top(collector=address).to_dict(), cf.top(store=store).to_dict())
    for part in ("runs", "findings", "closed"):
        assert there[part] == here[part]
    assert [finding["rule"] for finding in here["findings"]] == [
        "hang",
        "straggler-rank",
        "clock-throttle",
        "input-stall",
    ]
    assert [finding["rule"] for finding in here["closed"]] == ["gc-pause"]


def test_without_a_terminal_tables_are_printed_once(tmp_path: Path, capsys: Capture) -> None:
    store = write_store(tmp_path, *busy_fleet(SOON))
    assert run(["top", "--store", str(store)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "2 runs active, 1 stuck or silent; 4 open findings, costing $1,810.80 an hour."
    )
    assert "llama-70b-sft" in out
    assert max(map(len, out.splitlines())) <= 80
    assert run(["top", "--store", str(store), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "computeflow.top/1"


def test_a_run_that_is_not_heard_of_is_silent_and_loses_nothing_that_is_known() -> None:
    runs, findings, nodes = busy_fleet()
    runs[2] = replace(runs[2], updated=NOW - SILENT_SECONDS - 1)
    shot = snapshot(runs, findings, nodes)
    shown = shot.shown_at(NOW)
    assert [run.state for run in shown.runs] == ["running", "stuck", "silent"]
    assert shown.silent == {"eval-1": runs[2].updated}
    assert shown.usd_per_hour() == pytest.approx(1_804.80)
    assert shown.usd_per_hour(silent=True) == pytest.approx(6.0)
    assert top_headline(shown) == (
        "1 run active, 2 stuck or silent; 4 open findings, costing $1,804.80 an hour; those of silent "
        "runs cost $6.00 an hour when last heard from."
    )
    assert short_headline(shown).endswith("$1,804.80/h")
    later = shot.shown_at(NOW + 1e6)
    assert later.usd_per_hour() is None and {run.state for run in later.runs} == {"silent"}
    assert "which cost $1,810.80 an hour when last heard from" in top_headline(later)
    ended = snapshot([replace(run, state="ended") for run in runs], findings, nodes)
    assert ended.shown_at(NOW + 1e6).silent == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "one of --store DIR and --collector URL"),
        (["--store", "nowhere"], "no state.sqlite in it"),
        (["--collector", "127.0.0.1:8471"], "not an address"),
        (["--collector", "http://127.0.0.1:1"], "refused"),
    ],
)
def test_a_source_that_is_none_is_one_line(
    arguments: list[str], said: str, capsys: Capture
) -> None:
    assert run(["top", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_collector_that_wants_a_token_says_where_it_is_taken_from(capsys: Capture) -> None:
    with collector("abc") as address:
        assert run(["top", "--collector", address]) == 2
        assert "COMPUTEFLOW_TOKEN" in capsys.readouterr().err
    with collector() as address:
        assert run(["top", "--collector", f"{address}/else"]) == 2
        assert "is it a collector?" in capsys.readouterr().err


def test_a_token_is_not_sent_in_the_clear(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("COMPUTEFLOW_TOKEN", "abc")
    assert run(["top", "--collector", "http://192.0.2.1:8471"]) == 2
    assert "not sent in the clear" in capsys.readouterr().err


def test_a_row_that_cannot_be_read_is_left_out_and_said(tmp_path: Path) -> None:
    store = write_store(tmp_path, *busy_fleet())
    with closing(sqlite3.connect(store / "state.sqlite")) as database, database:
        database.execute("INSERT INTO runs VALUES ('x', '{\"run\": 1}', 0)")
        database.execute("INSERT INTO nodes VALUES ('y', 'no JSON', 0)")
        database.execute("INSERT INTO findings VALUES ('z', '', '', 0, NULL, x'ff00')")
    answer = cf.top(store=store)
    assert len(answer.snapshot.runs) == 3
    assert len(answer.snapshot.left_out) == 3


def test_a_file_that_is_no_database_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "state.sqlite").write_bytes(b"x" * 5000)
    assert run(["top", "--store", str(tmp_path)]) == 2
    assert "not a database" in capsys.readouterr().err


def test_every_account_has_a_letter_and_a_flow_fills_its_bar() -> None:
    assert LETTERS.keys() == ACCOUNTS.keys()
    bar = "".join(letter for letter, _ in flow_letters(live_run(), 20))
    assert bar == "============oddssss."
    assert flow_letters(live_run(accounts={}), 20) == []


def test_findings_are_sorted_by_cost_age_or_run() -> None:
    order = {
        sort: [finding.rule for finding in sorted_findings(snapshot(), sort)]
        for sort in ("cost", "age", "run")
    }
    assert order["cost"][0] == "hang"
    assert order["age"][0] == "input-stall"
    assert order["run"][0] == "input-stall"


def test_the_screen_shows_runs_findings_and_the_slowest_ranks() -> None:
    lines = screen(ScreenState(selected=live_finding().key))
    assert len(lines) == 24
    assert "3 runs (1 stuck), 4 findings, $1,810.80/h" in lines[0]
    text = "\n".join(lines)
    assert "straggler-rank rank 3, llama-7b" in text
    assert "> " in text
    assert "210 ms" in text
    assert "node-17" in text


def test_keys_move_open_sort_and_quit() -> None:
    shot = snapshot()
    state = ScreenState()
    down = press(state, "down", shot)
    assert down is not None
    opened = press(down, "enter", shot)
    assert opened is not None
    text = "\n".join(screen(opened))
    assert "hardware slowdown on GPU 3" in text
    assert "scontrol update nodename=node-00" in text
    back = press(opened, "back", shot)
    assert back == replace(down, opened=False)
    assert press(ScreenState(), "sort", shot) == ScreenState(sort="age")
    helped = press(ScreenState(), "help", shot)
    assert helped is not None
    assert "Letters of a flow" in "\n".join(screen(helped))
    assert press(helped, "down", shot) == ScreenState()
    assert press(state, "quit", shot) is None


def test_a_selected_finding_that_goes_away_leaves_a_screen() -> None:
    state = ScreenState(selected="gone", opened=True)
    assert screen(state)
    empty = LiveSnapshot(source="store", taken=NOW)
    assert any("No runs yet" in line for line in screen(ScreenState(), shot=empty))
    assert press(ScreenState(), "down", empty) == ScreenState()
    assert press(ScreenState(), "enter", empty) == ScreenState()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 8), (200, 60), (10, 2)])
@pytest.mark.parametrize("opened", [False, True])
def test_hostile_names_stay_on_their_lines_at_any_size(
    width: int, height: int, opened: bool
) -> None:
    lines = screen(ScreenState(opened=opened), width, height, snapshot(*hostile_values()))
    assert len(lines) == height
    assert all(line.isprintable() and len(line) <= max(width, 40) for line in lines)


def test_five_hundred_findings_scroll_with_the_selection() -> None:
    findings = [live_finding(ranks=(n,), usd_per_hour=float(n)) for n in range(500)]
    shot = snapshot([live_run()], findings, [])
    lines = screen(ScreenState(selected=findings[3].key), shot=shot)
    assert any(line.startswith("> ") and "rank 3," in line for line in lines)
    assert "more)" in "\n".join(lines)


def test_an_old_snapshot_says_why() -> None:
    lines = draw_screen(snapshot(), ScreenState(), 80, 24, "no answer")
    assert "no answer" in lines[0][0][0]
    assert lines[0][0][1] == "warning"
