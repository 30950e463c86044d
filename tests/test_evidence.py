"""What measured runs say beyond the formulas: learned with shrinkage, ranges by distance."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.collect_cases import packaged_cases, seen

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.cluster import find_cluster
from computeflow.prediction import find_stack, load_parameters, predict
from computeflow.prediction.evidence import SeenRun, Traits, evidence_for, learn, seen_runs
from computeflow.prediction.evidence.maturity import packaged_maturity
from computeflow.prediction.evidence.rests_on import CLASSES
from computeflow.prediction.evidence.seen_runs import PACKAGED
from computeflow.prediction.ranges import PredictionSpread
from computeflow.prediction.validation.leave_out import LeftOut, leave_out
from computeflow.workload import Job, Layout

FACTS = load_catalog()
PARAMETERS = load_parameters()
CASES, SKIPPED = packaged_cases()
TABLES = [case for case in CASES if case.row_id[0] not in "fo"]
PLAIN = Traits(
    device="x100",
    generation="V one",
    stack="loop",
    family="torch",
    kind="dense",
    young=False,
)


def made(source: str, log_ratio: float, count: int = 8, **traits: str | bool) -> list[SeenRun]:
    own = replace(PLAIN, **traits)  # type: ignore[arg-type]
    return [
        SeenRun(row_id=f"{source}-{n}", source=source, traits=own, gpus=8, log_ratio=log_ratio)
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def left_out() -> LeftOut:
    return leave_out(TABLES, seen_runs(), PARAMETERS)


def test_the_packaged_evidence_is_what_the_formulas_give() -> None:
    """After a change of the formulas: `python -m benchmarks.collect_cases --evidence`."""
    now = {run.row_id: run for run in seen(CASES)}
    with PACKAGED.open(newline="", encoding="utf-8") as file:
        kept = {row["row_id"]: float(row["log_ratio"]) for row in csv.DictReader(file)}
    assert kept.keys() == now.keys()
    assert max(abs(kept[name] - run.log_ratio) for name, run in now.items()) < 2e-3
    learned, packaged = learn(seen_runs()).factors, packaged_maturity().factors
    assert learned.keys() == packaged.keys()
    assert max(abs(packaged[one].mean - factor.mean) for one, factor in learned.items()) < 2e-3


def test_nearly_all_rows_are_answered() -> None:
    assert len(CASES) / (len(CASES) + len(SKIPPED)) > 0.95
    assert sum(name[0] != "f" for name in SKIPPED) <= 2


def test_errors_with_the_source_left_out(left_out: LeftOut) -> None:
    """benchmarks/reports/unseen.md has all figures; these only may not grow."""
    errors = np.abs(np.exp(-left_out.log_ratios) - 1)
    kinds = np.array([spread.kind for spread in left_out.spreads])
    assert np.median(errors[kinds == "dense"]) < 0.099
    means = {kind: float(errors[kinds == kind].mean()) for kind in set(kinds.tolist())}
    assert means["dense"] < 0.13
    assert means["low precision"] < 0.15
    assert means["experts"] < 0.225
    assert means["low-rank"] < 0.20
    assert 0.74 < left_out.inside.mean() < 0.90


def test_a_factor_that_several_sources_share_is_learned() -> None:
    known = learn([run for n in range(8) for run in made(f"team {n}", 0.3 + 0.01 * (n % 3))])
    found = known.outlook(PLAIN)
    assert found.mean == pytest.approx(0.3, abs=0.08)
    assert found.rate == pytest.approx(np.exp(-found.mean))
    alone = learn(made("one team", 0.3, count=60)).outlook(PLAIN)
    assert alone.mean < 0.15
    assert alone.deviation > found.deviation


def test_chance_is_not_learned() -> None:
    around = [run for n in range(8) for run in made(f"team {n}", 0.05 * (-1) ** n)]
    assert abs(learn(around).outlook(PLAIN).mean) < 0.01
    assert learn([]).outlook(PLAIN).mean == 0


def test_what_others_reach_says_nothing_of_a_stack_that_its_vendor_tunes() -> None:
    known = learn([run for n in range(8) for run in made(f"team {n}", 0.4)])
    tuned = replace(PLAIN, device="y", generation="V two", stack="core", family="megatron")
    assert abs(known.outlook(tuned).mean) < 0.05
    assert known.outlook(replace(tuned, family="huggingface")).mean > 0.2


@pytest.mark.parametrize(
    ("device", "stack", "distance", "words"),
    [
        ("x100", "loop", "together", "rests on 8 measured runs of loop on x100"),
        ("x100", "other", "apart", "no run of other on x100 is known"),
        ("y", "other", "one seen", "no run of y is known: rests on 1 measured run of other"),
        ("x100", "new", "one seen", "no run of new is known: rests on 8 measured runs of x100"),
        ("y", "new", "none seen", "no run of y or of new is known"),
    ],
)
def test_a_prediction_says_what_it_rests_on(
    device: str, stack: str, distance: str, words: str
) -> None:
    known = [*made("a", 0.1), *made("b", 0.0, count=1, device="z", stack="other")]
    found = evidence_for(replace(PLAIN, device=device, stack=stack), known)
    assert found.distance == distance
    assert found.line.startswith(words)
    assert found.to_dict()["class"] == distance
    assert found.nearest[0].startswith("b" if stack == "other" and device == "y" else "a")


def test_a_run_larger_than_any_that_was_measured_says_so() -> None:
    found = evidence_for(PLAIN, made("a", 0.1))
    assert found.line_at(8) == found.line
    assert found.line_at(16) == (
        "rests on 8 measured runs of loop on x100. Caution: the largest of them had 8 devices, this "
        "run has 16"
    )
    assert evidence_for(replace(PLAIN, device="y"), made("a", 0.1)).largest_gpus == 0


def test_the_range_grows_with_the_distance_to_evidence() -> None:
    maturity = learn(made("a", 0.0))
    spread = PredictionSpread(
        outlook=maturity.outlook(PLAIN), family="torch", kind="dense", distance="together"
    )
    widths = [high / low for low, high in (replace(spread, distance=d).range for d in CLASSES)]
    assert widths[0] == min(widths)
    assert replace(spread, assumed=("stack",)).deviation > spread.deviation
    assert replace(spread, family="huggingface").deviation > spread.deviation


def test_a_device_that_nobody_measured_has_a_wider_range() -> None:
    job = Job(model=FACTS.models["llama-3.1-8b"], global_batch=64, seq_len=8192)
    cluster = replace(find_cluster("h100-sxm:64", FACTS), assumed=())
    unknown = replace(cluster, accelerator=replace(cluster.accelerator, name="h900-sxm"))
    known, new = (
        predict(job, one, Layout(gpus=64), find_stack("torchtitan")) for one in (cluster, unknown)
    )
    assert (known.evidence.distance, new.evidence.distance) == ("together", "one seen")
    ratio = [high / low for low, high in (p.step_seconds_range for p in (known, new))]
    assert ratio[1] > ratio[0]


def test_one_measured_step_corrects_the_prediction_and_narrows_its_range(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = "predict llama-3.1-8b --on h100-sxm:64 --global-batch 512 --seq-len 8192 -o json".split()
    assert run([*job, "--stack", "torchtitan"]) == 0
    before = json.loads(capsys.readouterr().out)
    slow = 1.3 * before["step_seconds"]
    assert run([*job, "--stack", "torchtitan", "--measured", str(slow)]) == 0
    after = json.loads(capsys.readouterr().out)
    assert before["step_seconds"] < after["step_seconds"] < slow
    widths = [
        found["step_seconds_range"][1] / found["step_seconds_range"][0] for found in (before, after)
    ]
    assert widths[1] < widths[0]
    assert "far from the prediction" not in str(after["calibrated"])
    far = str(2 * before["step_seconds"])
    assert run([*job, "--stack", "torchtitan", "--measured", far]) == 0
    assert "far from the prediction" in str(json.loads(capsys.readouterr().out)["calibrated"])
    for seconds, words in (("0", "above zero"), ("900", "check the unit")):
        assert run([*job, "--measured", seconds]) == 2
        assert words in capsys.readouterr().err
