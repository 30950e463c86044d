"""`size` says why a number of GPUs has no answer, and why a larger one may take longer."""

from __future__ import annotations

import json

import pytest

import computeflow as cf
from computeflow.cli import run

JOB = ["size", "qwen3-32b", "--tokens", "2T", "--devices", "h100-sxm"]


def shown(capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert run([*JOB, *more]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_number_without_a_plan_is_named_with_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(capsys, "--counts", "192,300,512")
    assert "No plan on 300 of any device: 300 GPUs and a batch of 1,024 sequences divide" in text
    network = text.partition("Network that a device needs")[2]
    assert "300" not in network
    assert "Fewer than 256 GPUs are not listed" in network  # which is why 192 has no row


def test_a_job_that_does_not_fit_is_named_with_what_it_needs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "No plan on 2 of any device: the leanest layout needs" in shown(capsys, "--counts", "2")
    assert "its matmuls do not run in mxfp8" in shown(
        capsys, "--devices", "a100-80-sxm", "--precision", "mxfp8"
    )


def test_more_gpus_that_take_longer_are_explained_by_their_layouts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(capsys, "--counts", "256,296")
    assert "More GPUs take longer on 1 of 1 devices: 296 h100-sxm take" in text
    assert "dp must divide the 1,024 sequences" in text
    assert "More GPUs" not in shown(capsys, "--counts", "256,512")


def test_json_has_the_layouts_and_the_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*JOB, "--counts", "256,300", "-o", "json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert [cell["layout"]["gpus"] for cell in device["cells"]] == [256]
    assert [one["gpus"] for one in device["refused"]] == [300]


@pytest.mark.parametrize("command", [["simulate", "--tokens", "2T"], ["build"]])
def test_a_number_that_does_not_divide_is_not_said_to_lack_memory(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *more = command
    place = ["--on", "h100-sxm:300", "--global-batch", "1024", "--seq-len", "8192"]
    assert run([name, "qwen3-32b", *place, *more]) != 0
    said = capsys.readouterr().err
    assert "has no plan on 300" in said
    assert "divide into no layout" in said
    assert "fits" not in said


def test_every_device_is_named_while_it_is_planned() -> None:
    said: list[str] = []
    cf.size("llama-3.1-8b", tokens="1T", devices=["h100-sxm", "a100-80-sxm"], progress=said.append)
    assert said == ["planning: h100-sxm, device 1 of 2", "planning: a100-80-sxm, device 2 of 2"]
