"""The reference trainer on CPUs: one rank, two ranks over gloo, and its planted faults."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from computeflow.errors import InputError, UnknownNameError
from computeflow.lab.trainer import InjectedFault, TrainerSettings, parse_settings
from computeflow.lab.trainer.__main__ import main

pytest.importorskip("torch", reason="pip install torch")
SMALL = ["--layers", "2", "--hidden", "64", "--heads", "4", "--vocab", "256", "--seq-len", "32",
         "--micro-batch", "2", "--steps", "4", "--warmup", "1", "--quiet", "--device", "cpu",
         "--precision", "fp32"]  # fmt: skip


def run(folder: Path, *flags: str, ranks: int = 1, expect: int | None = 0) -> list[dict[str, Any]]:
    """The summaries of a real run: one rank in this process, several in their own."""
    if ranks == 1:
        from computeflow.lab.trainer.training_loop import train

        with contextlib.chdir(folder):
            return [train(parse_settings([*SMALL, *flags])).to_data()]
    output = folder / "out.json"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
            "-m",
            "computeflow.lab.trainer",
            *SMALL,
            *flags,
            "--output",
            str(output),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=folder,
    )
    if expect is not None:
        assert done.returncode == expect, done.stderr[-2000:]
    files = [folder / f"out_{rank}.json" for rank in range(ranks)]
    return [json.loads(file.read_text()) for file in files if file.exists()]


@pytest.mark.live
def test_one_rank_trains_and_summarises(tmp_path: Path) -> None:
    (summary,) = run(tmp_path, "--steps", "12", "--warmup", "2", "--accumulation", "2")
    assert len(summary["steps"]) == 10
    assert summary["losses"][0] == pytest.approx(5.55, abs=0.2)  # ln 256
    assert summary["losses"][-1] < summary["losses"][0] + 0.1
    assert summary["tokens_per_second_per_gpu"] > 0
    assert set(summary["phases"]) >= {"input", "forward", "backward", "optimizer"}
    for step in summary["steps"]:
        assert sum(step["phases"].values()) <= 1.01 * step["seconds"]
    assert summary["readings"]["unavailable"]


@pytest.mark.live
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_two_ranks_agree_with_one_over_both_batches(tmp_path: Path, sharding: str) -> None:
    first, second = run(tmp_path, "--sharding", sharding, ranks=2)
    assert (first["world"], second["rank"]) == (2, 1)
    (alone,) = run(tmp_path)
    assert first["losses"][0] == pytest.approx(alone["losses"][0], abs=1e-5)
    assert first["losses"][0] != second["losses"][0]  # each rank has data of its own


@pytest.mark.live
@pytest.mark.parametrize(
    "flags",
    [
        ["--recompute", "full"],
        ["--recompute", "selective"],
        ["--attention", "unfused"],
        ["--optimizer", "foreach"],
        ["--optimizer", "for-loop"],
        ["--precision", "amp"],
        ["--kv-heads", "2"],
        ["--workers", "1"],
    ],
    ids=" ".join,
)
def test_a_knob_changes_the_way_not_the_loss(tmp_path: Path, flags: list[str]) -> None:
    (plain,), (turned,) = run(tmp_path), run(tmp_path, *flags)
    near = 0.05 if flags[0] in ("--precision", "--kv-heads", "--workers") else 1e-4
    assert turned["losses"][0] == pytest.approx(plain["losses"][0], abs=near)


@pytest.mark.live
def test_tokens_come_from_a_mapped_file(tmp_path: Path) -> None:
    (tmp_path / "tokens.bin").write_bytes(bytes([7, 0]) * 4096)
    (summary,) = run(tmp_path, "--data", "tokens.bin", "--steps", "8")
    assert summary["losses"][-1] < summary["losses"][0]  # one token over and over is learnt at once


@pytest.mark.live
def test_a_slow_loader_shows_as_input(tmp_path: Path) -> None:
    (summary,) = run(tmp_path, "--fault", "slow-loader:0.05")
    assert summary["phases"]["input"] >= 0.1  # two samples a step
    assert summary["step_seconds"] >= summary["phases"]["input"]


@pytest.mark.live
def test_a_checkpoint_stall_shows_as_checkpoint(tmp_path: Path) -> None:
    (summary,) = run(tmp_path, "--checkpoint-every", "1", "--fault", "checkpoint-stall:0.2")
    assert summary["phases"]["checkpoint"] >= 0.2
    assert (tmp_path / "checkpoints" / "rank_0.pt").stat().st_size > 0


@pytest.mark.live
def test_unequal_lengths_change_the_tokens_of_a_step(tmp_path: Path) -> None:
    (summary,) = run(tmp_path, "--seq-len", "256", "--steps", "8", "--fault", "unequal-lengths:0.8")
    assert len({step["tokens"] for step in summary["steps"]}) > 1


@pytest.mark.live
def test_a_hang_is_dumped_by_every_rank_and_ends(tmp_path: Path) -> None:
    run(
        tmp_path,
        "--sharding",
        "ddp",
        "--hang-seconds",
        "8",
        "--flight-folder",
        "flight",
        "--fault",
        "hang:1:rank=1:step=2",
        ranks=2,
        expect=None,
    )
    dumps = sorted(tmp_path.glob("flight/rank_*"))
    assert [dump.name for dump in dumps] == ["rank_0", "rank_1"]
    assert all(dump.stat().st_size > 100 for dump in dumps)


@pytest.mark.live
def test_a_rank_that_dies_fails_the_run(tmp_path: Path) -> None:
    assert (
        run(tmp_path, "--sharding", "ddp", "--fault", "die:1:rank=1:step=2", ranks=2, expect=1)
        == []
    )


@pytest.mark.live
def test_a_trace_is_written_for_the_profiled_steps(tmp_path: Path) -> None:
    import gzip

    run(tmp_path, "--steps", "5", "--profile-steps", "2", "--trace-folder", "traces")
    trace = json.loads(gzip.decompress((tmp_path / "traces" / "rank_0.json.gz").read_bytes()))
    assert any(event.get("name") == "ProfilerStep#2" for event in trace["traceEvents"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--heads", "5"], "do not divide"),
        (["--warmup", "9"], "leave nothing"),
        (["--fault", "slow-loder:1"], "nearest: slow-loader"),
        (["--fault", "hang:x"], "write kind:severity"),
        (["--precision", "fp8", "--hidden", "40"], "multiples of 16"),
        (["--data", "absent.bin"], "no such token file"),
        (["--data", "empty.bin"], "fewer tokens than one sequence"),
    ],
)
def test_impossible_settings_are_one_line(
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty.bin").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["trainer", *SMALL, *flags])
    assert main() == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_faults_are_parsed_with_place_and_time() -> None:
    fault = InjectedFault.parse("hang:1:rank=1:step=5")
    assert (fault.kind, fault.rank, fault.step) == ("hang", 1, 5)
    assert fault.hits(1, 7)
    assert not fault.hits(0, 7)
    with pytest.raises(UnknownNameError):
        InjectedFault.parse("hang:1:node=3")


def test_the_settings_count_like_the_catalog() -> None:
    """The trainer's shape of Llama 3.1 8B has the catalog's parameters."""
    from computeflow.catalog import load_catalog
    from computeflow.catalog.parameters import count_parameters

    shape = TrainerSettings(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
    assert shape.parameters == count_parameters(load_catalog().models["llama-3.1-8b"]).total


def test_every_knob_is_a_flag() -> None:
    assert parse_settings(["--seq-len", "64", "--no-pin"]) == TrainerSettings(seq_len=64, pin=False)
    with pytest.raises(InputError):
        TrainerSettings(steps=0)
