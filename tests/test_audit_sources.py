"""`audit` on a mix of files: sorted by content, joined by time and node, redacted on request."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from computeflow.answers import periods
from computeflow.answers.periods import parse_period
from computeflow.cli import run
from computeflow.errors import InputError
from computeflow.telemetry.correlation import correlate
from computeflow.telemetry.source_registry import sort_files
from computeflow.telemetry.source_reports import Event, SourceReport

DATA = Path(__file__).parent / "data"
SHARED = Path(os.environ.get("COMPUTEFLOW_DATA", "../shared/data"))
RECORDINGS = SHARED / "recordings"


def test_files_are_sorted_by_what_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing that anybody measures\n")
    found = sort_files(
        [
            DATA / "gloo_hangs",
            DATA / "accounting",
            DATA / "logs",
            tmp_path,
            DATA / "h200_traces" / "healthy-wide.json.gz",
        ]
    )
    assert {"kineto", "flight-recorder", "accounting", "log"} <= set(found.files)
    assert len(found.files["kineto"]) == 1
    assert any("1 .txt" in note for note in found.left_out)


@pytest.mark.shared
@pytest.mark.skipif(not RECORDINGS.exists(), reason="needs COMPUTEFLOW_DATA")
def test_every_shared_recording_is_of_its_kind() -> None:
    kinds = {
        "kineto": "kineto",
        "flight_recorder": "flight-recorder",
        "bytedance_straggler": "op-timeline",
        "logs": "log",
        "nsys": "nsys",
    }
    for folder, kind in kinds.items():
        files = sort_files([RECORDINGS / folder]).files
        assert set(files) == {kind}, (folder, files)


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run(["audit", *words, "-o", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_hang_has_a_finding_and_no_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, str(DATA / "gloo_hangs" / "ddp-4-ranks"))
    assert data["ledger"] is None and data["ledger_reason"]
    truth = json.loads((DATA / "gloo_hangs" / "ddp-4-ranks" / "truth.json").read_text())
    (finding,) = data["findings"]
    assert finding["rule"] == "hang"
    assert finding["ranks"] == [truth["culprit"]]


def test_a_trace_and_a_hang_in_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(DATA / "h200_traces" / "healthy-wide.json.gz")
    words = [trace, str(DATA / "gloo_hangs" / "fsdp-2-ranks"), "--no-cache"]
    data = answer(capsys, *words)
    assert data["ledger"]["accounts"]["compute.model"] > 0
    assert [each["kind"] for each in data["observed"]] == ["flight-recorder"]
    assert run(["audit", *words]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_hang_comes_first_among_traces_and_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(DATA / "h200_traces" / "gc-storm-deep.json.gz")
    words = [trace, str(DATA / "logs"), str(DATA / "gloo_hangs" / "fsdp-2-ranks"), "--no-cache"]
    data = answer(capsys, *words)
    assert len(data["findings"]) > 1 and data["findings"][0]["rule"] == "hang"
    page = tmp_path / "report.html"
    assert run(["audit", *words, "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("The job hangs: rank 1")
    assert out.index("\nhang ") < out.index("evidence and remedy")
    text = page.read_text()
    assert 0 < text.index("Ranks that hold the others up") < text.index("What was audited")


def test_a_hang_fails_whatever_its_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps = str(DATA / "gloo_hangs" / "ddp-4-ranks")
    page = tmp_path / "report.html"
    assert run(["audit", dumps, "--fail-on", "50", "--html", str(page)]) == 3
    assert "never arrived" in page.read_text()
    assert run(["audit", dumps]) == 0
    assert "The job hangs" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["accounting", "logs", "gloo_hangs"])
def test_tables_of_all_kinds_fit_80_columns(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", str(DATA / kind)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_period_is_priced_and_its_energy_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", str(DATA / "accounting"), "--price", "2.5", "--grid", "us-virginia"]
    assert run(words) == 0
    out = capsys.readouterr().out
    assert "$" in out and "No source here reads power" in out
    assert max(map(len, out.splitlines())) <= 80
    assert run([*words, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["energy"]["kg_co2e"] is None
    assert run([*words, "--period", "1999-01-01:1999-02-01", "-o", "json"]) == 0
    empty = json.loads(capsys.readouterr().out)
    assert (empty["ledger"], empty["ledger_reason"]) == (None, "no job had GPUs in the period")


def observed(kind: str, *happenings: Event) -> SourceReport:
    return SourceReport(kind=kind, sources=(kind,), facts=None, happenings=happenings)


def test_what_happens_together_is_shown_together() -> None:
    fault = Event(seconds=1000.0, what="xid 79", node="gpu-7", fault=True)
    restart = Event(seconds=1300.0, what="restart", rank=3)
    elsewhere = Event(seconds=1350.0, what="nfs stall", node="gpu-9")
    later = Event(seconds=9000.0, what="restart")
    groups = correlate([observed("kernel-log", fault, elsewhere), observed("log", restart, later)])
    assert [[h.what for _, h in group.parts] for group in groups] == [["xid 79", "restart"]]
    assert groups[0].node == "gpu-7"


def test_one_source_alone_is_not_together() -> None:
    faults = [Event(seconds=t, what="xid 79", fault=True) for t in (1.0, 2.0)]
    assert correlate([observed("kernel-log", *faults)]) == []


def test_a_redacted_answer_names_no_file_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    folder = str((DATA / "gloo_hangs" / "ddp-4-ranks").resolve())
    assert run(["audit", folder, "--redact", "-o", "json"]) == 0
    assert folder not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30d", 30 * 86400),
        ("12h", 12 * 3600),
        ("2026-10-01:2026-10-02", 86400),
        ("2026-10-01T10:00:2026-10-01T11:30", 5400),
    ],
)
def test_periods(text: str, seconds: float) -> None:
    start, end = parse_period(text)
    assert start is not None and end is not None
    assert end - start == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "d", "5y", "2026-10-02:2026-10-01", "yesterday", "1:2"])
def test_what_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--period"):
        parse_period(text)


def test_few_colons_of_a_long_text_are_tried_as_the_middle_of_a_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []

    def refuse(text: str) -> float:
        tried.append(text)
        raise ValueError

    monkeypatch.setattr(periods, "_moment", refuse)
    for text in ("1:" * 50, "1:" * 5_000):
        with pytest.raises(InputError, match="--period"):
            parse_period(text)
    assert len(tried) == 50


def test_dates_with_all_that_they_can_have_are_a_period() -> None:
    first, last = (f"2026-10-0{day}T10:00:00.123456789+01:00:00.000001" for day in (1, 2))
    start, end = parse_period(f"{first}:{last}")
    assert start is not None and end is not None
    assert end - start == 86400
