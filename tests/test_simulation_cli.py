"""`computeflow simulate`, `compare-sites` and `validate --runs` from the shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from computeflow.answers import Answer
from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.prediction.power import WAITING
from computeflow.simulation import run_validation
from computeflow.simulation.run_validation import published_runs

JOB = [
    "llama-3.1-8b",
    "--on",
    "h100-sxm:256",
    "--global-batch",
    "256",
    "--seq-len",
    "8192",
    "--tp",
    "2",
    "--simulations",
    "50",
]
TOKENS = ["--tokens", "2T"]


def simulated(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert run(["simulate", *JOB, *more, "-o", "json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_a_run_comes_out_with_its_ledger_its_range_and_its_sources(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = simulated(capsys, *TOKENS, "--spares", "2")
    assert data["schema"] == "computeflow.simulation/1"
    assert data["seconds"]["p10"] <= data["seconds"]["p50"] <= data["seconds"]["p90"]
    booked = sum(entry for entry in data["ledger"]["accounts"].values())
    assert booked == pytest.approx(data["allocated_gpus"] * data["seconds"]["mean"], rel=1e-6)
    assert data["ledger"]["accounts"]["compute.model"] > 0
    assert all(row["source"] for row in data["inputs"])


def test_joules_of_a_run_come_from_the_power_of_its_steps_and_of_waiting_devices(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ledger = simulated(capsys, *TOKENS, "--spares", "2")["ledger"]
    assert "joules" not in ledger["unavailable"]
    limit = load_catalog(()).accelerators["h100-sxm"].tdp_watts or 0.0
    watts = {e["account"]: e["joules"] / e["gpu_seconds"] for e in ledger["entries"]}
    assert watts["idle"] == pytest.approx(WAITING * limit)
    assert WAITING * limit < watts["lost"] < watts["compute.model"] <= limit
    assert run(["simulate", *JOB, *TOKENS]) == 0
    shown = capsys.readouterr().out
    assert "energy: " in shown and "power readings" not in shown


def test_a_device_without_a_power_limit_has_no_joules_and_says_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = ["llama-3.1-8b", "--on", "trainium1:64", "--global-batch", "256", "--seq-len", "8192"]
    assert run(["simulate", *job, "--days", "3", "--simulations", "20"]) == 0
    assert "joules (needs the device's power limit)" in capsys.readouterr().out


def test_the_same_seed_prints_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(capsys, *TOKENS) == simulated(capsys, *TOKENS)


def test_what_is_set_is_what_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    usual = simulated(capsys, *TOKENS)
    slow = simulated(capsys, *TOKENS, "--set", "load_seconds=5h", "--set", "throttle=0.1")
    assert slow["conditions"]["load_seconds"] == 5 * 3600
    assert slow["seconds"]["mean"] > 1.09 * usual["seconds"]["mean"]


def test_tier_and_cooling_show_the_figures_used_with_their_own_ends_and_sources(
    capsys: pytest.CaptureFixture[str],
) -> None:
    site = ["--cooling", "air", "--tier", "tier-2", "--set", "load_seconds=20min"]
    data = simulated(capsys, *TOKENS, *site, "--sensitivity")
    rows = {row["name"]: row for row in data["inputs"]}
    assert {name: row["value"] for name, row in rows.items()} == data["conditions"]
    for name, source in (
        ("throttle", "arXiv:2507.16781"),
        ("outages_per_year", "one or two events"),
        ("outage_seconds", "availability of tier-2"),
    ):
        assert source in rows[name]["source"]
    throttle = rows["throttle"]
    assert (throttle["low"], throttle["value"], throttle["high"]) == (0.01, 0.05, 0.17)
    assert rows["load_seconds"]["basis"] == "stated"
    for swing in data["sensitivity"]:
        if row := rows.get(swing["name"]):
            assert [swing[end] for end in ("low", "value", "high", "basis", "source")] == [
                row[end] for end in ("low", "value", "high", "basis", "source")
            ]


def test_storage_says_how_long_saving_and_loading_take(capsys: pytest.CaptureFixture[str]) -> None:
    data = simulated(capsys, *TOKENS, "--storage", "tectonic-llama-3", "--saving", "sync")
    size = data["conditions"]["stall_seconds"] * 2e12
    assert size == pytest.approx(8.03e9 * 14, rel=0.2)
    assert data["conditions"]["load_seconds"] == data["conditions"]["stall_seconds"]


@pytest.mark.parametrize(("tp", "pp", "lost"), [(2, 1, 4), (1, 1, 8), (8, 1, 1), (4, 4, 1)])
def test_a_job_shrinks_by_the_replicas_that_a_node_holds(
    tp: int, pp: int, lost: int, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = ["--tp", str(tp), "--pp", str(pp), "--shrink-to", "8", "--days", "3"]
    found = simulated(capsys, *cut)["policy"]["shrinking"]
    assert found["groups"] == 256 // (tp * pp)
    assert found["lost_groups"] == lost


def test_dollars_are_part_of_the_data_where_a_price_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    priced = simulated(capsys, *TOKENS, "--price", "$2")
    assert priced["usd_per_gpu_hour"] == 2
    for name in ("p10", "p50", "p90", "mean"):
        hours = priced["allocated_gpus"] * priced["seconds"][name] / 3600
        assert priced["usd"][name] == pytest.approx(2 * hours)
    free = simulated(capsys, *TOKENS)
    assert free["usd"] is None
    assert free["usd_per_gpu_hour"] is None


def test_a_run_by_time_is_judged_by_the_work_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    data = simulated(capsys, "--days", "30", "--best", "--sensitivity")
    swings = {one["name"]: one for one in data["sensitivity"]}
    throttled = swings["throttle"]
    assert throttled["goodput_high"] == pytest.approx(throttled["goodput"] / 1.02, rel=0.005)
    for curve in ("interval", "spares"):
        for point in data[curve]["points"]:
            assert point["work_p10"] < point["work_seconds"] < point["work_p90"]
            assert point["p10"] < point["p90"]
    assert run(["simulate", *JOB, "--days", "30", "--best", "--sensitivity"]) == 0
    printed = capsys.readouterr().out
    assert "Sensitivity: goodput" in printed
    assert "Days of steps done" in printed


def test_all_extras_are_shown_and_the_report_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "run.html"
    more = [
        "--days",
        "30",
        "--best",
        "--timeline",
        "--sensitivity",
        "--price",
        "$2",
        "--tier",
        "tier-2",
        "--html",
        str(page),
    ]
    assert run(["simulate", *JOB, *more]) == 0
    printed = capsys.readouterr().out
    for words in ("Checkpoint interval", "Spare nodes", "slices of", "Sensitivity: ", "$2 per"):
        assert words in printed
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert page.read_text().count("<figure>") >= 4


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--days", "3", "--failures", "lama-3"], "nearest: llama-3"),
        (["--days", "3", "--set", "load_second=1"], "nearest: load_seconds"),
        (["--days", "3", "--set", "load_seconds"], "NAME=VALUE"),
        (["--days", "3", "--set", "load_seconds=1 parsec"], "unit of seconds"),
        (["--days", "3", "--tier", "tier-9"], "nearest: tier-"),
        (["--days", "3", "--interval", "10min", "--checkpoint-steps", "5"], "give one"),
        (["--days", "3", "--saving", "sync"], "--storage"),
        (["--days", "3", "--spares", "-1"], "--spares"),
        (["--days", "0"], "a run of 0 days"),
        (["--days", "3", "--set", "throttle=nan"], "throttle=nan: a plain number"),
        (["--days", "3", "--set", "throttle=$1"], "a plain number"),
        (["--days", "3", "--set", "throttle=inf"], "a plain number"),
        (["--days", "3", "--set", "maintenance_every_seconds=5min"], "nothing would be trained"),
        (["--days", "3", "--seed", "-1"], "--seed': -1"),
        (["--days", "3", "--tokens", "1T"], "--tokens"),
        ([], "--tokens"),
    ],
)
def test_a_mistake_is_one_line(
    more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", *JOB, *more]) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert "Traceback" not in printed


def test_a_layout_that_does_not_fit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    big = [
        "llama-3.1-405b",
        "--on",
        "h100-sxm:256",
        "--global-batch",
        "256",
        "--seq-len",
        "8192",
        "--tp",
        "2",
        "--days",
        "1",
    ]
    assert run(["simulate", *big]) == 2
    assert "does not fit" in capsys.readouterr().err


def test_without_a_layout_the_planners_best_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["llama-3.1-8b", "--on", "h100-sxm:64", "--global-batch", "256", "--seq-len", "8192"]
    assert run(["simulate", *job, "--days", "3", "--simulations", "5", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"] == 64


def test_sites_are_compared_and_written_as_a_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, answers: list[Answer]
) -> None:
    page = tmp_path / "sites.md"
    assert run(["compare-sites", "--draws", "8", "--page", str(page), "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data == answers[0].to_dict()
    assert len(data["results"]) == 2
    assert page.read_text().startswith("# Two sites")
    assert run(["compare-sites", "--draws", "8", "--page", str(tmp_path / "no" / "such")]) == 2


def test_sites_with_a_seed_that_cannot_be_end_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["compare-sites", "--draws", "8", "--seed", "-1"]) == 2
    printed = capsys.readouterr().err
    assert "--seed': -1" in printed
    assert "Traceback" not in printed


def test_published_runs_are_validated_by_flag(
    capsys: pytest.CaptureFixture[str], answers: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the longest run: test_simulation_runs.py has it."""
    others = [case for case in published_runs() if case.name != "llama-3-405b"]
    monkeypatch.setattr(run_validation, "published_runs", lambda: others)
    assert run(["validate", "--runs", "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data == answers[0].to_dict()
    assert {one["name"] for one in data["runs"]} == {case.name for case in others}
    assert data["trace"][0]["agrees"] is True
    assert run(["validate", "--page", "x.md"]) == 2
    assert run(["validate", "--runs", "--cases", "x.csv"]) == 2


@pytest.mark.parametrize("name", ["preemptions_per_node_day", "stragglers_per_node_day"])
def test_a_rate_at_which_nothing_trains_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", *JOB, *TOKENS, "--set", f"{name}=1000"]) == 2
    assert "at most one an hour" in capsys.readouterr().err
