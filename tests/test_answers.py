"""Every command prints what its library function returns."""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import computeflow as cf
from computeflow import codec
from computeflow.answers import Answer
from computeflow.answers.catalogs import list_offers, list_rows, overview, show_row
from computeflow.answers.checking import keyword_types
from computeflow.answers.installation import examine
from computeflow.answers.ledgers import show_ledger
from computeflow.answers.renames import KEYWORDS
from computeflow.answers.topologies import import_topology
from computeflow.cli import run
from computeflow.errors import InputError

TODAY = datetime.date(2026, 11, 15)
CASES: dict[str, Callable[[], Answer]] = {
    "site-limits --power 24MW --racks 200 --no-tiers --today 2026-11-15": lambda: cf.site_limits(
        power="24MW", racks=200, tiers=False, today=TODAY
    ),
    "size llama-3.1-8b --tokens 2T --devices h100-sxm --counts 8,64 --today 2026-11-15": lambda: (
        cf.size("llama-3.1-8b", tokens=2e12, devices=["h100-sxm"], counts=[8, 64], today=TODAY)
    ),
    "compare llama-3.2-1b --tokens 5B --deadline 3d --providers crusoe --devices h100-sxm "
    "--simulations 5 --runs 2 --today 2026-11-15": lambda: cf.compare(
        "llama-3.2-1b",
        tokens="5B",
        deadline=3 * 86400.0,
        providers=["crusoe"],
        devices=["h100-sxm"],
        simulations=5,
        runs=2,
        today=TODAY,
    ),
    "compare llama-3.1-8b --workload agentic --users japan --access-latency 10ms": lambda: (
        cf.compare("llama-3.1-8b", workload="agentic", users="japan", access_latency=0.01)
    ),
    "build llama-2-7b --on h100-sxm:64 --tokens 2T --seq-len 4096 --next none --draws 8 "
    "--set busy=0.5 --today 2026-11-15": lambda: cf.build(
        "llama-2-7b",
        on="h100-sxm:64",
        tokens="2T",
        seq_len=4096,
        next=None,
        draws=8,
        set={"busy": 0.5},
        today=TODAY,
    ),
    "claims h100-fp16 spot": lambda: cf.claims(["h100-fp16", "spot"]),
    "predict llama-3.1-8b --on h200-sxm:8 --global-batch 64 --seq-len 4096 --sharding fsdp": lambda: (
        cf.predict("llama-3.1-8b", on="h200-sxm:8", global_batch=64, seq_len=4096, sharding="fsdp")
    ),
    "check tests/data/exports/torchtitan_llama3_8b.toml --on h100-sxm:8 --price 2": lambda: (
        cf.check("tests/data/exports/torchtitan_llama3_8b.toml", on="h100-sxm:8", price=2.0)
    ),
    "simulate llama-3.1-8b --on h100-sxm:64 --global-batch 512 --seq-len 8192 --tp 2 --tokens 100B "
    "--simulations 5": lambda: cf.simulate(
        "llama-3.1-8b",
        on="h100-sxm:64",
        global_batch=512,
        seq_len=8192,
        tp=2,
        tokens="100B",
        simulations=5,
    ),
    "validate": lambda: cf.validate(),
    "calibrate examples/h200-steps.csv": lambda: cf.calibrate("examples/h200-steps.csv"),
    "audit tests/data/h200_traces/slow-loader-0.03.json.gz --no-cache --price 2.50": lambda: (
        cf.audit("tests/data/h200_traces/slow-loader-0.03.json.gz", no_cache=True, price="2.50")
    ),
    "audit tests/data/logs/megatron_restart.log": lambda: cf.audit(
        ["tests/data/logs/megatron_restart.log"]
    ),
    "ledger examples/llama-3.1-405b.json": lambda: show_ledger("examples/llama-3.1-405b.json"),
    "catalog": lambda: overview(),
    "catalog h100-sxm": lambda: show_row("h100-sxm"),
    "catalog nodes": lambda: list_rows("nodes"),
    "catalog offers --term spot": lambda: list_offers(term="spot"),
    "cluster import examples/cluster/topology.conf --check": lambda: import_topology(
        ["examples/cluster/topology.conf"], check=True
    ),
    "doctor": lambda: examine(),
}
ONCE = {
    "plan llama-3.1-8b --on h100-sxm:8 --global-batch 64 --seq-len 4096 --fix tp=1 --top 1",
    "plan llama-3.1-8b --on h100-sxm:8 --global-batch 64 --seq-len 4096 --gpus 4:8 --fix tp=1",
}
"""Commands that are slow or report their own time: the printed answer is compared with the returned."""


