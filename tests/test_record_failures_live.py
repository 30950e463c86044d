"""Real ranks over gloo that sleep, die or save at their end, under `computeflow record`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from computeflow.catalog import load_catalog
from computeflow.diagnosis import diagnose_source
from computeflow.errors import InputError
from computeflow.telemetry.run_folders.run_folder_source import read_run_folder
from computeflow.telemetry.source_reports import SourceReport, SourceRequest
from recorded_runs import environment, record_words, script
from test_record_live import SCRIPTS, record

pytestmark = pytest.mark.live
ASKED = SourceRequest(catalog=load_catalog(()))
PATIENCE = 300.0
LAUNCHER = """
import os, subprocess, sys
port, world, *command = sys.argv[1:]
ranks = []
for rank in range(int(world)):
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks.append(subprocess.Popen([sys.executable, *command], env=os.environ | own | where))
for rank in ranks:
    rank.wait()
"""
"""Starts ranks as srun does: one that dies does not end the others."""


@contextmanager
def started(folder: Path, fault: str, ranks: int) -> Iterator[subprocess.Popen[bytes]]:
    """A recorded run in a session of its own, which is ended with all its processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    train = str(SCRIPTS / "failing_ranks.py")
    command = [sys.executable, script(folder, LAUNCHER, "launch.py"), port, str(ranks), train]
    process = subprocess.Popen(
        record_words(folder / "run", *command, fault, quiet=False),
        cwd=folder,
        env=environment(),
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)


def seen(folder: Path) -> SourceReport | None:
    try:
        return read_run_folder(folder, ASKED)
    except InputError:
        return None


@pytest.mark.parametrize(
    ("fault", "ranks"), [("forward", 2), ("loader", 2), ("code", 2), ("collective", 3)]
)
def test_a_rank_that_hangs_is_missing(tmp_path: Path, fault: str, ranks: int) -> None:
    report, until = None, time.monotonic() + PATIENCE
    with started(tmp_path, fault, ranks) as process:
        while (report is None or report.facts.stuck is None) and time.monotonic() < until:
            assert process.poll() is None
            time.sleep(0.5)
            report = seen(tmp_path / "run")
    assert report is not None
    found = next(f for f in diagnose_source(report).findings if f.rule == "hang")
    assert found.ranks == (1,), found.title
    assert report.facts.stuck.wait_seconds < 60


def test_a_rank_that_was_killed_is_silent(tmp_path: Path) -> None:
    with started(tmp_path, "killed", 3) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert b"1 process ended without a last record" in errors
    report = seen(tmp_path / "run")
    assert report is not None
    found = {finding.rule: finding for finding in diagnose_source(report).findings}
    assert found["silent-rank"].ranks == (1,)


def test_what_a_run_does_after_its_last_step_is_booked_and_the_folder_sealed(
    tmp_path: Path,
) -> None:
    pytest.importorskip("duckdb")
    done = record(tmp_path, "failing_ranks.py", "ending", ranks=2)
    report = seen(tmp_path / "run")
    assert report is not None and report.ledger is not None
    ledger = report.ledger
    assert ledger.booked("evaluation") == pytest.approx(2 * 1.5, rel=0.2)
    assert ledger.booked("checkpoint") >= 2.0
    waits = [e for e in ledger.entries if e.cause and e.cause.account == "checkpoint"]
    assert sum(entry.gpu_seconds for entry in waits) == pytest.approx(2.0, rel=0.2)
    assert ledger.booked("idle") < 0.5
    assert "sealed as Parquet" in done.output
    assert (tmp_path / "run" / "steps.parquet").is_file()
