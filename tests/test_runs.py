"""`runs` lists recorded runs; `improve` and `audit --against` read them, too."""

from __future__ import annotations

from pathlib import Path

import pytest

import computeflow as cf
from computeflow.errors import InputError
from computeflow.telemetry.run_folders import run_folder_source
from run_folder_maker import MS, Training


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Training(steps=40, startup=1000 * MS).write(tmp_path / "first")
    later = Training(steps=40, begins=3_600_000 * MS, extra=lambda rank, step: {"d": 20 * MS})
    later.write(tmp_path / "second")
    Training(steps=30, begins=7_200_000 * MS, ends=False).write(tmp_path / "third")
    Training(steps=30, begins=7_210_000 * MS, first_count=21, attempt=1).write(tmp_path / "third")
    return tmp_path


def test_runs_are_listed_the_latest_first(folder: Path) -> None:
    rows = cf.runs(folder).history.rows
    assert [Path(row.folder).name for row in rows] == ["third", "second", "first"]
    third, second, first = rows
    assert (third.restarts, third.steps) == (1, 50)
    assert first.step_seconds == pytest.approx(0.1016)
    assert second.step_seconds == pytest.approx(0.1216)
    assert first.goodput == pytest.approx(39 * 0.1016 / (1 + 40 * 0.1016))
    assert first.mfu is None and first.usd is None


def test_runs_are_priced_and_compared(folder: Path) -> None:
    answer = cf.runs(folder, against="first", price=3.0)
    third, second, _ = answer.history.rows
    assert second.step_ratio == pytest.approx(0.1216 / 0.1016)
    assert third.usd == pytest.approx(third.gpu_hours * 3.0)
    assert "against first" in answer.headline
    assert answer.to_dict()["against"]["name"] == "first"
    elsewhere = cf.runs(folder / "second", against=str(folder / "first"))
    assert elsewhere.history.rows[0].step_ratio == second.step_ratio


def test_a_run_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "rank-0.attempt-0.cfr").write_bytes(b"CFREC\x09\r\n")
    answer = cf.runs(folder)
    assert len(answer.history.rows) == 3
    assert "format version 9" in answer.history.left_out[0]


def test_runs_are_found_below_folders_of_teams_and_days(folder: Path) -> None:
    (folder / "team" / "day").mkdir(parents=True)
    (folder / "second").rename(folder / "team" / "day" / "second")
    (folder / ".hidden").mkdir()
    (folder / "third").rename(folder / ".hidden" / "third")
    (folder / "team" / "all").symlink_to(folder)  # a circle
    names = [Path(row.folder).relative_to(folder) for row in cf.runs(folder).history.rows]
    assert names == [Path("team/day/second"), Path("first")]


def test_of_more_folders_than_are_looked_at_the_rest_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder_source, "FOLDERS", 2)
    history = cf.runs(folder).history
    assert [Path(row.folder).name for row in history.rows] == ["second", "first"]
    assert history.left_out == (f"{folder}: runs are looked for in 2 folders; it has more",)


def test_what_is_no_history_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no recorded runs"):
        cf.runs(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        cf.runs(tmp_path / "nowhere")


def test_an_unknown_run_is_named_with_its_neighbours(folder: Path) -> None:
    with pytest.raises(InputError, match="first"):
        cf.runs(folder, against="frst")


def test_the_user_s_own_runs_are_the_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    Training(steps=5).write(state / "computeflow" / "runs" / "mine")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    assert [row.name for row in cf.runs().history.rows] == ["mine"]


def test_improve_starts_from_the_recorded_step(folder: Path) -> None:
    answer = cf.improve(folder / "second")
    assert answer.start.step_seconds == pytest.approx(0.1216)
    (step,) = answer.steps
    assert step.rule == "input-stall"
    assert step.step_seconds == pytest.approx(0.1016 - 0.001, rel=0.01)


def test_an_audit_against_an_earlier_run_is_at_equal_tokens(folder: Path) -> None:
    report = cf.audit(folder / "second", against=folder / "first").report
    assert report.compared is not None and report.compared.at == "equal tokens"
    grown = {line.label: line.gpu_seconds for line in report.compared.lines}
    assert grown["input"] == pytest.approx(2 * 39 * 0.02)
