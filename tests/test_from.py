"""`--from FILE`: a framework's configuration is the job, and the command line overrides it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from computeflow.cli import run

FILE = str(Path(__file__).parent / "data" / "exports" / "megatron_llama3_8b.sh")


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*words, "-o", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_file_is_predicted_as_its_options_would_be(capsys: pytest.CaptureFixture[str]) -> None:
    told = answer(
        capsys,
        "predict",
        "llama-3-8b",
        "--on",
        "h100-sxm:8",
        "--global-batch",
        "128",
        "--seq-len",
        "8192",
        "--precision",
        "fp8",
        "--checkpoint-steps",
        "1000",
        "--stack",
        "megatron",
    )
    read = answer(capsys, "predict", "--from", FILE, "--on", "h100-sxm:8")
    assert read["step_seconds"] == told["step_seconds"]
    assert read["format"] == "megatron"
    assert read["unknown"] == []


def test_the_command_line_goes_before_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(
        capsys, "predict", "--from", FILE, "--on", "h100-sxm:8", "--cp", "2", "--precision", "bf16"
    )
    assert found["layout"]["cp"] == 2
    assert found["peak_precision"] == "bf16"


def test_a_plan_says_what_to_change_and_what_it_is_worth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["plan", "--from", FILE, "--on", "h100-sxm:8", "--tp", "4"]
    assert run(words[:-2]) == 0
    assert "does not fit" in capsys.readouterr().out
    found = answer(capsys, *words[:-2])
    assert found["now"]["layout"]["cp"] == 1
    assert set(found["changes"]) == {
        name
        for name, value in found["plans"][0]["layout"].items()
        if found["now"]["layout"][name] != value
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "--on", "h100-sxm:8"], "missing MODEL and --global-batch and --seq-len"),
        (["predict", "--from", FILE, "--on", "h100-sxm:16"], "for 8 GPUs, --on names 16"),
        (["predict", "--from", "absent.yaml", "--on", "h100-sxm:8"], "No such file"),
    ],
)
def test_what_is_missing_is_asked_for(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert message in capsys.readouterr().err


SILENT = [
    (["--lora-rank", "8"], "--lora-rank needs"),
    (["--expert-spread", "0.3"], "has no experts"),
    (["--context", "all-to-all"], "without context parallelism"),
    (["--schedule", "zbv"], "a schedule without a pipeline"),
    (["--storage", "fsx-lustre-1000"], "per TiB provisioned"),
]


@pytest.mark.parametrize(("words", "message"), SILENT)
def test_an_option_that_would_do_nothing_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["predict", "llama-3.1-8b", "--on", "h100-sxm:8", "--global-batch", "8"]
    assert run([*base, "--seq-len", "2048", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_report_of_a_plan_says_what_to_change(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    assert run(["plan", "--from", FILE, "--on", "h100-sxm:8", "--html", str(page)]) == 0
    assert "does not fit" in page.read_text()
