"""Every command prints what its library function returns."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

import computeflow as cf
from computeflow import codec
from computeflow.answers import Answer
from computeflow.cli import run
from computeflow.errors import InputError

TODAY = datetime.date(2026, 11, 15)
CASES: dict[str, Callable[[], Answer]] = {
    "site --power 24MW --racks 200 --no-tiers --today 2026-11-15": lambda: cf.site(
        power="24MW", racks=200, tiers=False, today=TODAY
    ),
    "size llama-3.1-8b --tokens 2T --devices h100-sxm --counts 8,64 --today 2026-11-15": lambda: (
        cf.size("llama-3.1-8b", tokens=2e12, devices=["h100-sxm"], counts=[8, 64], today=TODAY)
    ),
    "compare llama-3.2-1b --tokens 5B --deadline 3d --providers crusoe --devices h100-sxm "
    "--simulations 5 --runs 2 --today 2026-11-15": lambda: cf.compare(
        "llama-3.2-1b", tokens="5B", deadline=3 * 86400.0, providers=["crusoe"],
        devices=["h100-sxm"], simulations=5, runs=2, today=TODAY,
    ),
    "compare llama-3.1-8b --workload agentic --users japan --onramp 10ms": lambda: cf.compare(
        "llama-3.1-8b", workload="agentic", users="japan", onramp=0.01
    ),
    "build llama-2-7b --on h100-sxm:64 --tokens 2T --seq-len 4096 --next none --draws 8 "
    "--set busy=0.5 --today 2026-11-15": lambda: cf.build(
        "llama-2-7b", on="h100-sxm:64", tokens="2T", seq_len=4096, next=None, draws=8,
        set={"busy": 0.5}, today=TODAY,
    ),
    "claims h100-fp16 spot": lambda: cf.claims(["h100-fp16", "spot"]),
}  # fmt: skip


@pytest.mark.parametrize("command", CASES)
def test_a_command_prints_what_its_library_function_returns(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run([*command.split(), "-o", "json"])
    answer = CASES[command]()
    assert capsys.readouterr().out == codec.to_json(answer.to_dict()) + "\n"
    assert code == answer.exit_code
    assert "<table" in answer._repr_html_()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tokens": 1e12}, "missing --deadline"),
        ({"tokens": 1e12, "deadline": "30d", "users": "japan"}, "--users is not for"),
        ({"tokens": 1e12, "deadline": "30d", "data": "1TB"}, "--data and --data-at go together"),
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


def test_an_option_under_its_former_name_is_understood(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = "compare llama-3.2-1b --tokens 5B --deadline 3d --providers crusoe --repeats=5"
    assert run(command.split()) == 0
    assert "--repeats is now --simulations" in capsys.readouterr().err
