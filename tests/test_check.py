"""`check` reads what frameworks take, predicts it and prices what could be better."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from computeflow.cli import run

FIXTURES = Path(__file__).parent / "data" / "exports"


def test_a_configuration_is_read_predicted_and_priced(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(FIXTURES / "torchtitan_llama3_405b.toml")
    arguments = ["check", file, "--on", "h100-sxm:512", "--global-batch", "256"]
    assert run([*arguments, "-o", "json"]) == 3
    data = json.loads(capsys.readouterr().out)
    assert data["format"] == "torchtitan"
    assert data["layout"]["tp"] == 8
    assert data["prediction"]["step_seconds"] > 0
    assert any(remark["rule"] == "better-layout" for remark in data["remarks"])
    assert "parallelism.enable_async_tensor_parallel" in data["unknown"]
    assert run([*arguments, "--price", "2"]) == 3
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_what_does_not_fit_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(FIXTURES / "megatron_llama3_8b.sh")
    assert run(["check", file, "--on", "h100-sxm:8", "-o", "json"]) == 3
    first = json.loads(capsys.readouterr().out)["remarks"][0]
    assert (first["rule"], first["breaks"]) == ("does-not-fit", True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.toml"], "No such file"),
        ([str(FIXTURES / "README.md")], "give --format"),
        ([str(FIXTURES / "deepspeed_transformers_zero3.json")], "give --model"),
        (
            [str(FIXTURES / "deepspeed_transformers_zero3.json"), "--model", "gpt2-xl"],
            "give --global-batch",
        ),
    ],
)
def test_what_cannot_be_checked_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", *arguments, "--on", "h100-sxm:512"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert words in message


def test_a_plan_is_exported_and_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ["--on", "h100-sxm:64", "--global-batch", "512", "--seq-len", "8192"]
    assert (
        run(
            [
                "plan",
                "llama-3.1-8b",
                *job,
                "--stack",
                "torchtitan",
                "--export",
                str(tmp_path),
                "-o",
                "json",
            ]
        )
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    best = data["plans"][0]["layout"]
    written = {each["name"]: each for each in data["exports"]}
    assert {"torchtitan", "deepspeed", "megatron", "slurm", "torchrun"} <= set(written)
    for each in written.values():
        assert each["refused"] or each["written"]["files"]
    for name, text in written["megatron"]["written"]["files"].items():
        assert (tmp_path / "megatron" / name).read_text() == text
        code = run(["check", str(tmp_path / "megatron" / name), *job[:2], "-o", "json"])
        assert code in (0, 3)
        layout = json.loads(capsys.readouterr().out)["layout"]
        for size in ("tp", "pp", "cp", "micro_batch", "recompute"):
            assert layout[size] == best[size]


@pytest.mark.parametrize(
    ("seconds", "minutes", "rule"),
    [(5, 0, "timeout-order"), (600, 5, "timeout-order"), (600, 600, "")],
)
def test_timeouts_nest(
    seconds: int, minutes: int, rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step is shorter than a collective's timeout, which is shorter than the job."""
    text = (FIXTURES / "megatron_llama3_8b.sh").read_text()
    more = f"--distributed-timeout-minutes {seconds / 60:g}"
    more += f" --exit-duration-in-mins {minutes}" if minutes else ""
    file = tmp_path / "train.sh"
    file.write_text(text.replace("--micro-batch-size ", f"{more} --micro-batch-size "))
    assert file.read_text() != text
    run(["check", str(file), "--on", "h100-sxm:8", "-o", "json"])
    rules = {remark["rule"] for remark in json.loads(capsys.readouterr().out)["remarks"]}
    assert (rule in rules) if rule else "timeout-order" not in rules


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", f"{'a.' * 300}a = 1", "more than 64 dots"),
        ("a.json", "[" * 100 + "]" * 100, "nested"),
        ("a.yaml", "a: &x 1\nb: *x", "aliases"),
        ("a", '{"a": 1, "a": 2}', "twice"),
        ("a.yaml", "a: 1\n" * (5 << 18), "4,194,304 bytes"),
    ],
)
def test_a_file_of_no_format_names_the_limit_that_it_breaks(
    name: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert run(["check", str(file), "--on", "h100-sxm:8"]) == 2
    assert said in capsys.readouterr().err


def checked(file: Path | str, on: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    run(["check", str(file), "--on", on, "-o", "json"])
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def compiled_file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "job.toml"
    file.write_text((FIXTURES / "torchtitan_llama3_8b.toml").read_text() + text)
    return file


@pytest.mark.parametrize(
    ("text", "kernels"),
    [
        ("[compile]\nenable = true", "compiled"),
        ("[compile]\nenable = false", "eager"),
        ('[compile]\nenable = true\ncomponents = ["loss"]', "eager"),
        ("", "eager"),
    ],
)
def test_torchtitan_compiles_where_its_file_says_so(
    text: str, kernels: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = checked(compiled_file(tmp_path, text), "h100-sxm:64", capsys)
    rules = {remark["rule"]: remark for remark in data["remarks"]}
    assert ("uncompiled" in rules) == (kernels == "eager")
    if kernels == "eager":
        faster = checked(compiled_file(tmp_path, "[compile]\nenable = true"), "h100-sxm:64", capsys)
        seconds = faster["prediction"]["step_seconds"] / data["prediction"]["step_seconds"]
        assert rules["uncompiled"]["gain"] == pytest.approx(1 - seconds)
        assert rules["uncompiled"]["gain"] > 0.05
        assert rules["uncompiled"]["switch"] == {"kernels": "compiled"}


def test_a_plan_from_a_file_says_that_it_compiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The export switches it on, so it stands among the changes."""
    file = compiled_file(tmp_path, "[compile]\nenable = false")
    folder = tmp_path / "exported"
    plan = ["plan", "--from", str(file), "--on", "h100-sxm:64", "--export", str(folder)]
    assert run([*plan, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"]["kernels"] == ["eager", "compiled"]
    assert "[compile]\nenable = true" in (folder / "torchtitan" / "torchtitan.toml").read_text()
    assert run([*plan[:-2]]) == 0
    assert re.search(r"kernels +eager +compiled", capsys.readouterr().out)


@pytest.mark.parametrize("reshard", ["always", "default"])
def test_torchtitan_shards_as_fsdp_here_and_there(
    reshard: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (FIXTURES / "torchtitan_llama3_8b.toml").read_text()
    file = tmp_path / "job.toml"
    key = "data_parallel_shard_degree = -1"
    file.write_text(text.replace(key, f'{key}\nfsdp_reshard_after_forward = "{reshard}"'))
    data = checked(file, "h100-sxm:64", capsys)
    changed = [remark["change"] for remark in data["remarks"] if remark["change"]]
    assert {layout["sharding"] for layout in (data["layout"], *changed)} == {"fsdp"}
    run(["plan", "--from", str(file), "--on", "h100-sxm:64", "-o", "json"])
    assert "sharding" not in json.loads(capsys.readouterr().out)["changes"]


def test_a_plan_from_deepspeeds_file_shards_as_deepspeed_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = str(FIXTURES / "deepspeed_minicpm_v.json")
    job = ["--on", "h100-sxm:8", "--global-batch", "64", "--seq-len", "2048"]
    uncut = ["--fix", "tp=1", "--fix", "pp=1", "--fix", "cp=1"]
    assert run(["plan", "llama-2-13b", "--from", file, *job, *uncut, "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {plan["layout"]["sharding"] for plan in data["plans"]} == {"zero3"}
    assert "sharding" not in data["changes"]


def test_the_step_stands_with_its_mfu(capsys: pytest.CaptureFixture[str]) -> None:
    run(["check", str(FIXTURES / "torchtitan_llama3_8b.toml"), "--on", "h100-sxm:64"])
    assert re.search(
        r"^MFU +\d+\.\d % of 989 TFLOP/s dense bf16 \(PaLM", capsys.readouterr().out, re.M
    )


def test_nothing_is_gained_on_a_step_that_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    file = FIXTURES / "megatron_llama3_8b.sh"
    data = checked(file, "h100-sxm:8", capsys)
    assert not data["prediction"]["memory"]["fits"]
    assert {remark["gain"] for remark in data["remarks"]} == {None}
    run(["check", str(file), "--on", "h100-sxm:8"])
    said = capsys.readouterr().out
    assert "This layout fits: " in " ".join(said.split())
    assert "%" not in said.partition("What the file says")[0].partition("remark")[2]
