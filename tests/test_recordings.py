"""The recordings that other tests use: complete, small, and showing the planted faults."""

from __future__ import annotations

import csv
import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TRACES = ROOT / "tests" / "data" / "h200_traces"
JOBS = ROOT / "tests" / "data" / "gloo_traces"
HANGS = ROOT / "tests" / "data" / "gloo_hangs"
STEPS = ROOT / "benchmarks" / "data" / "h200" / "steps.csv"
INDEX: dict[str, dict[str, Any]] = json.loads((TRACES / "index.json").read_text())


def typical_step(name: str) -> float:
    """The fastest step of the run: the planted faults that hit every step are in it."""
    return float(INDEX[name]["summary"]["step_seconds_min"])


def test_all_recordings_together_stay_under_25_megabytes() -> None:
    files = [
        file for folder in (TRACES, JOBS, HANGS) for file in folder.rglob("*") if file.is_file()
    ]
    assert sum(file.stat().st_size for file in files) < 25e6


def test_every_trace_is_in_the_index() -> None:
    assert {path.name.removesuffix(".json.gz") for path in TRACES.glob("*.gz")} == set(INDEX)


@pytest.mark.parametrize("name", INDEX)
def test_a_trace_has_two_steps_and_kernels_of_an_h200(name: str) -> None:
    trace = json.loads(gzip.decompress((TRACES / f"{name}.json.gz").read_bytes()))
    events = trace["traceEvents"]
    steps = {e["name"] for e in events if e.get("cat") == "user_annotation"}
    assert len({step for step in steps if step.startswith("ProfilerStep")}) == 2
    assert sum(e.get("cat") == "kernel" for e in events) > 100
    assert trace["deviceProperties"][0]["name"] == "NVIDIA H200"


@pytest.mark.parametrize("kind", ["slow-loader", "pageable-copy", "gc-storm"])
def test_a_worse_fault_makes_a_slower_step(kind: str) -> None:
    severities = sorted(
        (float(name.removeprefix(f"{kind}-")), typical_step(name))
        for name, run in INDEX.items()
        if run["label"] == kind and run["planted"].keys() == {"fault"}
    )
    times = [seconds for _, seconds in severities]
    assert len(times) >= 3
    assert times == sorted(times)
    assert times[-1] > 2 * typical_step("healthy-base")


def test_a_slow_loader_costs_what_was_planted() -> None:
    planted = 4 * (0.1 - 0.03)  # four samples a step
    cost = typical_step("slow-loader-0.1") - typical_step("slow-loader-0.03")
    assert cost == pytest.approx(planted, rel=0.05)


@pytest.mark.parametrize("case", sorted(path.name for path in HANGS.iterdir()))
def test_the_culprit_of_a_hang_is_one_collective_behind(case: str) -> None:
    truth = json.loads((HANGS / case / "truth.json").read_text())
    last = {}
    for rank in range(truth["ranks"]):
        dump = pickle.loads((HANGS / case / f"rank_{rank}").read_bytes())  # recorded by ourselves
        last[rank] = max(entry["collective_seq_id"] for entry in dump["entries"])
    assert min(last, key=lambda rank: last[rank]) == truth["culprit"]
    assert {last[rank] for rank in last if rank != truth["culprit"]} == {max(last.values())}


def test_the_ground_truth_covers_what_it_should() -> None:
    rows = list(csv.DictReader(STEPS.open()))
    assert len(rows) >= 24
    assert {row["precision"] for row in rows} >= {"bf16", "amp", "fp32", "fp8"}
    assert {row["recompute"] for row in rows} == {"none", "selective", "full"}
    assert {row["compile"] for row in rows} == {"off", "block", "whole"}
    assert {int(row["seq_len"]) for row in rows} >= {512, 32768}
    assert all(float(row["watts"]) > 100 and float(row["sm_mhz"]) > 1000 for row in rows)
    for row in rows:
        phases = sum(float(row[f"{phase}_s"]) for phase in ("forward", "backward", "optimizer"))
        assert 0.94 < phases / float(row["step_time_s"]) < 1.01  # the rest is input and launches
