"""`audit`: closed ledgers from traces, equal to what was measured beside them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.files.cache import cache_home
from computeflow.ledger import Ledger
from computeflow.telemetry.kineto.kineto_reader import read_trace
from computeflow.telemetry.trace_audit import audit
from computeflow.telemetry.traces.hta import hta_breakdown
from computeflow.telemetry.traces.job_ledgers import TracedJob
from computeflow.telemetry.traces.process_groups import account_of
from computeflow.telemetry.traces.rank import measure_trace
from computeflow.telemetry.traces.rank_measurements import TraceOptions
from kineto_maker import Maker, data_parallel_job

FACTS = load_catalog()
TRACES = Path(__file__).parent / "data" / "h200_traces"
INDEX: dict[str, dict[str, Any]] = json.loads((TRACES / "index.json").read_text())
SHARED = Path(os.environ.get("COMPUTEFLOW_DATA", "../shared/data"))


def of(*paths: Path, **options: Any) -> TracedJob:
    return audit(paths, FACTS, cache=False, options=TraceOptions(**options))


def own(name: str) -> TracedJob:
    return of(TRACES / f"{name}.json.gz")


def share(ledger: Ledger, account: str) -> float:
    return ledger.booked(account) / ledger.gpu_seconds


@pytest.mark.parametrize("name", INDEX)
def test_our_own_traces_close_and_agree_with_the_trainer(name: str) -> None:
    found, run_ = own(name).job.ledger, INDEX[name]["summary"]
    steps = run_["steps"][1:3]  # the profiler warms up in the one before
    seconds = sum(step["seconds"] for step in steps)
    assert found.wall_seconds == pytest.approx(seconds, rel=5e-3)
    assert share(found, "unexplained") < 0.02
    flops = run_["flops_per_token"] * sum(step["tokens"] for step in steps)
    assert found.peak is not None and found.mfu is not None
    assert found.mfu == pytest.approx(flops / seconds / found.peak.flops, rel=0.03)
    assert sum(found.accounts.values()) == pytest.approx(found.gpu_seconds, rel=1e-12)


STALLS: dict[str, tuple[str, ...]] = {
    "slow-loader": ("input",),
    "checkpoint-stall": ("checkpoint",),
    "gc-storm": ("host",),
    "host-sync": ("host",),
    "pageable-copy": ("copy", "host"),  # copying, and filling the host's memory before it
    "recompute-full": ("compute.recompute", "host"),  # and what it takes to launch it again
}
"""Planted faults, and the account in which each must appear."""
TWICE = 0.003
"""Seconds by which two runs of equal settings may differ."""
HEALTHY = {"wide": "healthy-wide", "deep": "healthy-deep", "big": "healthy-big-batch"}


@pytest.mark.parametrize("name", [name for name, run_ in INDEX.items() if run_["label"] in STALLS])
def test_a_planted_stall_is_in_its_account(name: str) -> None:
    """The stall equals the gain of the run without it, within a tenth and the spread of two runs."""
    found = own(name).job.ledger
    usual = own(HEALTHY.get(name.rpartition("-")[2], "healthy-base")).job.ledger
    added = found.wall_seconds - INDEX[name]["removed_seconds"]
    accounts = STALLS[INDEX[name]["label"]]
    grown = sum(found.booked(account) - usual.booked(account) for account in accounts)
    assert abs(grown - added) <= 0.1 * abs(added) + TWICE


def test_the_host_is_late_for_a_reason() -> None:
    causes = {name: own(name).ranks[0].host for name in ("host-sync-8", "gc-storm-800")}
    assert causes["host-sync-8"]["sync"] > 0.7 * sum(causes["host-sync-8"].values())
    storm = causes["gc-storm-800"]
    assert storm["gc"] > 0.5 * sum(storm.values())  # the rest of it makes the garbage
    assert "sync" not in own("launch-bound").ranks[0].host


def test_compiled_and_eager_steps_have_the_same_flops() -> None:
    assert own("healthy-compiled").ranks[0].flops == own("healthy-base").ranks[0].flops


def test_recomputation_is_no_model_flops() -> None:
    assert own("recompute-full").ranks[0].flops == own("healthy-base").ranks[0].flops


REFERENCE = SHARED / "reference" / "hta_reference.json"


@pytest.mark.shared
@pytest.mark.skipif(not REFERENCE.exists(), reason="needs COMPUTEFLOW_DATA")
def test_the_same_figures_as_holistic_trace_analysis() -> None:
    sets = json.loads(REFERENCE.read_text())["sets"]
    assert len(sets) == 4
    for name, expected in sets.items():
        files = sorted((SHARED / "recordings" / "kineto" / name).glob("*.gz"))
        rows = expected["results"]["temporal_breakdown"]
        overlaps = expected["results"]["comm_comp_overlap"]
        for file, row, overlap in zip(files, rows, overlaps, strict=True):
            found = hta_breakdown(read_trace(file))
            assert found is not None
            assert found.idle_time == row["idle_time(us)"]
            assert found.compute_time == row["compute_time(us)"]
            assert found.non_compute_time == row["non_compute_time(us)"]
            assert found.kernel_time == row["kernel_time(us)"]
            assert found.overlap_percent == overlap["comp_comm_overlap_pctg"]


@pytest.mark.shared
@pytest.mark.skipif(not REFERENCE.exists(), reason="needs COMPUTEFLOW_DATA")
def test_every_shared_trace_closes() -> None:
    files = sorted((SHARED / "recordings" / "kineto").rglob("*.gz"))
    assert len(files) == 13
    for file in files:
        found = of(file).job.ledger
        assert sum(found.accounts.values()) == pytest.approx(found.gpu_seconds, rel=1e-9)


def test_identical_ranks_wait_for_nobody(tmp_path: Path) -> None:
    data_parallel_job(tmp_path, 8)
    found = of(tmp_path).job
    assert found.ledger.gpus == found.ledger.gpus_total == 8
    assert share(found.ledger, "straggler") < 0.001
    assert share(found.ledger, "comm.dp") > 0.01


def test_a_slow_rank_is_named_with_its_wait(tmp_path: Path) -> None:
    """Kernels of 1.18 times the length, on a clock of its own: 36 µs of 200 in each of ten layers."""
    data_parallel_job(tmp_path, 8, slow={5: 1.18}, clocks={2: 7e6, 5: -3e6})
    found = of(tmp_path).job
    causes = {entry.cause for entry in found.ledger.entries if entry.account == "straggler"}
    assert [(cause.rank, cause.account) for cause in causes if cause] == [(5, "compute")]
    worst = max(found.ranks, key=lambda rank: rank.waited_for_seconds)
    assert worst.rank == 5 and worst.came_last == 1.0
    assert worst.waited_for_seconds == pytest.approx(7 * 3 * 10 * 36e-6, rel=0.02)
    assert found.ledger.booked("straggler") == pytest.approx(worst.waited_for_seconds)
    assert worst.ledger.booked("straggler") == 0
    assert found.clock_offsets_seconds[2] == pytest.approx(7.0, abs=1e-6)


def test_more_work_is_imbalance_and_no_straggler(tmp_path: Path) -> None:
    data_parallel_job(tmp_path, 4, longer={1: 1.25})
    found = of(tmp_path).job.ledger
    assert found.booked("imbalance") == pytest.approx(3 * 3 * 500e-6, rel=0.01)
    assert share(found, "straggler") < 0.1 * share(found, "imbalance")


def test_one_rank_of_many_does_not_know_who_was_late(tmp_path: Path) -> None:
    first = data_parallel_job(tmp_path, 4, slow={1: 1.5})[0]
    found = of(first).job.ledger
    assert (found.gpus, found.gpus_total) == (1, 4)
    assert "straggler" in found.unavailable and "straggler" not in found.accounts
    assert share(found, "comm.dp") > 0.2


@pytest.mark.parametrize(
    ("description", "account"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "comm.tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "comm.pp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "comm.dp"),
        ("CONTEXT_PARALLEL_GROUP", "comm.cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "comm.ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "comm.dp"),
        ("mesh_dp_shard", "comm.dp"),
        ("mesh_tp", "comm.tp"),
        ("mesh_pp", "comm.pp"),
        ("mesh_dp_shard_cp", "comm.dp"),
        ("default_pg", None),
        ("undefined", None),
    ],
)
def test_frameworks_names_of_groups(description: str, account: str | None) -> None:
    assert account_of(description) == account


USES = [
    ({"send": 5, "recv": 5}, "comm.pp"),
    ({"all_to_all": 8}, "comm.ep"),
    ({"all_gather": 6, "reduce_scatter": 3}, "comm.dp"),
    ({"broadcast": 4}, "comm.other"),
    ({"all_reduce": 6}, "comm.other"),  # launched in no backward pass: it may be anything
]


@pytest.mark.parametrize(("use", "account"), USES)
def test_a_group_without_a_name_is_known_by_its_use(
    use: dict[str, int], account: str, tmp_path: Path
) -> None:
    maker = Maker(world=2, groups={"0": ("default_pg", [0, 1])})
    for name, count in use.items():
        for _ in range(count):
            maker.kernel("gemm", 50.0)
            maker.collective(name, "0", maker.device + 40.0)
    maker.step(1, 1000.0)
    assert account in of(maker.write(tmp_path)).job.ledger.accounts


def test_the_window_is_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    data_parallel_job(tmp_path, 2, steps=4)
    whole, some = of(tmp_path), of(tmp_path, first_step=2, last_step=3)
    assert whole.job.ledger.window.label == "steps 1 to 4"
    assert some.job.ledger.window.label == "steps 2 to 3"
    assert some.job.ledger.wall_seconds == pytest.approx(
        whole.job.ledger.wall_seconds / 2, rel=0.01
    )
    assert sum(whole.ranks[0].step_seconds) == pytest.approx(whole.job.ranks[0].ledger.wall_seconds)


def test_flops_come_from_the_model_where_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trainer's model as a configuration: its FLOPs are those of the trace's shapes."""
    knobs = INDEX["healthy-base"]["summary"]["settings"]
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": knobs["hidden"],
                "vocab_size": knobs["vocab"],
                "num_hidden_layers": knobs["layers"],
                "num_attention_heads": knobs["heads"],
                "num_key_value_heads": knobs["kv_heads"],
                "intermediate_size": knobs["ffn"],
                "tie_word_embeddings": False,
            }
        )
    )
    trace = ["audit", str(TRACES / "healthy-base.json.gz"), "--no-cache", "-o", "json"]
    batch = ["--global-batch", str(knobs["micro_batch"]), "--seq-len", str(knobs["seq_len"])]
    assert run([*trace, "--model", str(config), *batch]) == 0
    accounts = json.loads(capsys.readouterr().out)["ledger"]["accounts"]
    shapes = own("healthy-base").job.ledger.accounts
    assert accounts["compute.model"] == pytest.approx(shapes["compute.model"], rel=1e-3)
    assert run([*trace, "--model", str(config)]) == 2


