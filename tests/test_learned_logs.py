"""Step lines whose format is learned from the log itself: templates, columns, and what stays unsure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from benchmarks.log_styles import JUDGING, JUDGING_AGAIN, SHAPING, Style
from benchmarks.prove_logs import score
from hypothesis import given
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.diagnosis import diagnose_source
from computeflow.files.limits import LOG_TEMPLATES
from computeflow.telemetry.logs.learned_lines import LearnedLines, learn
from computeflow.telemetry.logs.line_events import Evaluation, StepLine
from computeflow.telemetry.logs.line_templates import slot_names, split_line
from computeflow.telemetry.logs.log_facts import LearnedColumn, LoggedRun
from computeflow.telemetry.logs.log_lines import LogLine
from computeflow.telemetry.logs.log_source import LogSource
from computeflow.telemetry.opening import head_of
from computeflow.telemetry.source_reports import SourceReport, SourceRequest

LOGS = Path(__file__).parent / "data" / "logs"
CAUSE = """\
E0304 10:18:10.129000 910 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) \
local_rank: 2 (pid: 957) of binary: /usr/bin/python3
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2025-03-04_10:18:10
  host      : gpu7
  rank      : 11 (local_rank: 3)
  exitcode  : -15 (pid: 958)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 958
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-03-04_10:18:09
  host      : gpu7
  rank      : 10 (local_rank: 2)
  exitcode  : {code}
  error_file: <N/A>
  traceback : {traceback}
