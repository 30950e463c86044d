"""Real training under `record`, beside a real collector: faults are named while they last.

One run has one fault after the other, each switched on and off; each must be named on its rank, and
closed when it is gone. Agents ship the records, one for each node: the last rank is on a node of its
own, where this machine lets a process have a host name of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmarks.live_training import (
    LAST_NODE,
    CpuQuota,
    agents,
    can_be_two_nodes,
    collecting,
    environment,
    training,
    wait_for,
)

pytestmark = pytest.mark.live
CASES = [
    ("loader", "input-stall"),
    ("compute", "straggler-rank"),
    ("quota", "straggler-rank"),
    ("garbage", "gc-pause"),
    ("save", "checkpoint-stall"),
    ("hang", "hang"),
]


@pytest.mark.parametrize("ranks", [2, 4])
def test_faults_are_named_on_their_rank_and_closed(tmp_path: Path, ranks: int) -> None:
    with (
        collecting(tmp_path) as collector,
        agents(tmp_path, collector),  # until the ranks have ended: else it is they that are missed
        training(tmp_path, ranks, nodes=True) as (command, processes),
        closing(CpuQuota(processes[-1].pid)) as quota,
    ):
        wait_for(lambda: collector.steps() > 100, "the first steps")
        assert collector.open_findings() == []
        late: dict[str, float] = {}
        for fault, rule in CASES:
            began = time.time()
            command.write_text(fault)
            if fault == "quota":
                quota.hold()
            on = [0] if fault == "save" else [ranks - 1]
            finding = wait_for(partial(collector.named, rule, on), fault)
            late[fault] = finding["opened"] - began
            assert finding["usd"] is not None
            if can_be_two_nodes() and on != [0]:
                assert finding["nodes"] == [LAST_NODE]
            if fault == "quota" and quota.is_real:
                wait_for(lambda: "quota" in evidence(collector.open_findings()), "the quota")
            quota.release()
            command.write_text("")
            wait_for(lambda: collector.open_findings() == [], f"{fault} is over")
        print({fault: round(seconds, 1) for fault, seconds in late.items()})
    rules = [each["rule"] for each in collector.all_findings()]
    assert set(rules) == {rule for _, rule in CASES}
    words = ["audit", str(tmp_path / "runs" / "run"), "-o", "json"]
    audited = subprocess.run(
        [sys.executable, "-m", "computeflow", *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = {each["rule"] for each in json.loads(audited.stdout)["findings"]}
    assert found <= set(rules) | {"regression"}


def evidence(findings: list[dict[str, Any]]) -> str:
    return " ".join(each["what"] for finding in findings for each in finding["evidence"])


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    follow = ("--follow", str(tmp_path / "runs"))
    with (
        collecting(tmp_path, *follow) as collector,
        training(tmp_path, 4) as (command, processes),
    ):
        wait_for(lambda: collector.steps() > 60, "the first steps")
        command.write_text("kill")
        wait_for(lambda: processes[3].poll() is not None, "the rank is gone")
        finding = wait_for(
            lambda: [f for f in collector.all_findings() if f["rule"] == "silent-rank"],
            "silent-rank",
        )[0]
        assert finding["ranks"] == [3]
