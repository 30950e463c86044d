"""Real training under `record`, followed by a real collector: faults are named while they last.

One run has one fault after the other, each switched on and off by a file; each must be named on its
rank, and closed when it is gone.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from recorded_runs import environment, record_words

pytestmark = pytest.mark.live
SCRIPT = Path(__file__).parent / "record_scripts" / "faults_by_command.py"
BOUND_SECONDS = 300.0
"""Waits end by what happens, not by the clock: a machine may be busy."""


@dataclass
class Collector:
    address: str
    store: Path

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.address}{path}", timeout=30) as answer:
            data: dict[str, Any] = json.load(answer)
        return data

    def open_findings(self) -> list[dict[str, Any]]:
        return [each for each in self.get("/v1/findings")["findings"] if each["closed"] is None]

    def all_findings(self) -> list[dict[str, Any]]:
        with sqlite3.connect(f"file:{self.store / 'state.sqlite'}?mode=ro", uri=True) as state:
            rows = state.execute("SELECT data FROM findings ORDER BY opened").fetchall()
        return [json.loads(row[0]) for row in rows]


@contextmanager
def collecting(tmp_path: Path) -> Iterator[Collector]:
    runs = tmp_path / "runs"
    runs.mkdir()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "computeflow",
            "collect",
            "--store",
            str(tmp_path / "store"),
            "--listen",
            "127.0.0.1:0",
            "--follow",
            str(runs),
            "--price",
            "2",
        ],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield Collector(line.split()[-1].rstrip("/"), tmp_path / "store")
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def training(tmp_path: Path, ranks: int) -> Iterator[tuple[Path, list[subprocess.Popen[bytes]]]]:
    """Ranks that are started one by one, as srun does: none of them ends another."""
    command = tmp_path / "fault"
    folder = tmp_path / "runs" / "run"
    words = record_words(folder, sys.executable, str(SCRIPT), str(command))
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    with (tmp_path / "log").open("wb") as log:
        processes = [
            subprocess.Popen(
                words if rank == 0 else words[words.index("--") + 1 :],
                env=environment(RANK=str(rank), LOCAL_RANK=str(rank), **where)
                | ({} if rank == 0 else recording(folder)),
                stdout=log,
                stderr=log,
            )
            for rank in range(ranks)
        ]
        try:
            yield command, processes
        finally:
            command.write_text("end")
            for process in processes:
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def recording(folder: Path) -> dict[str, str]:
    from computeflow.recorder.starting import recording_environment

    return recording_environment(folder, environment())


def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def wait_for(what: Any, why: str) -> Any:
    until = time.monotonic() + BOUND_SECONDS
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.25)
    raise AssertionError(f"not within {BOUND_SECONDS:.0f} s: {why}")


def steps(collector: Collector) -> int:
    runs = collector.get("/v1/runs")["runs"]
    return int(runs[0]["step"]) if runs else 0


def named(collector: Collector, rule: str, ranks: list[int]) -> dict[str, Any] | None:
    for finding in collector.open_findings():
        if finding["rule"] == rule and finding["ranks"] == ranks:
            return finding
    return None


CASES = [
    ("loader", "input-stall"),
    ("compute", "straggler-rank"),
    ("garbage", "gc-pause"),
    ("save", "checkpoint-stall"),
    ("hang", "hang"),
]


@pytest.mark.parametrize("ranks", [2, 4])
def test_faults_are_named_on_their_rank_and_closed(tmp_path: Path, ranks: int) -> None:
    last = [ranks - 1]
    with collecting(tmp_path) as collector, training(tmp_path, ranks) as (command, _):
        wait_for(lambda: steps(collector) > 100, "the first steps")
        assert collector.open_findings() == []
        late: dict[str, float] = {}
        for fault, rule in CASES:
            began = time.time()
            command.write_text(fault)
            on = [0] if fault == "save" else last
            finding = wait_for(lambda on=on, rule=rule: named(collector, rule, on), fault)
            late[fault] = finding["opened"] - began
            assert finding["usd"] is not None
            command.write_text("")
            wait_for(lambda: collector.open_findings() == [], f"{fault} is over")
        print({fault: round(seconds, 1) for fault, seconds in late.items()})
    rules = [each["rule"] for each in collector.all_findings()]
    assert set(rules) == {rule for _, rule in CASES}
    audited = subprocess.run(
        [
            sys.executable,
            "-m",
            "computeflow",
            "audit",
            str(tmp_path / "runs" / "run"),
            "-o",
            "json",
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = {each["rule"] for each in json.loads(audited.stdout)["findings"]}
    assert found <= set(rules) | {"regression"}


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    with collecting(tmp_path) as collector, training(tmp_path, 4) as (command, processes):
        wait_for(lambda: steps(collector) > 60, "the first steps")
        command.write_text("kill")
        wait_for(lambda: processes[3].poll() is not None, "the rank is gone")
        finding = wait_for(
            lambda: [f for f in collector.all_findings() if f["rule"] == "silent-rank"],
            "silent-rank",
        )[0]
        assert finding["ranks"] == [3]
