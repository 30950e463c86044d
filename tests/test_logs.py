"""Logs of training frameworks: their facts, and where the time went."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.catalog import Accelerator, load_catalog
from computeflow.cli import run
from computeflow.diagnosis import diagnose_source
from computeflow.errors import InputError
from computeflow.telemetry.logs.framework_lines import Parser
from computeflow.telemetry.logs.line_events import StepLine
from computeflow.telemetry.logs.line_times import time_of
from computeflow.telemetry.logs.log_facts import Bandwidth, LoggedRun
from computeflow.telemetry.logs.log_lines import read
from computeflow.telemetry.logs.log_source import LogSource
from computeflow.telemetry.opening import head_of
from computeflow.telemetry.source_reports import ModelWork, SourceReport, SourceRequest
from computeflow.views.sources.logs import tables
from computeflow.views.tables import to_text
from computeflow.workload import flops_per_token

LOGS = Path(__file__).parent / "data" / "logs"
FACTS = load_catalog()
SOURCE = LogSource()
START = datetime(2025, 3, 4, 10, 0, 0, tzinfo=UTC)


def observe(
    *paths: Path, start: float | None = None, end: float | None = None
) -> list[SourceReport]:
    assert all(SOURCE.recognises(path, head_of(path)) for path in paths)
    return SOURCE.observe(paths, SourceRequest(catalog=FACTS, start=start, end=end))


def observe_one(*paths: Path) -> SourceReport:
    (found,) = observe(*paths)
    return found


def run_of(found: SourceReport) -> LoggedRun:
    assert isinstance(found.facts, LoggedRun)
    return found.facts


def seconds(found: SourceReport) -> dict[str, float]:
    """Seconds of a rank by account."""
    assert found.ledger is not None
    ledger = found.ledger
    assert math.isclose(sum(ledger.accounts.values()), ledger.gpu_seconds, rel_tol=1e-9)
    return {name: value / ledger.gpus for name, value in ledger.accounts.items()}


def stamp(at: float) -> str:
    return (START + timedelta(seconds=at)).strftime("%Y-%m-%d %H:%M:%S.%f")


def iteration(
    number: int, at: float | None, each: float, *, loss: float = 2.0, more: str = ""
) -> str:
    when = "" if at is None else f"[{stamp(at)}] "
    return (
        f" {when}iteration {number:8d}/{10000:8d} | consumed samples: {number * 8:12d} | elapsed time "
        f"per iteration (ms): {each * 1e3:.1f} | learning rate: 1.5E-04 | global batch size:     8 | "
        f"lm loss: {loss:.6E} | loss scale: 1.0 | number of skipped iterations:   0 | number of nan "
        f"iterations:   0 |{more}"
    )


def written(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


# What a reader finds in the recordings, by eye and with grep and awk: iterations, mean of the stated
# step times (or of the rounds), ranks, and whether there is a ledger.
RECORDED = [
    ("gpt2-meg-ds-3d__meg_ds_3d_gpt2_perf_n16-ds-on.out", 49, 136.947, 64),
    ("gpt2-meg__meg_gpt2_base_n16_dp1_tp4_pp16-1809577.out", 90, 3.08924, 64),
    ("gpt2-meg__meg_gpt2_base_n4_dp1_tp4_pp4-1809579.out", 200, 1.426845, 16),
    ("megatron_deepspeed.log", 5, 75.23924, 16),
]
BENCHMARKS = [  # sizes, ranks, average bus bandwidth in GB/s
    ("nccl_allgather.log", 34, 8, 58.2651),
    ("nccl_allreduce.log", 34, 8, 68.4048),
    ("nccl_alltoall.log", 34, 8, 58.6481),
    ("bandwidth__all_reduce_bench-a100-n4.txt", 1, 32, None),
]


@pytest.mark.shared
@pytest.mark.parametrize(("name", "steps", "each", "ranks"), RECORDED)
def test_recorded_logs_say_what_a_reader_finds(
    data_folder: Path, name: str, steps: int, each: float, ranks: int
) -> None:
    found = observe_one(data_folder / "recordings" / "logs" / name)
    run = run_of(found)
    assert (run.steps, run.last_step, run.world_size) == (steps, steps, ranks)
    assert run.step_seconds == pytest.approx(each, rel=1e-4)
    assert not diagnose_source(found).findings
    booked = seconds(found)
    steps_time = sum(
        value
        for account, value in booked.items()
        if account.startswith(("compute", "comm", "optimizer", "input"))
    )
    assert steps_time == pytest.approx(steps * each, rel=0.15)  # the rest of the first was warm-up
    assert booked.get("unexplained", 0.0) < 0.07 * sum(booked.values())


@pytest.mark.shared
@pytest.mark.parametrize(("name", "rows", "ranks", "average"), BENCHMARKS)
def test_recorded_benchmarks_are_read(
    data_folder: Path, name: str, rows: int, ranks: int, average: float | None
) -> None:
    found = observe_one(data_folder / "recordings" / "logs" / name)
    facts = found.facts
    assert isinstance(facts, Bandwidth) and found.ledger is None and found.ledger_reason
    assert (len(facts.rows), facts.ranks) == (rows, ranks)
    if average is not None:
        assert facts.average_bus == pytest.approx(average * 1e9)
    else:  # 160 durations, five of each rank
        assert facts.rounds == 5 and facts.mean_seconds == pytest.approx(2.04207, rel=1e-5)


@pytest.mark.shared
def test_a_folder_of_unrelated_logs_is_so_many_runs(data_folder: Path) -> None:
    """Two of them save to the same folder at the same time, with different world sizes."""
    found = observe(*sorted((data_folder / "recordings" / "logs").iterdir()))
    assert len(found) == 8 and sum(f.ledger is not None for f in found) == 4


@pytest.mark.shared
def test_evaluations_within_stated_step_times_are_taken_out(data_folder: Path) -> None:
    """Iteration 110 takes 1564.1 ms a step, its neighbours 1380: it includes the evaluation."""
    name = "gpt2-meg__meg_gpt2_base_n4_dp1_tp4_pp4-1809579.out"
    found = observe_one(data_folder / "recordings" / "logs" / name)
    assert seconds(found)["evaluation"] == pytest.approx(10 * (1.5641 - 1.3800), rel=0.05)


MADE = [  # file, framework, steps, seconds of a step, ranks, seconds by account
    ("megatron_restart.log", "Megatron", 120, 2.0, 32,
     {"startup": 60, "compute": 177.5, "optimizer": 9, "comm.dp": 13.5, "checkpoint": 24,
      "restart": 688, "lost": 40}),
    ("torchtitan.log", "torchtitan", 60, 2.0, 8,
     {"startup": 49, "compute": 120, "checkpoint": 8, "evaluation": 4, "unexplained": 2}),
    ("nanotron.log", "nanotron", 20, 2.73, 8,
     {"startup": 48, "compute": 52, "checkpoint": 15}),
    ("hf_trainer.log", "Hugging Face Trainer", 40, 2.0, 8, {"compute": 80, "evaluation": 6}),
    ("trainer_state.json", "Hugging Face Trainer", 40, 2.0025, None,
     {"compute": 80.1, "evaluation": 6}),
    ("lightning_metrics.csv", "Lightning", 50, 0.5, None, {"compute": 25}),
    ("lightning_bars.log", "Lightning", 36, 3.0, None, {"compute": 108}),
    ("nemo.log", "NeMo", 50, 2.5, None, {"compute": 125}),
    ("maxtext.log", "MaxText", 20, 7.35, 4,
     {"startup": 70, "compute": 100, "evaluation": 7, "unexplained": 1}),
    ("mlperf.log", "MLPerf", 192, 100 / 48, None,
     {"startup": 60, "compute": 400, "evaluation": 80}),
    ("deepspeed_pipe.log", "DeepSpeed", 50, 0.8, 8, {"compute": 34, "optimizer": 4, "comm.dp": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "framework", "steps", "each", "ranks", "expected"), MADE)
def test_every_format_gives_steps_and_a_closed_ledger(
    name: str,
    framework: str,
    steps: int,
    each: float,
    ranks: int | None,
    expected: dict[str, float],
) -> None:
    found = observe_one(LOGS / name)
    run = run_of(found)
    assert (run.framework, run.steps, run.world_size) == (framework, steps, ranks)
    assert run.step_seconds == pytest.approx(each, rel=1e-3)
    booked = seconds(found)
    for account in expected | booked:
        assert booked.get(account, 0.0) == pytest.approx(expected.get(account, 0.0), abs=0.6)
    assert found.ledger is not None and found.ledger.mfu is None
    assert "compute.model" in found.ledger.unavailable
    assert all(to_text(table) for table in tables(found))


def test_a_restart_is_named_with_its_cause_and_price() -> None:
    found = observe_one(LOGS / "megatron_restart.log")
    (restart,) = run_of(found).restarts
    assert (restart.after, restart.resumed, restart.lost_steps) == (70, 60, 20)
    assert restart.cause == "NCCL timeout: ALLREDUCE" and restart.seconds == pytest.approx(688)
    (finding,) = diagnose_source(found).findings
    assert finding.rule == "restarts" and finding.account == "restart"
    assert finding.gpu_seconds == pytest.approx(32 * (688 + 40))
    assert finding.evidence[0].where.endswith("megatron_restart.log:78")
    timeouts = [h for h in found.happenings if h.what.startswith("NCCL timeout")]
    assert [h.rank for h in timeouts] == [3, 17] and all(h.fault for h in timeouts)
    assert timeouts[0].seconds == (START + timedelta(seconds=820)).timestamp()
    assert any(h.what == "traceback: DistBackendError" and h.rank == 3 for h in found.happenings)


def test_claims_of_the_log_are_told_as_such() -> None:
    run = run_of(observe_one(LOGS / "torchtitan.log"))
    assert run.claimed_mfu == pytest.approx(0.4169) and run.layout["dp_shard"] == 8
    assert any("claims" in note for note in observe_one(LOGS / "torchtitan.log").notes)


def test_nccl_tests_with_roots_and_wrong_counts() -> None:
    facts = observe_one(LOGS / "nccl_tests.txt").facts
    assert isinstance(facts, Bandwidth)
    assert (facts.collective, facts.ranks, facts.wrong_values) == ("all_reduce", 4, 0)
    assert facts.rows[-1].in_place_bus == pytest.approx(56.27e9)
    assert facts.rows[-1].out_of_place_seconds == pytest.approx(112.4e-6)


def test_other_ranks_that_say_the_same_are_no_restarts(tmp_path: Path) -> None:
    lines = [
        f"[rank{rank}]:{iteration(number, number * 2.0 + rank * 1e-3, 2.0)}"
        for number in range(1, 30)
        for rank in (3, 0, 1, 2)
    ]
    found = observe_one(written(tmp_path / "job.log", lines))
    assert run_of(found).steps == 29 and not run_of(found).restarts
    assert any("other ranks" in note for note in found.notes)


@pytest.mark.parametrize(
    "prefix", ["12: ", "[rank12]: ", "(RayTrainWorker pid=4711, ip=10.0.0.7) ", "vm-07-14: "]
)
def test_labels_are_taken_off(tmp_path: Path, prefix: str) -> None:
    lines = [prefix + iteration(number, number * 2.0, 2.0) for number in range(1, 20)]
    lines.append(f"{prefix}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB.")
    found = observe_one(written(tmp_path / "job.log", lines))
    assert run_of(found).steps == 19
    (oom,) = [h for h in found.happenings if h.what == "out of GPU memory"]
    assert oom.rank == (12 if "12" in prefix else None)
    assert oom.node == {"(": "10.0.0.7", "v": "vm-07-14"}.get(prefix[0], "")


def test_rotated_files_are_one_run_in_order_of_time(tmp_path: Path) -> None:
    lines = [iteration(number, number * 2.0, 2.0) for number in range(1, 61)]
    whole = observe_one(written(tmp_path / "whole.log", lines))
    folder = tmp_path / "rotated"
    folder.mkdir()
    written(folder / "train.log", lines[40:])
    written(folder / "train.log.1", lines[20:40])
    with gzip.open(folder / "train.log.2.gz", "wt") as file:
        file.write("\n".join(lines[:20]) + "\n")
    found = observe_one(*sorted(folder.iterdir()))
    assert [Path(name).name for name in run_of(found).files] == [
        "train.log.2.gz",
        "train.log.1",
        "train.log",
    ]
    assert run_of(found).steps == run_of(whole).steps == 60
    assert seconds(found) == pytest.approx(seconds(whole))


def test_files_of_ranks_are_read_side_by_side(tmp_path: Path) -> None:
    for rank in range(3):
        folder = tmp_path / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        written(
            folder / "stdout.log", [iteration(n, n * 2.0 + rank * 1e-3, 2.0) for n in range(1, 20)]
        )
    found = observe_one(*sorted(tmp_path.rglob("stdout.log")))
    assert run_of(found).steps == 19 and not run_of(found).restarts


def launch(at: float, resumed: int) -> list[str]:
    return [
        f"[start] datetime: {stamp(at)} ",
        "using world size: 16, data-parallel size: 16, tensor-model-parallel size: 1",
        "  save ............................................ /ckpt/a",
        "  world_size ...................................... 16",
        f"  successfully loaded checkpoint from /ckpt/a at iteration {resumed}",
        f"[before the start of training step] datetime: {stamp(at + 30)} ",
    ]


def test_launches_that_save_to_one_place_are_one_run_without_the_queue(tmp_path: Path) -> None:
    """The second job starts an hour later: nobody held its GPUs until then."""
    first = launch(0, 0) + [iteration(n, 30 + n * 2.0, 2.0) for n in range(1, 51)]
    second = launch(3730, 40) + [iteration(n, 3760 + (n - 40) * 2.0, 2.0) for n in range(41, 101)]
    paths = [written(tmp_path / "job-7001.out", first), written(tmp_path / "job-7002.out", second)]
    found = observe_one(*paths)
    booked = seconds(found)
    assert booked == pytest.approx({"startup": 30, "compute": 200, "lost": 20, "restart": 30})
    assert any("3,600 s between launches" in note for note in found.notes)
    assert diagnose_source(found).findings[0].rule == "restarts"


def test_a_launch_from_scratch_is_another_run(tmp_path: Path) -> None:
    """An experiment done twice saves to the same folder too."""
    paths = []
    for number, at in enumerate((0, 4000)):
        lines = launch(at, 0) + [iteration(n, at + 30 + n * 2.0, 2.0) for n in range(1, 51)]
        paths.append(written(tmp_path / f"job-{number}.out", lines))
    found = observe(*paths)
    assert [run_of(f).steps for f in found] == [50, 50] and not any(
        diagnose_source(f).findings for f in found
    )


def test_ranks_without_labels_are_no_restarts(tmp_path: Path) -> None:
    lines = [iteration(1, 2.0, 2.0)]
    for number in range(2, 40):  # one rank is always a line late
        lines += [iteration(number, number * 2.0, 2.0), iteration(number - 1, number * 2.0, 2.0)]
    assert (
        run_of(observe_one(written(tmp_path / "a.log", lines))).steps,
        run_of(observe_one(tmp_path / "a.log")).restarts,
    ) == (39, ())
    bars = tmp_path / "b.log"
    bar = "".join(f"\r{n}%|█| {n}/100 [00:{n % 60:02d}<00:10, 1.00it/s]" for n in range(1, 60))
    bars.write_text((bar + "\n") * 4)
    assert (run_of(observe_one(bars)).steps, run_of(observe_one(bars)).restarts) == (59, ())


def test_a_finished_run_and_the_next_in_one_file_are_two(tmp_path: Path) -> None:
    lines = launch(0, 0) + [iteration(n, 30 + n * 2.0, 2.0) for n in range(1, 21)]
    lines.append(f"[after training is done] datetime: {stamp(70)} ")
    lines += launch(100, 0) + [iteration(n, 130 + n * 2.0, 2.0) for n in range(1, 21)]
    found = observe(written(tmp_path / "both.log", lines))
    assert [run_of(f).steps for f in found] == [20, 20] and not any(
        diagnose_source(f).findings for f in found
    )


def test_a_stall_is_found_and_stays_unexplained(tmp_path: Path) -> None:
    lines, at = [], 0.0
    for number in range(1, 60):
        at += 2.0 if number != 40 else 92.0
        lines.append(iteration(number, at, 2.0 if number != 40 else 92.0))
    found = observe_one(written(tmp_path / "job.log", lines))
    (stall,) = run_of(found).stalls
    assert (stall.iteration, stall.where[-3:]) == (40, ":40") and stall.seconds == pytest.approx(90)
    assert seconds(found)["unexplained"] == pytest.approx(90)
    assert any(h.what == "stall" and h.fault for h in found.happenings)


def test_a_gap_between_stated_steps_is_a_stall_too(tmp_path: Path) -> None:
    lines = [iteration(n, n * 2.0 + (300 if n > 30 else 0), 2.0) for n in range(1, 60)]
    (stall,) = run_of(observe_one(written(tmp_path / "job.log", lines))).stalls
    assert stall.seconds == pytest.approx(300)


def test_jitter_is_no_stall_and_a_slow_first_step_is_startup(tmp_path: Path) -> None:
    each = [60.0] + [2.0 + 0.5 * math.sin(n) for n in range(100)]
    lines, at = [f"[before the start of training step] datetime: {stamp(0)} "], 0.0
    for number, took in enumerate(each, 1):
        at += took
        lines.append(iteration(number, at, took))
    found = observe_one(written(tmp_path / "job.log", lines))
    assert not run_of(found).stalls and not diagnose_source(found).findings
    assert seconds(found)["startup"] == pytest.approx(58, abs=1)


def test_losses_spike_once_and_nans_are_said(tmp_path: Path) -> None:
    losses = [4 * math.exp(-n / 50) + 2 + 0.02 * math.sin(7 * n) for n in range(1, 101)]
    losses[60:63] = [7.0, 6.5, 5.5]
    losses[80] = math.nan
    lines = [iteration(n, n * 2.0, 2.0, loss=loss) for n, loss in enumerate(losses, 1)]
    found = observe_one(written(tmp_path / "job.log", lines))
    (spike,) = run_of(found).spikes
    assert (spike.iteration, spike.points) == (61, 3)
    assert run_of(found).nan_steps == 1
    assert [h.what for h in found.happenings if h.fault] == ["NaN loss"]


def test_checkpoints_that_block_are_a_finding(tmp_path: Path) -> None:
    lines, at = [], 0.0
    for number in range(1, 101):
        at += 2.0
        lines.append(iteration(number, at, 2.0))
        if number % 10 == 0:
            lines.append(
                f"[{stamp(at)}] saving checkpoint at iteration {number:7d} to /c in torch format"
            )
            at += 10
            lines.append(
                f"  [{stamp(at)}] successfully saved checkpoint from iteration {number:7d} to /c"
            )
    found = observe_one(written(tmp_path / "job.log", lines))
    (finding,) = diagnose_source(found).findings
    assert finding.rule == "checkpoint-stall" and len(run_of(found).saves) == 10
    assert seconds(found)["checkpoint"] == pytest.approx(100)
    assert finding.gpu_seconds == pytest.approx(100) and finding.evidence[0].value == pytest.approx(
        10
    )


def test_background_saves_block_nothing(tmp_path: Path) -> None:
    lines = []
    for number in range(1, 101):
        lines.append(iteration(number, number * 2.0, 2.0))
        if number % 10 == 0:
            lines.append(
                f"[{stamp(number * 2.0)}] saving checkpoint at iteration {number:7d} to /c"
            )
        if number % 10 == 5 and number > 10:
            at = stamp(number * 2.0)
            lines.append(
                f"  [{at}] successfully saved checkpoint from iteration {number - 5:7d} to /c"
            )
    found = observe_one(written(tmp_path / "job.log", lines))
    assert not diagnose_source(found).findings and "checkpoint" not in seconds(found)


def test_a_hang_at_the_end_was_idle(tmp_path: Path) -> None:
    lines = [iteration(n, n * 2.0, 2.0) for n in range(1, 50)]
    lines.append(
        f"[rank7]:[E0304 {stamp(98 + 610)[11:]} ProcessGroupNCCL.cpp:629] [Rank 7] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLGATHER, Timeout(ms)=600000) ran "
        "for 600010 milliseconds before timing out."
    )
    booked = seconds(observe_one(written(tmp_path / "job.log", lines)))
    assert booked["idle"] == pytest.approx(600.01) and booked["unexplained"] == pytest.approx(9.99)


def test_without_any_time_there_is_no_ledger(tmp_path: Path) -> None:
    path = written(tmp_path / "metrics.csv", ["epoch,step,train_loss", "0,9,2.5", "0,19,2.4"])
    found = observe_one(path)
    assert found.ledger is None and "no time" in found.ledger_reason
    assert run_of(found).steps == 20


def test_a_window_can_be_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path / "job.log", [iteration(n, n * 2.0, 2.0) for n in range(1, 101)])
    start = START.timestamp()
    (found,) = observe(path, start=start + 50, end=start + 150)
    assert run_of(found).first_step == 25 and run_of(found).last_step == 75


def test_timers_of_all_ranks_are_their_mean(tmp_path: Path) -> None:
    lines = ["using world size: 4, data-parallel size: 4, tensor-model-parallel size: 1"]
    for number in range(1, 21):
        lines += [iteration(number, number * 2.0, 2.0), "times across ranks (ms):", "  optimizer:"]
        lines += [f"     rank {rank:2d}: {100.0 * (rank + 1):.2f}" for rank in range(4)]
    found = observe_one(written(tmp_path / "job.log", lines))
    assert run_of(found).timers_ms["optimizer"] == pytest.approx(250)
    assert seconds(found)["optimizer"] == pytest.approx(19 * 0.25)


def test_times_are_read_as_logs_write_them() -> None:
    at = datetime(2025, 3, 4, 10, 0, 1, 500000, tzinfo=UTC).timestamp()
    for text in (
        "[2025-03-04 10:00:01,500] [INFO] x",
        "2025-03-04T10:00:01.5Z stdout x",
        "2025-03-04T12:00:01.5+02:00 x",
        "03/04/2025 10:00:01.5 - INFO - x",
        "[after model, optimizer, and learning rate scheduler built] datetime: 2025-03-04 10:00:01.5",
    ):
        assert time_of(text) == (at, True)
    stamped = time_of(
        "I0304 10:00:01.500000 140110937163584 metric_logger.py:214] completed step: 1"
    )
    assert stamped is not None and not stamped[1]
    assert (
        time_of("  data_path ....... /data/of/some/length/that/goes/on/and/on 2025-03-04 10:00:01")
        is None
    )
    assert time_of("[2025-13-04 10:00:01] x") is None


def test_years_roll_over_in_logs_without_years(tmp_path: Path) -> None:
    lines = []
    for number in range(1, 41):
        at = datetime(2025, 12, 31, 23, 59, 20, tzinfo=UTC) + timedelta(seconds=2 * number)
        lines.append(
            f"I{at.strftime('%m%d %H:%M:%S.%f')} 14 m.py:214] completed step: {number}, "
            "seconds: 2.000, TFLOP/s/device: 86.0, loss: 2.0"
        )
    found = observe_one(written(tmp_path / "max.log", lines))
    assert found.ledger is not None and found.ledger.wall_seconds == pytest.approx(78)
    assert found.ledger.window.start_seconds is None


def test_encodings_colours_and_broken_ends(tmp_path: Path) -> None:
    lines = [iteration(n, n * 2.0, 2.0) for n in range(1, 200)]
    wide = tmp_path / "wide.log"
    wide.write_text("\n".join(lines), encoding="utf-16")
    mixed = tmp_path / "mixed.log"
    mixed.write_bytes("\r\n".join(lines).encode() + b"\n\xff\xfe\x80 caf\xe9 \x1b[31mred\x1b[0m\n")
    for path in (wide, mixed):
        assert run_of(observe_one(path)).steps == 199
    broken = tmp_path / "broken.log.gz"
    broken.write_bytes(gzip.compress("\n".join(lines).encode())[:-40])
    found = observe_one(broken)
    assert 1 < run_of(found).steps < 199 and any("broken" in line for line in found.left_out)


@pytest.mark.parametrize(("drawn", "steps"), [((3, 5, 9), 9), ((2, 5, 9), 9), ((500, 503, 506), 9)])
def test_a_bar_is_drawn_by_time_and_its_first_steps_count(
    drawn: tuple[int, ...], steps: int, tmp_path: Path
) -> None:
    path = tmp_path / "bar.log"
    states = "".join(f"\r {n // 10}%|█| {n}/900 [00:{n % 60:02d}<00:10, 1.00it/s]" for n in drawn)
    path.write_text(f"\r  0%|          | 0/900 [00:00<?, ?it/s]{states}\n")
    assert run_of(observe_one(path)).steps == steps


def test_a_bar_of_megabytes_without_a_line_feed_is_read(tmp_path: Path) -> None:
    text = "".join(
        f"\r{n // 100:3d}%|{'█' * (n // 1000):<10}| {n}/10000 "
        f"[{n // 1800:02d}:{n // 30 % 60:02d}<00:10, 30.00it/s]"
        for n in range(1, 10001)
    )
    path = tmp_path / "bar.log"
    path.write_text(text)
    run = run_of(observe_one(path))
    assert run.last_step == 10000 and run.step_seconds == pytest.approx(1 / 30, rel=0.01)
    assert next(iter(read(path, []))).number == 1


@given(st.text(max_size=300))
def test_any_line_is_read_without_an_error(text: str) -> None:
    parser = Parser()
    for start in (
        "",
        " iteration 1/ 2 |",
        "time (ms) |",
        ":::MLLOG ",
        "{'loss': ",
        "step: 1  loss: ",
    ):
        parser.event(start + text, "")
        time_of(start + text)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 40),
            st.floats(0, 1e4),
            st.sampled_from(["step", "save", "launch", "oom"]),
        ),
        min_size=2,
        max_size=60,
    )
)
def test_whatever_happens_the_ledger_closes(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[int, float, str]]
) -> None:
    at, lines = 0.0, [iteration(1, 0.0, 2.0)]
    for number, later, what in story:
        at += later
        lines += {
            "step": [iteration(number, at, later / 3)],
            "save": [f"[{stamp(at)}] saving checkpoint at iteration {number:7d} to /c"],
            "launch": launch(at, number),
            "oom": [f"[{stamp(at)}] torch.OutOfMemoryError: CUDA out of memory."],
        }[what]
    found = observe_one(written(tmp_path_factory.mktemp("any") / "job.log", lines))
    if found.ledger is not None:
        assert sum(seconds(found).values()) == pytest.approx(found.ledger.wall_seconds)
        assert found.ledger.wall_seconds <= at + 31 * len(story) + 1e-3


_FIGURE = st.one_of(
    st.integers(-5, 10**20).map(str), st.floats().map(str), st.just("9" * 5000), st.just("")
)


@given(st.lists(st.tuples(st.integers(0, 9), _FIGURE, _FIGURE), min_size=1, max_size=12))
def test_absurd_figures_end_in_no_traceback(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, str, str]]
) -> None:
    forms = (
        "  iteration {0}/ {1} | elapsed time per iteration (ms): {1} | lm loss: {0} |",
        "iteration: {0} / 9 | time_per_iteration_ms: {1} | lm_loss: 1 |",
        "completed step: {0}, seconds: {1}, loss: {0}",
        "steps: {0} loss: {1} iter time (s): {1} samples/sec: {0}",
        "10%|█| {0}/{1} [{1}:{0}<0, 1.0it/s]",
        ':::MLLOG {{"time_ms": {0}, "key": "block_stop", "metadata": {{"step_num": {1}}}}}',
        "using world size: {0}, data-parallel size: {1}",
        "time (ms) | optimizer: {0} | batch-generator: {1}",
        "Training epoch 0, iteration {0}/{1} | train_step_timing in s: {1} | global_step: {0}",
        "Training starts at step {0}",
    )
    path = tmp_path_factory.mktemp("absurd") / "job.log"
    written(path, (forms[form].format(one_, other) for form, one_, other in lines))
    for found in SOURCE.observe([path], SourceRequest(catalog=FACTS)):
        assert found.ledger is None or seconds(found)


def test_steps_of_a_line_cut_short_are_left() -> None:
    assert Parser().event(" iteration       10/    1000 | consumed sam", "") is None
    step = Parser().event(" iteration 10/ 1000 | elapsed time per iteration (ms): 12", "")
    assert isinstance(step, StepLine) and step.loss is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain words\n",
        '{"traceEvents": []}',
        "a,b\n1,2\n",
        "kern :warn : 2025-01-21 segfault\n",
    ],
)
def test_other_files_are_not_taken_for_logs(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other"
    path.write_text(text)
    assert not SOURCE.recognises(path, head_of(path))


def test_a_state_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text('{"log_history": [1, 2')
    with pytest.raises(InputError, match="trainer_state"):
        observe(path)


def test_a_long_log_is_read_in_little_memory() -> None:
    """A log of 13 MB is read by a process that never holds it whole."""
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.measure_logs", "--megabytes", "13"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    found = json.loads(ran.stdout)
    assert found["steps"] == found["steps_written"] and found["restarts"] == 1
    assert found["lost_seconds"] == pytest.approx(500 * 2.0)
    assert found["grown_mb"] < 6.5 < found["megabytes"] / 1.9


H100 = FACTS.accelerators["h100-sxm"]


def work(flops: float, full: float | None = None) -> ModelWork:
    return ModelWork(flops_per_step=flops, full_flops_per_step=full or 1.1 * flops)


def useful(path: Path, flops: float, accelerator: Accelerator | None = H100) -> SourceReport:
    asked = SourceRequest(catalog=FACTS, work=work(flops), accelerator=accelerator)
    (found,) = SOURCE.observe([path], asked)
    return found


def test_a_log_with_known_flops_gives_mfu() -> None:
    """llama-3.1-8b, 16 sequences of 8,192 tokens a step: torchtitan counts 2 % less."""
    each, tokens = flops_per_token(FACTS.models["llama-3.1-8b"], 8192), 16 * 8192
    asked = SourceRequest(
        catalog=FACTS, work=work(tokens * each.total, tokens * each.palm), accelerator=H100
    )
    (found,) = SOURCE.observe([LOGS / "torchtitan.log"], asked)
    ledger = found.ledger
    assert ledger is not None and ledger.peak is not None
    steps_seconds = 60 * tokens * each.total / 989e12
    assert ledger.mfu == pytest.approx(steps_seconds / (8 * ledger.wall_seconds))
    assert ledger.mfu is not None
    assert ledger.mfu_palm == pytest.approx(ledger.mfu * each.palm / each.total)
    assert ledger.booked("compute") == pytest.approx(8 * 120)
    assert ledger.booked("compute.model") == pytest.approx(0.4169 * 8 * 120, rel=0.03)
    assert {"compute.clock", "compute.recompute"} <= ledger.unavailable.keys()
    assert ledger.booked_under["comm"] == "compute.kernel"
    assert any("bf16 is assumed" in note for note in found.notes)
    assert any("startup and pauses: 42.6 %" in note for note in found.notes)
    assert not any("log claims" in note for note in found.notes)


def test_steps_done_again_are_no_useful_work() -> None:
    ledger = useful(LOGS / "megatron_restart.log", 1e16).ledger
    assert ledger is not None  # 120 steps, 20 of them done before
    assert ledger.booked("compute.model") == pytest.approx(100 * 1e16 / 989e12)
    assert ledger.booked("lost") == pytest.approx(32 * 40)


def test_a_log_that_counts_other_flops_is_said_to() -> None:
    (note,) = [
        note for note in useful(LOGS / "megatron_restart.log", 1e16).notes if "log claims" in note
    ]
    assert "402 TFLOP/s" in note and "give 156, or 172 with" in note  # 1e16 in 2 s of 32 GPUs


@pytest.mark.parametrize(
    ("name", "accelerator", "missing"),
    [
        ("torchtitan.log", None, "--on"),
        ("nemo.log", H100, "ranks"),
        ("torchtitan.log", replace(H100, dense_flops={"fp16": 1e15}), "peak of h100-sxm for bf16"),
    ],
)
def test_what_mfu_of_a_log_lacks_is_named(
    name: str, accelerator: Accelerator | None, missing: str
) -> None:
    ledger = useful(LOGS / name, 1e15, accelerator).ledger
    assert ledger is not None and ledger.mfu is None and ledger.booked("compute")
    assert missing in ledger.unavailable["compute.model"]


def test_more_flops_than_the_peak_are_an_error() -> None:
    with pytest.raises(InputError, match=r"--global-batch \(the log says 16 samples a step\)"):
        useful(LOGS / "torchtitan.log", 1e17)


def test_steps_before_the_first_time_of_a_log_are_not_in_its_window(tmp_path: Path) -> None:
    lines = [
        "[titan] 2025-03-04 10:00:00,000 - root - INFO - Building device mesh with parallelism: "
        "dp_shard=8"
    ]
    lines += [
        f"[titan] {stamp(100 + 2.0 * n)} - root - INFO - step: {n}  loss: 2.0  memory: 1GiB  tps: 9"
        for n in range(500, 601, 10)
    ]
    found = useful(written(tmp_path / "late.log", lines), 1e15)
    assert found.ledger is not None
    steps = found.ledger.booked("compute.model") * 989e12 / 1e15
    assert steps == pytest.approx(found.ledger.booked("compute") / 8 / 2.0)


@pytest.mark.shared
def test_the_precision_that_a_log_states_is_taken(data_folder: Path) -> None:
    """fp16 of a model of 18e9 parameters, 4 sequences of 1,024 tokens; V100, as if A100."""
    name = "gpt2-meg__meg_gpt2_base_n4_dp1_tp4_pp4-1809579.out"
    path = data_folder / "recordings" / "logs" / name
    found = useful(path, 6 * 18.4e9 * 4096, FACTS.accelerators["a100-80-sxm"])
    assert found.ledger is not None and found.ledger.peak is not None
    assert found.ledger.peak.precision == "fp16"
    assert not any("assumed" in note for note in found.notes)
    model = 200 * 6 * 18.4e9 * 4096 / 312e12
    assert found.ledger.booked("compute.model") == pytest.approx(model, rel=0.01)


def test_an_accelerator_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", str(LOGS / "torchtitan.log"), "--on", "banana"]) == 2
    assert "banana" in capsys.readouterr().err