============================================================
"""


def lines(texts: Iterable[str]) -> list[LogLine]:
    return [LogLine(number, text, None, "", "") for number, text in enumerate(texts, 1)]


def columns(texts: Iterable[str]) -> dict[str, LearnedColumn]:
    learned = learn(lines(texts))
    assert learned is not None
    return {column.name: column for column in learned.shown[0].columns}


def events(texts: list[str]) -> list[StepLine | Evaluation]:
    learned = learn(lines(texts))
    assert learned is not None
    reader = LearnedLines(learned)
    found = [event for text in texts if (event := reader.event(text)) is not None]
    assert all(isinstance(event, StepLine | Evaluation) for event in found)
    return found  # type: ignore[return-value]


def observe(path: Path) -> tuple[SourceReport, LoggedRun]:
    source = LogSource()
    assert source.recognises(path, head_of(path))
    (report,) = source.observe([path], SourceRequest(catalog=load_catalog()))
    assert isinstance(report.facts, LoggedRun)
    return report, report.facts


READ = [style for style in (*SHAPING, *JUDGING, *JUDGING_AGAIN) if style.name != "spaCy"]


@pytest.mark.parametrize("style", READ, ids=lambda style: style.name)
def test_styles_of_public_trainers_are_read_and_nothing_wrong_is_claimed(
    style: Style, tmp_path: Path
) -> None:
    result = score(style, tmp_path)
    assert result.steps and not result.wrong
    assert result.seconds in ("yes", "not told") and result.loss in ("yes", "not told")


def test_a_line_becomes_a_template_with_named_values() -> None:
    line = split_line("[ 5/40] loss: 2.31 (2.40), time 950us, 12,345 tok/s, eta 1:02:03, val None")
    assert line is not None
    values = {name: slot.value for name, slot in zip(slot_names(line), line.slots, strict=True)}
    assert values["loss"] == 2.31 and values["loss in brackets"] == 2.4
    assert values["time"] == pytest.approx(950e-6) and values["eta"] == 3723
    assert 12345 in values.values() and values["val"] != values["val"]
    other = split_line("[10/40] loss: 12.31 (2.40), time 1.2ms, 345 tok/s, eta 2:03, val 1.5")
    assert other is not None and other.key == line.key


def test_a_bar_keeps_its_template_while_it_grows() -> None:
    states = [
        "Steps:   1%|▏         | 1/80 [00:00<01:19,  1.01s/it, loss=3]",
        "Steps: 100%|██████████| 80/80 [00:40<00:00, 2.00it/s, loss=2]",
    ]
    keys = {line.key for text in states if (line := split_line(text)) is not None}
    assert len(keys) == 1


def test_own_loops_are_read_with_units_found_by_the_lines_times() -> None:
    report, found = observe(LOGS / "own_loop.log")
    assert (found.steps, found.total_steps, len(found.evaluations)) == (60, 60, 3)
    assert found.step_seconds == pytest.approx(0.8, rel=0.01)
    (took,) = [c for c in found.learned[0].columns if c.name == "took"]
    assert (took.meaning, took.unit, took.sure) == ("step time", "ms", True)
    assert report.ledger is not None and report.ledger.booked("evaluation") == pytest.approx(
        4, abs=0.01
    )


def test_what_was_understood_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", str(LOGS / "own_loop.log"), "--no-cache"]) == 0
    text = capsys.readouterr().out
    assert "learned from the log itself" in text and "unsure: grows" in text
    assert run(["audit", str(LOGS / "own_loop.log"), "--no-cache", "-o", "json"]) == 0
    assert '"meaning": "step time"' in capsys.readouterr().out.replace('":"', '": "')


def test_a_time_without_a_unit_stays_unsure() -> None:
    found = columns(f"step {n} loss {3 - n / 50:.3f} time {0.4 + n % 3 / 100}" for n in range(30))
    assert not found["time"].sure and "no unit" in found["time"].because
    assert found["loss"].sure and found["step"].sure


def test_whole_seconds_of_a_short_log_tell_no_step_time() -> None:
    texts = [
        f"Train [{n}/90]  {n}%|█ , loss={3 / n:.3f} [00:0{n // 20}<00:01]" for n in range(1, 90)
    ]
    found = columns(texts)
    assert not found["elapsed"].sure and "coarse" in found["elapsed"].because
    assert not any(column.meaning == "step time" for column in found.values())


def test_a_time_of_one_step_or_of_ten_stays_unsure() -> None:
    texts = [f"step {n * 10} loss {3 - n / 50:.3f} time {0.4 + n % 3 / 100}s" for n in range(30)]
    assert not columns(texts)["time"].sure
    assert all(isinstance(e, StepLine) and e.seconds is None for e in events(texts))


def test_a_unit_that_the_clock_contradicts_is_not_believed() -> None:
    texts = [
        f"2025-03-04 10:{n // 6:02d}:{n % 6 * 10:02d} step {n} loss 2.5 time {400 + n % 3}ms"
        for n in range(60)
    ]
    found = columns(texts)
    assert not found["time"].sure and "agrees with no other clock" in found["time"].because


def test_a_time_of_all_steps_of_a_line_is_divided_among_them() -> None:
    texts = [
        f"2025-03-04 10:{n // 12:02d}:{n % 12 * 5:02d} iter {n * 10} loss 2.5 time {5 + n % 3 / 10:.1f}"
        for n in range(60)
    ]
    assert columns(texts)["time"].meaning == "time of 10 steps"
    assert events(texts)[5].seconds == pytest.approx(0.52)


def test_counters_that_start_over_go_on_over_epochs() -> None:
    texts = [
        f"Epoch {epoch} batch {n}/25 loss={2.5 - epoch / 10:.2f} {0.2 + n % 3 / 100:.2f}s/batch"
        for epoch in range(3)
        for n in range(1, 26)
    ]
    assert [event.iteration for event in events(texts)] == list(range(1, 76))


def test_several_losses_without_a_total_are_not_mixed_up() -> None:
    found = columns(
        f"iter {n} box_loss {n / 9:.3f} cls_loss {n / 7:.3f} dfl_loss 1.5 2.0 it/s"
        for n in range(9)
    )
    assert not any(found[name].sure for name in ("box_loss", "cls_loss", "dfl_loss"))


def test_a_record_of_several_lines_is_one_step() -> None:
    texts = [
        line
        for n in range(1, 9)
        for line in (
            f"[batch={n}/800]:",
            f"\t Train loss/total: {3 / n:.4f}",
            f"\t Train lr: {n}e-4",
        )
    ]
    steps = events(texts)
    assert [event.iteration for event in steps] == list(range(1, 9))
    assert steps[-1].loss == pytest.approx(0.375)


def test_rows_of_a_table_are_named_by_its_header() -> None:
    texts = [
        "  epoch    train_loss    valid_loss     dur",
        "-------  ------------  ------------  ----",
    ]
    texts += [f"      {n}        {9 / n:.4f}        {8 / n:.4f}  0.14{n}" for n in range(1, 8)]
    found = columns(texts)
    assert found["epoch"].meaning == "epoch" and found["train_loss"].meaning == "loss"


@pytest.mark.parametrize(
    "texts",
    [
        [f"copied {n} of 90 files, {n * 3} MB" for n in range(90)],
        [f"GET /index/{n} 200 in {n % 7} ms" for n in range(90)],
        [f"worker {n} of 8 pid {4000 + n} started" for n in range(8)],
        [f"epoch seconds {1741082400 + n}: load {n % 5}.3" for n in range(90)],
        ["step 1 loss 2.5 time 0.4s"],
    ],
)
def test_lines_that_count_something_else_are_no_steps(texts: list[str]) -> None:
    assert learn(lines(texts)) is None


def test_the_first_rank_speaks_for_all(tmp_path: Path) -> None:
    texts = [
        f"[rank{rank}]: step {n} loss {3 - n / 50:.3f} step_time {400 + rank + n % 3}ms"
        for n in range(40)
        for rank in (1, 0, 2, 3)
    ]
    path = tmp_path / "job.log"
    path.write_text("\n".join(texts) + "\n")
    _, found = observe(path)
    assert found.steps == 40 and found.step_seconds == pytest.approx(0.402, rel=0.01)


def test_templates_are_bounded() -> None:
    texts = [
        f"{'abcdefghij'[n % 10] * (n // 10 + 1)} step 1 loss 2" for n in range(4 * LOG_TEMPLATES)
    ]
    texts += [f"step {n} loss {3 - n / 50:.3f} time 0.4s" for n in range(9)]
    assert learn(lines(texts)) is not None


@given(st.lists(st.text(max_size=80), max_size=20), st.text(max_size=80))
def test_any_text_is_learned_from_without_an_error(texts: list[str], more: str) -> None:
    known = [f"step {n} loss {3 - n / 50:.3f} time 0.4s {more}" for n in range(9)]
    learned = learn(lines([*texts, *known]))
    if learned is not None:
        reader = LearnedLines(learned)
        for text in (*texts, more, "step 9 loss nan time infs", "step 99999999999999999 loss 1"):
            reader.event(text)


@pytest.mark.parametrize(
    ("code", "traceback", "signal", "error"),
    [
        ("-9 (pid: 957)  (SIGKILL)", "Signal 9 (SIGKILL) received by PID 957", "SIGKILL", ""),
        ("-77 (pid: 957)", "Signal 77 received by PID 957", "signal 77", ""),
        ("1 (pid: 957)", "To enable traceback see: https://pytorch.org/docs", "", ""),
        (
            "1 (pid: 957)",
            'Traceback (most recent call last):\n    File "/a/train.py", line 12, in main\n  '
            "ValueError: no tokens\n  ",
            "",
            "ValueError: no tokens",
        ),
    ],
)
def test_the_root_cause_of_a_launchers_report_is_the_finding(
    code: str, traceback: str, signal: str, error: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.log"
    path.write_text(CAUSE.format(code=code, traceback=traceback))
    report, found = observe(path)
    (cause,) = found.root_causes
    assert (cause.rank, cause.local_rank, cause.node) == (10, 2, "gpu7")
    assert (cause.signal, cause.error) == (signal, error)
    (finding,) = diagnose_source(report).findings
    assert finding.rule == "failed-rank" and finding.ranks == (10,)
    assert "rank 10 on gpu7 failed first" in finding.title


def test_a_failure_with_a_ledger_comes_before_what_it_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.log"
    steps = "".join(f"iter {n}: loss 2.5, time 400.00ms, mfu 30.00%\n" for n in range(50))
    path.write_text(steps + CAUSE.format(code="1 (pid: 957)", traceback="To enable traceback see"))
    assert run(["audit", str(path), "--no-cache"]) == 0
    assert capsys.readouterr().out.startswith("The job failed: rank 10 on gpu7 failed first")


def test_a_time_of_a_step_that_rises_is_no_clock(tmp_path: Path) -> None:
    """As Keras wrote it on a machine that became slower."""
    lines = [
        f"Epoch {epoch}/4\n30/30 - 2s - {ms}ms/step - loss: {loss} - mae: {loss / 3:.4f}\n"
        for epoch, ms, loss in ((1, 54, 4.8883), (2, 54, 1.1444), (3, 58, 0.3039), (4, 59, 0.0913))
    ]
    path = tmp_path / "train.log"
    path.write_text("".join(lines))
    _, logged = observe(path)
    columns = [column for line in logged.learned for column in line.columns]
    assert "time since the start" not in {column.meaning for column in columns}
    assert logged.step_seconds is None or logged.step_seconds > 1


@pytest.mark.parametrize(
    ("drawn", "steps"),
    [(range(1, 60, 2), 59), (range(2, 61, 2), 60), (range(501, 560, 2), 60), (range(3, 60, 2), 59)],
)
def test_a_count_of_a_total_begins_with_one(drawn: range, steps: int, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"{n}/900 - 46ms/step - loss: {9 - n / 900:.4f}\n" for n in drawn))
    (report,) = LogSource().observe([path], SourceRequest(catalog=load_catalog()))
    assert isinstance(report.facts, LoggedRun) and report.facts.steps == steps
