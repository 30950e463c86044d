"""Faults in training code that is not ours, made under `computeflow record` and named by `audit`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from test_record_live import ROOT, record

pytestmark = pytest.mark.live
UNEXPLAINED = 0.05
FAULTS = [
    ("faulty_trainer.py", "loader", 0, "input-stall", []),
    ("faulty_trainer.py", "callback", 0, "host-stall", []),
    ("faulty_lightning.py", "checkpoints", 0, "checkpoint-stall", []),
    ("faulty_lightning.py", "validation", 0, "evaluation", []),
    ("faulty_ranks.py", "compute", 2, "straggler-rank", [1]),
    ("faulty_ranks.py", "loader", 2, "input-stall", [1]),
    ("faulty_ranks.py", "garbage", 2, "gc-pause", [1]),
]
HEALTHY = [("faulty_trainer.py", 0), ("faulty_lightning.py", 0), ("faulty_ranks.py", 2)]


def audited(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "computeflow", "audit", str(folder), "-o", "json"],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "HOME": str(folder.parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(("script", "fault", "ranks", "rule", "on"), FAULTS)
def test_a_fault_is_named_first_and_on_its_rank(
    tmp_path: Path, script: str, fault: str, ranks: int, rule: str, on: list[int]
) -> None:
    record(tmp_path, script, fault, ranks=ranks)
    answer = audited(tmp_path / "run")
    first = answer["findings"][0]
    assert first["rule"] == rule
    assert not on or first["ranks"] == on
    assert answer["ledger"]["accounts"].get("unexplained", 0.0) < UNEXPLAINED * whole(answer)


@pytest.mark.parametrize(("script", "ranks"), HEALTHY)
def test_a_healthy_run_is_silent(tmp_path: Path, script: str, ranks: int) -> None:
    record(tmp_path, script, "none", ranks=ranks)
    answer = audited(tmp_path / "run")
    assert [finding["title"] for finding in answer["findings"]] == []
    assert answer["ledger"]["accounts"].get("unexplained", 0.0) < UNEXPLAINED * whole(answer)


def whole(answer: dict[str, Any]) -> float:
    ledger = answer["ledger"]
    return float(ledger["gpus"] * ledger["wall_seconds"])
