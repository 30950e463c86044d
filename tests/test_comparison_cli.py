"""`computeflow size` and `computeflow compare` from the shell."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from computeflow.answers import comparisons
from computeflow.catalog import find_model, load_catalog
from computeflow.catalog.lookup import COMMON_SIZES
from computeflow.catalog.parameters import count_parameters
from computeflow.cli import run
from computeflow.comparison.serving import places, user_regions
from computeflow.errors import UnknownNameError

ROOT = Path(__file__).parents[1]
JOB = ["compare", "llama-3.1-70b", "--tokens", "1T", "--deadline", "30d", "--simulations", "10"]
FEW = ["--providers", "crusoe,nebius", "--devices", "h100-sxm"]
pytestmark = pytest.mark.usefixtures("kept_plans")


def compared(capsys: pytest.CaptureFixture[str], *more: str, code: int = 0) -> dict[str, Any]:
    assert run([*JOB, *FEW, *more, "-o", "json"]) == code
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_a_comparison_has_every_offer_with_its_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    data = compared(capsys)
    assert data["schema"] == "computeflow.comparison/1"
    assert data["results"]
    (single,) = data["refused"]
    assert single["reason"].endswith("not joined: its GPU clusters of the 8-GPU SXM types are")
    first = data["results"][0]
    assert first["meets"] and first["p50_seconds"] <= first["p90_seconds"] <= 30 * 86400
    assert {
        "mfu",
        "mfu_palm",
        "goodput",
        "joules",
        "gflops_per_watt",
        "runs_per_week",
        "network",
        "energy_by_account",
        "best_term",
        "largest_gpus",
        "lead",
        "availability",
        "usd_per_million_tokens",
    } <= set(first)
    assert all(cost["as_of"] and cost["source"] for r in data["results"] for cost in r["costs"])
    assert data["starts"]["missing"]


def test_everything_beside_it_is_shown_and_the_report_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page, hours = tmp_path / "offers.html", tmp_path / "hours.csv"
    lines = [f"{n},{0.1 + 0.01 * (n % 24)},{300 - n % 24}" for n in range(24 * 40)]
    hours.write_text("\n".join(["hour,usd_per_kwh,grams_per_kwh", *lines]))
    more = [
        "--data",
        "100TB",
        "--data-at",
        "aws",
        "--runs",
        "2",
        "--demand",
        "256,512,512",
        "--owned-price",
        "1.76",
        "--hourly",
        str(hours),
        "--html",
        str(page),
    ]
    assert run([*JOB, *FEW, *more]) == 0
    shown = capsys.readouterr().out
    parts = (
        "Moving 100 TB from aws",
        "2 runs over several providers",
        "Base load owned",
        "When to start, by the hourly figures",
        "The same energy on other grids",
        "Recommended for production",
    )
    assert not [part for part in parts if part not in shown]
    assert "Cost against time" in page.read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hour,usd_per_kwh\n1,2\n", "columns hour"),
        ("hour,usd_per_kwh,grams_per_kwh\n1,x,2\n", "finite number"),
        ("hour,usd_per_kwh,grams_per_kwh\n1,,\n", "a figure for every hour"),
    ],
)
def test_hours_that_cannot_be_read_are_refused_before_the_search(
    text: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def search(*_: object) -> None:
        raise AssertionError("searched first")

    monkeypatch.setattr(comparisons, "compare_offers", search)
    hours = tmp_path / "hours.csv"
    hours.write_text(text)
    assert run([*JOB, "--hourly", str(hours)]) == 2
    assert said in capsys.readouterr().err


def test_production_runs_are_split_over_non_preemptible_terms(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = compared(capsys, "--runs", "4", code=3)["split"]  # two of them find no place
    assert found["left"] == 2 and {share["term"] for share in found["shares"]} == {"on-demand"}


def test_a_budget_that_nothing_meets_ends_with_3_and_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*JOB, *FEW, "--budget", "$1000"]) == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert "no offer meets the request" in shown and "nearest: " in shown


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--providers", "gogle"], "gcp"),
        (["--regions", "us-estt-1"], "us-east-1"),
        (["--countries", "frnce"], "france"),
        (["--data", "1TB"], "must be given together"),
        (["--demand", "1,x", "--owned-price", "1"], "whole numbers"),
        (["--demand", "1"], "must be given together"),
        (["--budget", "-5"], "-5"),
        (["--preemptions", "100"], "0 to 24"),
        (["--today", "yesterday"], "2026-11-15"),
        (["--transfer-rate", "40Gb/s"], "--data"),
    ],
)
def test_mistakes_are_one_line(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*JOB, *more]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--workload", "agentic"], "--users"),
        (["--workload", "serving", "--users", "japn"], "nearest: japan"),
        (["--workload", "serving", "--users", "mars"], "choose one of australia, brazil"),
        (["--workload", "serving", "--budget", "5"], "--budget is not for"),
        (["--workload", "serving", "--data", "1TB"], "--data is not for"),
        (["--workload", "serving", "--providers", "gogle"], "gcp"),
        (["--workload", "serving", "--prompt", "0", "--answer", "1000000000"], "no device holds"),
        (["--tokens", "1T", "--deadline", "30d", "--users", "japan"], "--users is not for"),
    ],
)
def test_mistakes_about_the_workload_are_one_line(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", "llama-3.1-70b", *more]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_precision_that_a_device_lacks_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    serving = ["compare", "llama-3.1-70b", "--workload", "serving", "-o", "json"]
    for more, h100 in (((), "fp8"), (("--precision", "bf16"), "bf16")):
        assert run([*serving, *more]) == 0
        rows = json.loads(capsys.readouterr().out)["served"]
        used = {row["accelerator"]: row["precision"] for row in rows}
        assert used["h100-sxm"] == h100 and used["a100-80-sxm"] == "bf16"


def test_the_advice_has_its_offer_term_dollars_and_days(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for workload in ("production", "frontier"):
        advice = compared(capsys, "--workload", workload)["advice"]
        assert advice["offer"] and advice["cost"]["term"] != "spot"
        assert advice["cost"]["usd"] > 0 and advice["cost"]["p90_seconds"] > 0


def test_a_report_is_written_where_nothing_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "none.html"
    assert run([*JOB, "--providers", "vast", "--html", str(page)]) == 3
    assert "do not run it" in page.read_text()


def test_a_comparison_without_a_deadline_has_two_months(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["compare", "llama-3.1-70b", "--tokens", "1T", *FEW, "--simulations", "10"]
    assert run([*command, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["deadline_seconds"] == 60 * 86400
    assert run(["compare", "llama-3.1-70b", "--deadline", "30d"]) == 2
    assert "--tokens" in capsys.readouterr().err


def test_terms_of_ones_own_go_in(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "terms.toml"
    file.write_text(
        '[[terms]]\nname = "crusoe"\nmost_gpus = 64\nsupport = "24/7"\nlead = "6 weeks"\n'
        'source = "a contract"\nas_of = "2026-11"\n'
    )
    data = compared(capsys, "--terms", str(file))
    assert "crusoe" not in {result["provider"] for result in data["results"] if result["meets"]}


def test_sites_of_ones_own_are_compared_alone_or_beside(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sites = ("--sites", str(ROOT / "examples" / "sites.toml"))
    alone = compared(capsys, *sites, "--providers", "none")
    assert {result["offer"] for result in alone["results"]} == {
        "hall/dgx-h100 us-texas",
        "fjord/dgx-h100 norway",
    }
    assert {r["provider"]: r["largest_gpus"] for r in alone["results"]} == {
        "hall": 9600,
        "fjord": 512,
    }
    beside = compared(capsys, *sites, "--providers", "crusoe", "--countries", "norway")
    assert [result["provider"] for result in beside["results"]] == ["fjord"]
    assert run([*JOB, *sites, "--providers", "none"]) == 0
    assert "owned" in capsys.readouterr().out
    moved = compared(capsys, *sites, "--providers", "none", "--data", "50TB", "--data-at", "hall")
    assert [move["usd"] for move in moved["moves"] if move["target"] == "hall"] == [0.0]


def test_serving_is_said_to_be_coarse(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "llama-3.1-70b", "--workload", "serving", "--users", "japan"]) == 0
    shown = capsys.readouterr().out
    assert "coarse" in shown and "singapore" in shown


def test_users_in_a_country_get_the_round_trips_of_the_region_near_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert set(user_regions().values()) == set(places())
    options = ["compare", "llama-3.1-8b", "--workload", "agentic", "--users"]
    assert run([*options, "Germany"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "from Germany (round trips of west-europe, the nearest known)" in shown
    found = {}
    for users in ("germany", "west-europe"):
        assert run([*options, users, "-o", "json"]) == 0
        found[users] = json.loads(capsys.readouterr().out)
    assert found["germany"]["chains"] == found["west-europe"]["chains"]
    assert found["germany"]["users"] == "germany"


def test_a_bare_size_is_taken_for_the_llama_of_that_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--tokens", "1T", "--devices", "h100-sxm", "--counts", "512"]
    assert run(["size", "70b", *options]) == 0
    shown = capsys.readouterr().out
    assert "llama-3.1-70b on 1 T tokens" in shown
    assert run(["size", "llama-3.1-70b", *options]) == 0
    assert capsys.readouterr().out == shown
    facts = load_catalog(())
    for size, name in COMMON_SIZES.items():
        assert abs(count_parameters(facts.models[name]).total / (float(size[:-1]) * 1e9) - 1) < 0.05


def test_a_size_that_a_file_states_is_no_model() -> None:
    with pytest.raises(UnknownNameError, match="70b"):
        find_model(load_catalog(()), "70b")


def test_size_prints_and_writes_its_figure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "size.html"
    assert run(["size", "llama-3.1-8b", "--tokens", "2T", "--html", str(page)]) == 0
    assert "GPUs x days" in capsys.readouterr().out
    assert "heatmap" in page.read_text()
    more = ["--devices", "h100-sxm", "--counts", "8,64", "-o", "json"]
    assert run(["size", "llama-3.1-8b", "--tokens", "2T", *more]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "computeflow.size/1"
    assert [cell["gpus"] for cell in data["devices"][0]["cells"]] == [8, 64]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["llama-3.1-7b", "--tokens", "1T"], "llama-3.1-70b"),
        (["llama-3.1-8b", "--tokens", "none"], "tokens"),
        (["llama-3.1-8b", "--tokens", "1T", "--counts", "many"], "--counts"),
        (["llama-3.1-8b", "--tokens", "1T", "--devices", "h1000"], "h100-sxm"),
    ],
)
def test_mistakes_of_size_are_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["size", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_size_takes_a_second_of_processor_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Its own part, without starting Python; three times that, for slower machines."""
    began = time.process_time()
    assert run(["size", "llama-3.1-70b", "--tokens", "1T"]) == 0
    assert time.process_time() - began < 3
