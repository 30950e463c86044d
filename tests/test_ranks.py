"""The recordings of several ranks: which there are, and how their truth is computed."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from benchmarks.ranks.cases import CASES, CLASSES, FRAMEWORKS, Case

FOLDER = Path(__file__).parents[1] / "benchmarks" / "ranks"
BLOCKS = 6
"""Three pairs: the fault on, then off."""


def test_scripts_of_each_framework_fit_and_judge() -> None:
    kinds = {(case.framework, case.half) for case in CASES.values()}
    names = {*FRAMEWORKS.values(), "pipeline by hand", "torch.distributed.pipelining"}
    assert kinds == {(name, half) for name in names for half in ("fit", "judge")}


def test_there_are_enough_recordings() -> None:
    clean = [case for case in CASES.values() if case.fault == "none"]
    assert len(CASES) >= 60 and len(clean) >= 16
    assert {case.fault for case in CASES.values()} == set(CLASSES)
    assert {case.ranks for case in CASES.values()} == {2, 4, 8}


@pytest.mark.parametrize(
    ("script", "ranks", "micro_batches", "share"),
    [
        ("pipeline_1f1b", 4, 16, 3 / 19),
        ("pipeline_gpipe", 2, 2, 1 / 3),
        ("pipeline_interleaved", 4, 16, 3 / 35),
    ],
)
def test_the_bubble_is_that_of_the_schedule(
    script: str, ranks: int, micro_batches: int, share: float
) -> None:
    case = Case(name="a", script=script, ranks=ranks, micro_batches=micro_batches)
    assert case.bubble_share() == pytest.approx(share)


def test_the_gain_is_that_between_blocks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from benchmarks.ranks.meter import switch_plan
    from benchmarks.ranks.record import measure

    case = CASES["ddp_loop_2_slow-20"]
    steps = [0.12 if on else 0.1 for on in switch_plan(BLOCKS // 2, 8)] + [0.12] * 8
    ends = [sum(steps[: number + 1]) for number in range(len(steps))]
    for rank in range(case.ranks):
        (tmp_path / f"times-{rank}.json").write_text(json.dumps({"ends": ends, "block_steps": 8}))
    row = measure(case, tmp_path)
    assert row["gain_share"] == pytest.approx(1 - 0.1 / 0.12, abs=1e-3)
    assert row["gain_low"] == row["gain_high"] == row["gain_share"]
    assert row["visible"]


def test_kept_traces_have_their_truth() -> None:
    with (FOLDER / "truth.csv").open(newline="") as file:
        rows = {row["recording"]: row for row in csv.DictReader(file)}
    kept = [path for path in (FOLDER / "traces").iterdir() if path.is_dir()]
    assert kept
    for path in kept:
        row = rows[path.name]
        assert row["half"] == "fit" and row["visible"] == "True"
        assert len(list(path.glob("*.json.gz"))) == int(row["ranks"])