@pytest.mark.parametrize("command", CASES)
def test_a_command_prints_what_its_library_function_returns(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run([*command.split(), "-o", "json"])
    answer = CASES[command]()
    assert capsys.readouterr().out == codec.to_json(answer.to_dict()) + "\n"
    assert code == answer.exit_code
    assert "<table" in answer._repr_html_()


@pytest.mark.parametrize("command", sorted(ONCE))
def test_a_command_prints_the_answer_that_it_got(
    command: str, capsys: pytest.CaptureFixture[str], answers: list[Answer]
) -> None:
    run([*command.split(), "-o", "json"])
    assert capsys.readouterr().out == codec.to_json(answers[0].to_dict()) + "\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tokens": 1e12, "deadline": "30d", "users": "japan"}, "--users is not for"),
        (
            {"tokens": 1e12, "deadline": "30d", "data": "1TB"},
            "--data and --data-at must be given together",
        ),
        ({"workload": "serving", "budget": 5.0}, "--budget is not for"),
        ({"workload": "agentic"}, "needs --users"),
        ({"workload": "mining"}, "unknown workload"),
    ],
)
def test_options_that_do_not_go_together_are_refused_by_the_library(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        cf.compare("llama-3.1-8b", **options)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("compare --repeats=5", "--repeats is now --simulations"),
        ("simulate --repeats 5", "--repeats is now --simulations"),
        ("probe --repeats 5", "--repeats is now --passes"),
        ("probe --calibration x", "--calibration is now --write-calibration"),
        ("compare --least-gpus 8", "--least-gpus is now --min-gpus"),
        ("compare --most-gpus=8", "--most-gpus is now --max-gpus"),
        ("compare --sure", "--sure is now --conservative"),
        ("compare --line 1Gb/s", "--line is now --transfer-rate"),
        ("compare --replace 1h", "--replace is now --replacement-time"),
        ("compare --onramp 10ms", "--onramp is now --access-latency"),
        ("simulate --lemons 2", "--lemons is now --retire-after"),
        ("simulate --shrink 8", "--shrink is now --shrink-to"),
        ("site", "site is now site-limits"),
        ("sites", "sites is now compare-sites"),
    ],
)
def test_an_option_under_its_former_name_is_understood(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words.split(), "--help"]) == 0
    assert capsys.readouterr().err == f"computeflow: {said}\n"


def test_a_value_under_its_former_name_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--on", "h100-sxm:8", "--evict", "worth"]) == 2
    note, error = capsys.readouterr().err.splitlines()
    assert note == "computeflow: --evict worth is now --evict auto"
    assert "--tokens" in error


def test_a_function_under_its_former_name_is_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match="computeflow.site is now site_limits"):
        assert cf.site is cf.site_limits
    with pytest.warns(DeprecationWarning, match="computeflow.sites is now compare_sites"):
        assert cf.sites is cf.compare_sites
    assert not {"site", "sites"} & {*cf.__all__}


def test_a_keyword_under_its_former_name_is_understood_unless_both_are_given() -> None:
    former: dict[str, Any] = {"onramp": 0.01}
    with pytest.warns(DeprecationWarning, match="onramp is now access_latency"):
        old = cf.compare("llama-3.1-8b", workload="agentic", users="japan", **former)
    assert old == cf.compare("llama-3.1-8b", workload="agentic", users="japan", access_latency=0.01)
    with pytest.raises(InputError, match="leave onramp out"):
        cf.compare("llama-3.1-8b", workload="agentic", access_latency=0.1, **former)
    with (
        pytest.warns(DeprecationWarning, match="evict='worth' is now evict='auto'"),
        pytest.raises(InputError, match="--tokens"),
    ):
        cf.simulate("llama-3.1-8b", on="h100-sxm:8", **{"evict": "worth"})  # type: ignore[arg-type]


@pytest.mark.parametrize("function", KEYWORDS)
def test_a_renamed_keyword_is_one_that_its_function_takes(function: str) -> None:
    known = keyword_types(inspect.unwrap(getattr(cf, function)))
    assert {*KEYWORDS[function].values()} <= {*known}
    assert not {*KEYWORDS[function]} & {*known}


def test_place_prints_the_answer_that_it_got(
    capsys: pytest.CaptureFixture[str], answers: list[Answer], tmp_path: Path
) -> None:
    cluster = str(tmp_path / "cluster.toml")
    topology = ["cluster", "import", "examples/cluster/topology.conf", "--accelerator", "h100-sxm"]
    assert run([*topology, "--to", cluster]) == 0
    capsys.readouterr()
    job = ["llama-3.1-8b", "--global-batch", "40", "--seq-len", "4096", "--sharding", "fsdp"]
    assert run(["place", *job, "--on", cluster, "-o", "json"]) == 0
    assert capsys.readouterr().out == codec.to_json(answers[-1].to_dict()) + "\n"


@pytest.mark.live
def test_probe_prints_the_answer_that_it_got(
    capsys: pytest.CaptureFixture[str], answers: list[Answer], tmp_path: Path
) -> None:
    probe = ["probe", "--quick", "--device", "cpu", "--storage", str(tmp_path), "-o", "json"]
    assert run(probe) == 0
    assert capsys.readouterr().out == codec.to_json(answers[-1].to_dict()) + "\n"
