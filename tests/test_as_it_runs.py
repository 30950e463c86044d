"""An audit shows the step as it runs beside the recorded one, and says where it cannot."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import computeflow as cf
from computeflow import codec
from computeflow.answers.audits import AuditAnswer
from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.diagnosis import diagnose
from computeflow.diagnosis.as_it_runs import AsItRuns, as_it_runs
from computeflow.errors import InputError
from computeflow.ledger import Entry, Ledger, Window, ledger_from_data
from computeflow.replay import replay_step
from computeflow.views.as_it_runs import replay_notes, step_sentence
from computeflow.views.audit_figures import head_table
from computeflow.views.cards import finding_cards
from computeflow.views.ledgers import replayed_ledger_table
from computeflow.views.tables import Table, to_text

Capture = pytest.CaptureFixture[str]
DATA = Path(__file__).parent / "data"
LATE = DATA / "h200_traces" / "launch-bound.json.gz"
HEALTHY = DATA / "h200_traces" / "healthy-base.json.gz"
STORM = DATA / "h200_traces" / "gc-storm-200.json.gz"
DEEP = DATA / "h200_traces" / "recompute-full-deep.json.gz"
RANKS = DATA / "gloo_traces" / "slow-rank-0.3"
LOG = DATA / "logs" / "megatron_restart.log"
KEYS = (
    "step_seconds_recorded",
    "step_seconds_profiled",
    "step_seconds_unprofiled",
    "step_seconds_unprofiled_range",
    "ledger_unprofiled",
)


@cache
def audited(path: Path, **options: Any) -> AuditAnswer:
    return cf.audit(path, no_cache=True, **options)


def step_of(path: Path, **options: Any) -> AsItRuns:
    diagnosis = audited(path, **options).report.diagnosis
    step: AsItRuns | None = diagnosis and diagnosis.as_it_runs
    assert step is not None
    return step


def notes_of(path: Path, **options: Any) -> str:
    return " ".join(audited(path, **options).to_dict()["diagnosis_notes"])


def ledger_of(answer: AuditAnswer) -> Table:
    return next(table for table in answer.tables() if table.title.startswith("steps "))


def refused(capsys: Capture, *options: str, path: Path = LATE) -> str:
    assert run(["audit", str(path), "--no-cache", *options]) == 2
    return capsys.readouterr().err


def test_json_has_the_step_recorded_and_as_it_runs_with_its_range_and_ledger() -> None:
    data = audited(LATE).to_dict()
    low, high = data["step_seconds_unprofiled_range"]
    assert low < data["step_seconds_unprofiled"] < high < data["step_seconds_recorded"]
    assert data["not_replayed"] == ""
    ledger = ledger_from_data(data["ledger_unprofiled"])
    assert ledger.gpu_seconds < ledger_from_data(data["ledger"]).gpu_seconds
    assert ledger.basis == "simulated"
    json.dumps(data, allow_nan=False)


@pytest.mark.parametrize("path", [STORM, DEEP, LATE, HEALTHY])
def test_step_mfu_and_shares_are_of_one_basis(path: Path) -> None:
    data = audited(path).to_dict()
    recorded, running = (ledger_from_data(data[key]) for key in ("ledger", "ledger_unprofiled"))
    steps = len(data["per_rank"][0]["steps"])
    assert data["step_seconds_recorded"] == pytest.approx(recorded.wall_seconds / steps)
    assert data["step_seconds_unprofiled"] == pytest.approx(running.wall_seconds / steps)
    model = recorded.booked("compute.model") / steps
    assert running.mfu == pytest.approx(model / data["step_seconds_unprofiled"])


def test_a_finding_gains_no_more_than_the_step_idles() -> None:
    data = audited(STORM).to_dict()
    running = ledger_from_data(data["ledger_unprofiled"])
    (pause,) = data["findings"]
    assert [claim["account"] for claim in pause["claims"]] == ["host"]
    assert pause["gain_share"] <= running.booked("host") / running.gpu_seconds


def test_a_step_that_took_less_while_recorded_says_why() -> None:
    text = audited(STORM).headline
    assert "58.5 ms while recorded (the device's queue ran down)." in text


def test_a_step_that_took_longer_for_no_profiler_says_why() -> None:
    text = audited(DEEP).headline
    assert "A step takes 67.3 ms; the profiler does not slow it down. It took 71.3 ms" in text
    assert "while recorded (the device's queue filled up)." in text


def test_a_replay_of_some_of_the_steps_shortens_the_ledger_as_much_and_says_so() -> None:
    traces, step = audited(STORM).report.traces, step_of(STORM)
    assert traces is not None and traces.ranks[0].graph is not None
    recorded, replayed = traces.job.ledger, replay_step(traces.ranks[0].graph)
    some = as_it_runs(replayed, recorded, steps=40, is_measured=False)
    factor = step.step_seconds / step.step_seconds_profiled
    assert some.ledger.wall_seconds == pytest.approx(factor * recorded.wall_seconds)
    assert some.step_seconds_recorded == some.step_seconds_profiled
    diagnosis = audited(STORM).report.diagnosis
    assert diagnosis is not None
    assert replay_notes(replace(diagnosis, as_it_runs=some))[1].startswith(
        "the first 2 of 40 steps are replayed"
    )


def test_claims_beside_an_earlier_recording_are_of_the_recorded_accounts() -> None:
    data = audited(STORM, against=HEALTHY).to_dict()
    booked = ledger_from_data(data["ledger"]).accounts
    for claim in (claim for finding in data["findings"] for claim in finding["claims"]):
        assert claim["gpu_seconds"] <= booked[claim["account"]] * (1 + 1e-9)


def test_kernels_that_overlap_leave_the_flops_of_the_model_as_they_are() -> None:
    traces = audited(HEALTHY).report.traces
    assert traces is not None and traces.ranks[0].graph is not None
    recorded, replayed = traces.job.ledger, replay_step(traces.ranks[0].graph)
    half = replace(replayed, seconds=replace(replayed.seconds, middle=replayed.seconds.middle / 2))
    running = as_it_runs(half, recorded, steps=2, is_measured=False).ledger
    assert running.wall_seconds == pytest.approx(recorded.wall_seconds / 2)
    assert running.booked("compute.model") == recorded.booked("compute.model")


@pytest.mark.parametrize(
    ("path", "options", "reason"),
    [
        (LATE, {"no_replay": True}, "--no-replay was given"),
        (RANKS, {}, "what the profiler costs several ranks is not known"),
        (LOG, {}, "there is no trace"),
    ],
)
def test_json_has_null_and_the_reason_where_nothing_was_replayed(
    path: Path, options: dict[str, Any], reason: str
) -> None:
    data = audited(path, **options).to_dict()
    assert [data[key] for key in KEYS] == [None] * 5
    assert data["not_replayed"] == reason


def test_a_finding_has_its_gain_as_a_share_with_a_range() -> None:
    data = audited(LATE).to_dict()
    whole = ledger_from_data(data["ledger"]).gpu_seconds
    worst = data["findings"][0]
    assert 0 < worst["gain_share_low"] < worst["gain_share"] < worst["gain_share_high"] < 1
    assert worst["gain_share"] == pytest.approx(worst["remedy"]["gain_gpu_seconds"] / whole)


def test_a_finding_without_a_ledger_or_a_gain_has_no_share_of_gain() -> None:
    hang = cf.audit(DATA / "gloo_hangs" / "ddp-4-ranks").to_dict()["findings"]
    lost = audited(LOG).to_dict()["findings"]
    assert {finding["gain_share"] for finding in [*hang, *lost]} == {None}


def test_without_a_replay_the_ledger_and_its_findings_are_as_before() -> None:
    plain = audited(LATE, no_replay=True)
    assert plain.to_dict()["ledger"] == audited(LATE).to_dict()["ledger"]
    assert [column.header for column in ledger_of(plain).columns][3:] == ["share", ""]
    assert ledger_of(plain).notes[0] == "as it runs: unknown, --no-replay was given"
    assert "A step takes" not in plain.headline
    (gain,) = (row[1] for table in plain.tables() for row in table.rows if row[0] == "gain")
    assert "of GPU time in the window" in gain


def test_the_headline_has_both_steps_and_the_mfu_as_it_runs() -> None:
    step, text = step_of(LATE), audited(LATE).headline
    assert step_sentence(step) in text
    assert "ms as it runs (" in text and "ms while recorded. MFU " in text
    assert text.endswith("% as it runs.")


def test_the_headline_of_a_step_that_the_profiler_does_not_slow_has_one_time() -> None:
    text = audited(HEALTHY).headline
    assert "A step takes 52.4 ms; the profiler does not slow it down." in text
    assert text.endswith("MFU 43.6 %.")


@pytest.mark.parametrize(
    ("low", "middle", "high", "text"),
    [
        (0.0781, 0.0912, 0.13, "91.2 ms as it runs (78.1 to 130 ms)"),
        (0.9, 0.95, 1.1, "950 ms as it runs (900 ms to 1.1 s)"),
        (0.09, 0.09, 0.09, "90 ms as it runs,"),
    ],
)
def test_a_range_has_its_unit_once_and_is_left_out_where_there_is_none(
    low: float, middle: float, high: float, text: str
) -> None:
    step = replace(
        step_of(LATE),
        step_seconds=middle,
        step_seconds_low=low,
        step_seconds_high=high,
        step_seconds_recorded=1.5,
        step_seconds_profiled=1.5,
    )
    assert step_sentence(step).startswith(f"A step takes {text}")
    assert step_sentence(step).endswith(", 1.5 s while recorded.")


def test_the_ledger_has_both_columns_within_80_characters() -> None:
    table = ledger_of(audited(LATE))
    headers = ",".join(column.header for column in table.columns)
    assert headers == "account,owner,GPU-ms,share,as it runs,share,"
    recorded, running = (float(table.rows[-1][column]) for column in (2, 4))
    assert running < recorded
    assert recorded == pytest.approx(sum(float(row[2]) for row in table.rows[:-1]), abs=0.5)
    assert running == pytest.approx(sum(float(row[4]) for row in table.rows[:-1]), abs=0.5)
    assert max(map(len, to_text(table).splitlines())) <= 80


def test_the_widest_ledger_still_is_a_table_of_80_characters() -> None:
    one = Ledger(
        gpus=1,
        wall_seconds=9.9999,
        window=Window(label="steps 1 to 3"),
        basis="measured",
        entries=(
            Entry(account="compute.recompute", gpu_seconds=9.9998),
            Entry(account="input", gpu_seconds=0.0001),
        ),
    )
    other = replace(one, wall_seconds=9.9998, entries=one.entries[:1])
    lines = to_text(replayed_ledger_table(one, other)).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["account", "owner", "GPU-ms", "share", "as", "it", "runs", "share"]
    assert lines[4].split()[:6] == ["input", "design", "0.1", "0.0", "%", "0.0"]


def test_an_account_that_only_runs_without_the_profiler_is_listed() -> None:
    recorded = step_of(LATE).ledger
    host = recorded.booked("host")
    entries = tuple(entry for entry in recorded.entries if entry.account != "host")
    without = replace(recorded, entries=entries, wall_seconds=recorded.wall_seconds - host)
    rows = {row[0]: row for row in replayed_ledger_table(without, recorded).rows}
    assert rows["host"][2] == "0.0" and rows["host"][4] != "0.0"


def test_gains_of_a_replay_are_shares_in_tables_and_cards() -> None:
    answer = audited(LATE)
    (gain,) = (row[1] for table in answer.tables() for row in table.rows if row[0] == "gain")
    assert gain.count(" %") == 3 and " of the time (" in gain
    report = answer.report
    assert report.diagnosis is not None and report.traces is not None
    (card,) = finding_cards(report.diagnosis, report.traces.job.ledger, 2.5).cards
    assert "GPU-ms" not in card.gain and "/h (" in card.gain


def test_the_report_and_the_notebook_show_both_ledgers() -> None:
    answer = audited(LATE)
    titles = [part.title for part in answer.parts()]
    assert "As recorded, and as it runs (GPU-ms)" in titles
    assert "as it runs" in answer._repr_html_()
    report = answer.report
    assert report.diagnosis is not None and report.traces is not None
    rows = head_table(report.traces, report.diagnosis, None).rows
    assert [row[1][-3:] for row in rows if row[0] == "without profiler"] == ["ms)"]
    unknown = replace(report.diagnosis, as_it_runs=None, not_replayed="no launches")
    rows = head_table(report.traces, unknown, None).rows
    assert ("without profiler", "unknown: no launches") in rows
    assert replay_notes(unknown) == ["as it runs: unknown, no launches"]


def test_a_redacted_answer_keeps_the_words_and_figures_of_the_replay() -> None:
    closed = audited(LATE, redact=True)
    assert closed.headline == audited(LATE).headline
    assert [closed.to_dict()[key] for key in KEYS[:4]] == [
        audited(LATE).to_dict()[key] for key in KEYS[:4]
    ]


def test_a_measured_step_sets_the_replayed_one_and_has_no_range() -> None:
    given = round((step_of(LATE).step_seconds + step_of(LATE).step_seconds_recorded) / 2, 4)
    step = step_of(LATE, step_seconds=given)
    assert step.step_seconds == pytest.approx(given, rel=0.005)
    assert step.step_seconds_low == step.step_seconds_high
    assert "as it runs (set by --step-seconds)" in audited(LATE, step_seconds=given).headline
    assert "--step-seconds" not in notes_of(LATE, step_seconds=given)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (1e-9, "1e-09 is not used: the recorded step takes at least "),
        (15.0, "15 is not used: the recorded step takes 23.5 ms even with the profiler"),
        (1e300, "1e+300 is not used: the recorded step takes 23.5 ms even with the profiler"),
    ],
)
def test_a_measured_step_that_the_recording_cannot_take_is_noted_and_not_used(
    given: float, reason: str
) -> None:
    assert f"--step-seconds {reason}" in notes_of(LATE, step_seconds=given)
    assert step_of(LATE, step_seconds=given) == step_of(LATE)


def test_a_measured_step_of_what_is_not_replayed_is_noted() -> None:
    assert notes_of(RANKS, step_seconds=0.1) == (
        "--step-seconds 0.1 is not used: what the profiler costs several ranks is not known"
    )


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "abc", "", "1e-400", "90ms"])
def test_a_careless_step_time_is_refused(value: str, capsys: Capture) -> None:
    assert "--step-seconds" in refused(capsys, "--step-seconds", value)


@pytest.mark.parametrize("value", [0, -0.1, math.nan, math.inf, True, "0.1", 10**400])
def test_the_library_refuses_a_careless_step_time(value: Any) -> None:
    with pytest.raises(InputError, match=r"step.seconds"):
        cf.audit(LATE, step_seconds=value)


def test_options_of_the_replay_that_contradict_or_are_not_used_are_refused(capsys: Capture) -> None:
    both = refused(capsys, "--no-replay", "--step-seconds", "0.1")
    assert "--step-seconds cannot be combined with --no-replay" in both
    for option in (["--no-replay"], ["--step-seconds", "1"]):
        text = refused(capsys, *option, path=LOG)
        assert f"{option[0]} is for traces, and there is only log" in text


def test_what_findings_leave_of_the_host_is_noted_as_it_runs() -> None:
    assert notes_of(LATE).startswith("host: ")
    assert notes_of(LATE).endswith("% of the step as it runs is left after the remedies")


def test_host_time_without_a_finding_is_noted_with_what_to_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(import_module("computeflow.diagnosis.diagnose"), "RULES", ())
    traces = [audited(LATE, no_replay=off).report.traces for off in (False, True)]
    (note,), (plain,) = (diagnose(each, load_catalog()).notes for each in traces if each)
    assert note.startswith("host: ") and " % of the step as it runs is not explained" in note
    assert "with_stack=True" in note
    assert plain.endswith("of the window, not explained by any rule")


def test_a_step_with_little_waiting_as_it_runs_has_no_such_note() -> None:
    assert notes_of(HEALTHY) == ""


def test_numbers_of_numpy_become_plain_and_other_values_are_refused() -> None:
    plain = codec.encode({"a": np.float64(0.5), "b": [np.int64(2)]})
    assert plain == {"a": 0.5, "b": [2]}
    assert [type(value) for value in (plain["a"], plain["b"][0])] == [float, int]
    with pytest.raises(TypeError, match="unsupported"):
        codec.encode({"a": object()})
