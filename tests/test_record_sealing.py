"""`record` seals its run folder when the command has ended, and never at the cost of the run."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from computeflow.answers.records import RecordAnswer, record
from computeflow.collection import launching, sealing
from run_folder_maker import Training

pytest.importorskip("duckdb")
NOTHING = [sys.executable, "-c", "import sys; sys.exit(7)"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which a run of this host has left its files."""
    return Training(steps=5, host=lambda rank: socket.gethostname()).write(tmp_path / "run")


def launched(folder: Path, *, no_seal: bool = False) -> RecordAnswer:
    answer = record(NOTHING, out=folder, no_seal=no_seal)
    assert isinstance(answer, RecordAnswer)
    assert answer.exit_code == 7
    return answer


def sealed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.parquet"))


def test_a_recorded_run_is_sealed_and_says_so(folder: Path) -> None:
    answer = launched(folder)
    assert "sealed as Parquet: steps.parquet, spans.parquet" in answer.headline
    assert len(sealed(folder)) == 4


def test_it_is_left_out_if_asked(folder: Path) -> None:
    assert "Parquet" not in launched(folder, no_seal=True).headline
    assert not sealed(folder)


def test_nothing_is_sealed_where_nothing_was_recorded(tmp_path: Path) -> None:
    assert "Parquet" not in launched(tmp_path).headline


def test_a_huge_recording_is_not_sealed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "MAX_SEALED_BYTES", 1 << 10)
    assert "not sealed as Parquet: more than" in launched(folder).headline
    assert not sealed(folder)


def test_another_hosts_run_is_left_to_that_host(tmp_path: Path) -> None:
    folder = Training(steps=5, host=lambda rank: f"node{rank}").write(tmp_path / "run")
    assert "that is left to node0" in launched(folder).headline
    assert not sealed(folder)


def test_what_goes_wrong_is_said_and_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise MemoryError("no room\nfor it")

    monkeypatch.setattr(sealing, "seal", fail)
    assert "not sealed as Parquet: no room" in launched(folder).headline
    assert json.loads((folder / "run.json").read_text())["exit_code"] == 7


def test_a_signal_ends_the_sealing_and_not_the_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sealing, "seal", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert "a signal came meanwhile" in launched(folder).headline
    assert signal.getsignal(signal.SIGTERM) is before
