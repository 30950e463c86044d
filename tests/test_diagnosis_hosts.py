"""Findings on traces without a device, and on hosts that are never ahead of theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.diagnosis import Diagnosis, diagnose
from computeflow.diagnosis.regression import regressions
from computeflow.diagnosis.settle import settle
from computeflow.ledger import ClaimedSeconds, Evidence, Finding, Gap
from computeflow.telemetry.trace_audit import audit
from computeflow.telemetry.traces.event_names import EventTable, Mark, mark_of
from kineto_maker import Maker

CATALOG = load_catalog(())
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def host_trace(folder: Path, steps: Sequence[Sequence[tuple[str, str, float]]]) -> Path:
    """Spans of each step one after another, in milliseconds; "" is a pause."""
    maker = Maker()
    now = 1000.0
    for number, parts in enumerate(steps):
        began = now
        for category, name, length in parts:
            if category:
                maker.span(category, name, now, 1000 * length)
            now += 1000 * length
        maker.span("user_annotation", f"ProfilerStep#{number}", began, now - began)
    return maker.write(folder)


def diagnosed(path: Path) -> Diagnosis:
    return diagnose(audit([path], CATALOG, cache=False), CATALOG)


def work(length: float) -> tuple[str, str, float]:
    return ("cpu_op", "aten::mm", length)


def load(length: float) -> tuple[str, str, float]:
    return ("user_annotation", LOADER, length)


def test_a_steady_stall_is_found_however_much_steps_differ(tmp_path: Path) -> None:
    lengths = [10.0, 60.0, 25.0, 90.0, 40.0, 15.0]
    found = diagnosed(host_trace(tmp_path, [[load(15.0), work(n)] for n in lengths]))
    (finding,) = found.findings
    assert finding.rule == "input-stall"
    assert finding.gpu_seconds == pytest.approx(6 * 0.015, rel=0.05)


@pytest.mark.parametrize(
    ("mark", "rule"), [("python gc", "gc-pause"), ("checkpoint", "checkpoint-stall")]
)
def test_a_pause_of_a_host_without_a_lead_is_claimed_once(
    tmp_path: Path, mark: str, rule: str
) -> None:
    """Nothing later is attributed to it, as the host had no lead to lose."""
    usual = [work(3.0), ("", "", 0.4), work(3.0), ("", "", 0.4)]
    steps = [[*usual, ("user_annotation", mark, 10.0), *usual], *([usual] * 5)]
    (finding,) = diagnosed(host_trace(tmp_path, steps)).findings
    assert finding.rule == rule
    assert finding.gpu_seconds == pytest.approx(0.010, rel=0.1)


def test_what_the_loader_computes_is_input(tmp_path: Path) -> None:
    maker, now = Maker(), 1000.0
    for number in range(4):
        began = now
        maker.span("user_annotation", LOADER, now, 30_000.0)
        maker.span("cpu_op", "aten::upsample_bilinear2d", now + 100.0, 29_000.0)
        maker.span("cpu_op", "aten::mm", now + 30_000.0, 10_000.0)
        now += 40_000.0
        maker.span("user_annotation", f"ProfilerStep#{number}", began, now - began)
    (finding,) = diagnosed(maker.write(tmp_path)).findings
    assert finding.rule == "input-stall"
    assert finding.gpu_seconds == pytest.approx(4 * 0.030, rel=0.02)


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("train/save_checkpoint_run.py(12): main", Mark.NONE),
        ("pk/checkpoints/no_save/train.py(3): step", Mark.NONE),
        ("torch/utils/checkpoint.py(354): checkpoint", Mark.NONE),
        ("torch/utils/checkpoint.py(90): save_inputs", Mark.NONE),
        ("torch/serialization.py(900): save", Mark.CHECKPOINT),
        ("torch/distributed/checkpoint/state_dict_saver.py(80): async_save", Mark.CHECKPOINT),
        ("trainer.py(4): save_checkpoint", Mark.CHECKPOINT),
        ("trainer.py(4): _save_ckpt", Mark.CHECKPOINT),
        ("torch/utils/data/dataloader.py(633): __next__", Mark.INPUT),
    ],
)
def test_a_function_is_known_by_its_name_and_not_by_its_file(name: str, mark: Mark) -> None:
    assert mark_of(name, EventTable.PYTHON) == mark


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("load_data", Mark.INPUT),
        ("get_batch", Mark.INPUT),
        ("## data ##", Mark.INPUT),
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", Mark.INPUT),
        ("save checkpoint", Mark.CHECKPOINT),
        ("save_ckpt", Mark.CHECKPOINT),
        ("activation_checkpoint_save", Mark.NONE),
        ("get_input_embeddings", Mark.NONE),
    ],
)
def test_usual_annotations_are_known(name: str, mark: Mark) -> None:
    assert mark_of(name, EventTable.ANNOTATION) == mark


def test_time_that_no_rule_explains_is_said(tmp_path: Path) -> None:
    steps = [[work(1.0), ("", "", 9.0), work(1.0), ("", "", 1.0)]] * 4
    found = diagnosed(host_trace(tmp_path, steps))
    assert not found.findings
    assert any(note.startswith("host: ") and "any rule" in note for note in found.notes)
    assert "unfused-attention" in {one.rule for one in found.abstained}


def test_a_finding_that_is_dropped_leaves_its_seconds_to_others() -> None:
    def wants(rule: str, seconds: float) -> Finding:
        claims = (ClaimedSeconds(account="host", gpu_seconds=seconds),)
        return Finding(
            rule=rule,
            title=rule,
            account="host",
            claims=claims,
            confidence=0.5,
            evidence=(Evidence(what="seen", where="here"),),
        )

    lines = [Gap(accounts=("host",), measured=5.0, expected=1.0)]
    (kept,) = settle([wants("gc-pause", 9.0), wants("launch-bound", 4.0)], lines)
    assert (kept.rule, kept.gpu_seconds) == ("launch-bound", 4.0)


def test_more_work_in_less_time_for_each_of_it_is_no_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recordings are compared at equal FLOPs, also where no device says its peak."""
    paths = []
    for name, rows, length in (("small", 64, 10.0), ("large", 256, 19.0)):
        maker, now = Maker(), 1000.0
        for number in range(4):
            dims = {"Input Dims": [[rows, 512], [512, 512]], "Input type": ["float"] * 2}
            maker.span("cpu_op", "aten::mm", now, 1000 * length, **dims)
            maker.span("user_annotation", f"ProfilerStep#{number}", now, 1000 * length)
            now += 1000 * length
        (tmp_path / name).mkdir()
        paths.append(str(maker.write(tmp_path / name)))
    small, large = paths
    assert run(["audit", large, "--no-cache", "--against", small, "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["findings"] == []
    assert sum(line["measured"] - line["expected"] for line in data["gaps"]) < 0


def test_what_moves_between_accounts_of_a_faster_run_is_no_regression(tmp_path: Path) -> None:
    path = host_trace(tmp_path, [[work(10.0), ("", "", 5.0), work(5.0)]] * 4)
    ledger = audit([path], CATALOG, cache=False).job.ledger
    lines = [
        Gap(accounts=("host",), measured=0.020, expected=0.010),
        Gap(accounts=("compute",), measured=0.060, expected=0.100),
    ]
    assert regressions(ledger, lines, [], "before") == []


def test_a_closed_pipe_loses_neither_baseline_nor_exit_code(tmp_path: Path) -> None:
    path = host_trace(tmp_path, [[load(15.0), work(20.0)]] * 4)
    command = [
        sys.executable,
        "-m",
        "computeflow.cli",
        "audit",
        str(path),
        "--no-cache",
        "--baseline",
        "job",
        "--fail-on",
        "5",
    ]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, env=environment, check=False)
    os.close(writing)
    assert done.returncode == 3
    assert list(tmp_path.rglob("job.json"))