def test_what_is_kept_of_a_trace_gives_the_same_answer(tmp_path: Path) -> None:
    shutil.copy(TRACES / "healthy-wide.json.gz", tmp_path)
    path = tmp_path / "healthy-wide.json.gz"
    first = audit([path], FACTS)
    kept = list((cache_home() / "traces").iterdir())
    assert len(kept) == 1
    again = audit([path], FACTS)
    assert again.job == first.job
    kept[0].write_bytes(b"broken")
    assert audit([path], FACTS).job == first.job
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == [path.name]


@pytest.mark.parametrize("words", [["--details"], ["--window", "hta"], ["--window", "whole"]])
def test_tables_fit_80_columns(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", str(TRACES / "healthy-compiled.json.gz"), "--no-cache", *words]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "compute.model" in out


def test_json_has_the_ledger_and_where_it_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_parallel_job(tmp_path, 3, slow={1: 1.3})
    assert run(["audit", str(tmp_path), "--no-cache", "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "computeflow.audit/1"
    assert data["window"]["label"] == "steps 1 to 3"
    assert [rank["rank"] for rank in data["per_rank"]] == [0, 1, 2]
    assert sum(data["ledger"]["accounts"].values()) == pytest.approx(
        data["ledger"]["gpus"] * data["ledger"]["wall_seconds"]
    )
    assert {"findings", "abstained", "sources", "left_out"} <= set(data)


def test_two_recordings_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = (str(TRACES / f"{n}.json.gz") for n in ("slow-loader-0.1", "healthy-base"))
    assert run(["audit", slow, "--against", fast, "--no-cache", "-o", "json"]) == 0
    gaps = {tuple(gap["accounts"]): gap for gap in json.loads(capsys.readouterr().out)["gaps"]}
    largest = max(gaps, key=lambda key: gaps[key]["measured"] - gaps[key]["expected"])
    assert largest == ("input",)


def test_measured_against_predicted_at_equal_model_flops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["llama-3.2-1b", "--on", "h200-sxm:1", "--global-batch", "4", "--seq-len", "2048"]
    assert run(["predict", *words, "-o", "json"]) == 0
    plan = tmp_path / "plan.json"
    plan.write_text(capsys.readouterr().out)
    trace = str(TRACES / "healthy-base.json.gz")
    assert run(["audit", trace, "--expect", str(plan), "--no-cache", "-o", "json"]) == 0
    gaps = json.loads(capsys.readouterr().out)["gaps"]
    model = next(gap for gap in gaps if gap["accounts"] == ["compute.model"])
    assert model["measured"] == pytest.approx(model["expected"])


def test_a_trace_for_a_viewer_has_the_events_and_the_accounts(tmp_path: Path) -> None:
    target = tmp_path / "seen.json"
    source = TRACES / "healthy-compiled.json.gz"
    assert run(["audit", str(source), "--no-cache", "--perfetto", str(target)]) == 0
    data = json.loads(target.read_text())
    added = [event for event in data["traceEvents"] if event.get("cat") == "computeflow"]
    total = sum(event.get("dur", 0.0) for event in added if not event["name"].startswith("host:"))
    found = own("healthy-compiled")
    assert total / 1e6 == pytest.approx(found.job.ledger.gpu_seconds, rel=1e-6)
    assert len(data["traceEvents"]) - len(added) == found.ranks[0].events
    assert measure_trace(read_trace(target), TraceOptions()).accounts == found.ranks[0].accounts
