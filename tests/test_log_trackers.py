"""The trackers of a run's log, each alone: events in, facts out."""

from __future__ import annotations

import math

import pytest

from computeflow.files.limits import LOG_LIST_ITEMS
from computeflow.telemetry.logs.checkpoint_pauses import Evaluations, Saves
from computeflow.telemetry.logs.faults import Faults
from computeflow.telemetry.logs.journal import Journal, LogState
from computeflow.telemetry.logs.line_events import (
    Checkpoint,
    Evaluation,
    Failure,
    Launch,
    LinePosition,
    SettingLine,
    StepLine,
    Timers,
)
from computeflow.telemetry.logs.log_timeline import LogTimeline
from computeflow.telemetry.logs.logged_settings import LoggedSettings
from computeflow.telemetry.logs.losses import Losses
from computeflow.telemetry.logs.rank_filter import RankFilter
from computeflow.telemetry.logs.restarts import Attempts
from computeflow.telemetry.logs.step_times import LoggedStepTimes
from computeflow.telemetry.logs.throughput import Throughput
from computeflow.telemetry.logs.timers import TimerMeans

PLACE = LinePosition(file="a.log", line=7)


def now(moment: float | None = None, *, last: int | None = None, marks: int = 0) -> LogState:
    return LogState(place=PLACE, moment=moment, last=last, marks=marks)


def shared() -> tuple[LogTimeline, Journal]:
    timeline = LogTimeline()
    return timeline, Journal(timeline)


def test_a_save_lasts_from_its_beginning_to_its_end_if_no_step_lies_between() -> None:
    saves = Saves(*shared())
    saves.take(Checkpoint(phase="saving", iteration=10), now(20.0, marks=3))
    assert saves.is_saving(marks=3) and not saves.is_saving(marks=4)
    saves.take(Checkpoint(phase="saved"), now(26.0, marks=3))
    saves.take(Checkpoint(phase="saving", iteration=20), now(40.0, marks=4))
    saves.take(Checkpoint(phase="saved"), now(90.0, marks=9))
    assert [(s.iteration, s.seconds) for s in saves.facts()] == [(10, 6.0), (20, None)]


def test_a_save_said_by_many_ranks_is_one_and_a_timer_may_time_it() -> None:
    timeline, journal = shared()
    saves = Saves(timeline, journal)
    for _ in range(3):
        saves.take(Checkpoint(phase="saving", iteration=10), now())
    saves.time_last(2.5)
    (save,) = saves.facts()
    assert (save.seconds, save.where) == (2.5, "a.log:7") and len(journal.happenings) == 1


def test_a_start_an_end_and_a_score_are_one_evaluation() -> None:
    evaluations = Evaluations(*shared())
    evaluations.take(Evaluation(phase="start"), now(5.0), running=True)
    evaluations.take(Evaluation(phase="end"), now(9.0, last=30), running=True)
    evaluations.take(Evaluation(phase="end", loss=2.5), now(9.0, last=30), running=True)
    (score,) = evaluations.facts()
    assert (score.iteration, score.seconds, score.score) == (30, 4.0, 2.5)
    assert evaluations.seconds == 4.0


def test_a_score_before_training_is_of_something_else() -> None:
    evaluations = Evaluations(*shared())
    evaluations.take(Evaluation(phase="end", loss=2.5, seconds=3.0), now(), running=False)
    assert not evaluations.facts() and not evaluations.seconds


def test_a_restart_has_its_cause_and_the_steps_done_again() -> None:
    timeline, journal = shared()
    attempts = Attempts(timeline, journal, LoggedSettings())
    attempts.launch(Launch(), now())
    for iteration in (10, 20, 30):
        assert attempts.steps_since(StepLine(iteration=iteration)) == 10
        attempts.advance(StepLine(iteration=iteration), repeated=0)
    attempts.restart((Failure(what="node failure"), PLACE), now())
    attempts.load(Checkpoint(phase="loaded", iteration=15), now())
    step = StepLine(iteration=25)
    assert attempts.steps_since(step) == 10 and attempts.repeated(25, 10) == 10
    attempts.advance(step, repeated=10)
    assert attempts.steps_since(StepLine(iteration=35)) == 10 and attempts.repeated(35, 10) == 5
    attempts.advance(StepLine(iteration=35), repeated=5)
    (restart,) = attempts.facts([60.0, 300.0])
    assert (restart.after, restart.resumed, restart.lost_steps) == (30, 25, 15)
    assert (restart.cause, restart.seconds) == ("node failure", 300.0)
    assert attempts.steps_repeated == 15


def test_a_failure_is_told_once_for_each_rank_until_the_next_launch() -> None:
    _, journal = shared()
    faults = Faults(journal)
    for rank in (0, 0, 1):
        faults.take(Failure(what="NCCL timeout", rank=rank, waited_seconds=600.0), now())
    assert [h.rank for h in journal.happenings] == [0, 1]
    assert journal.left["repeated failures"] == 1 and faults.hung_seconds == 600.0
    faults.survive()
    faults.forget()
    faults.take(Failure(what="NCCL timeout", rank=0), now())
    assert len(journal.happenings) == 3 and faults.hung_seconds is None


def test_losses_count_nans_and_skipped_steps() -> None:
    _, journal = shared()
    losses = Losses(journal)
    for step in (
        StepLine(iteration=1, loss=3.0),
        StepLine(iteration=2, loss=math.nan),
        StepLine(iteration=3, loss=2.5, nans=2, skipped=4),
        StepLine(iteration=-1, loss=2.0),
    ):
        losses.take(step, now(last=3))
    assert (losses.first, losses.last, losses.nans, losses.skipped) == (3.0, 2.0, 3, 4)
    assert [h.what for h in journal.happenings] == ["NaN loss", "NaN loss", "skipped iterations"]


def test_rates_are_means_over_steps_and_tell_the_ranks() -> None:
    throughput = Throughput(LoggedSettings())
    throughput.take(
        StepLine(iteration=1, tokens_per_second=8000, gpu_tokens_per_second=1000), 1, 2.0
    )
    throughput.take(
        StepLine(iteration=4, tokens_per_second=16000, gpu_tokens_per_second=2000), 3, 1.0
    )
    assert throughput.world_size == 8
    assert throughput.tokens_per_second(None) == pytest.approx(14000)


def test_stated_world_sizes_come_first_and_batches_may_tell_them() -> None:
    settings = LoggedSettings()
    throughput = Throughput(settings)
    settings.take(SettingLine(values={"batch": "64", "device_batch": "4", "accumulation": "2"}))
    assert throughput.world_size == 8
    settings.take(SettingLine(values={"world_size": "16", "tp": "2"}))
    assert throughput.world_size == 16 and settings.layout == {"tp": 2}


def test_timers_of_all_ranks_replace_the_mean_of_fewer() -> None:
    means = TimerMeans()
    for ranks, value in ((1, 100.0), (2, 150.0)):
        means.take(Timers(form="mean", milliseconds={"optimizer": value}, ranks=ranks))
    assert means.facts() == {"optimizer": 150.0} and means.form == "mean"


def test_one_rank_speaks_for_all_until_another_goes_back() -> None:
    ranks = RankFilter()
    assert ranks.counts(1, "rank0", None) and not ranks.counts(1, "rank1", 1)
    assert ranks.counts(2, "rank0", 1) and ranks.copies == 1
    ranks.forget()
    assert ranks.counts(1, "rank1", 2)


def test_a_stall_is_a_fact_and_a_happening() -> None:
    timeline, journal = shared()
    times = LoggedStepTimes(timeline, journal)
    for iteration in range(1, 20):
        moment = 2.0 * iteration + (100 if iteration > 10 else 0)
        times.take(StepLine(iteration=iteration), now(moment), steps=1, again=0.0)
    (stall,) = times.stalls
    assert stall.iteration == 11 and stall.seconds == pytest.approx(100)
    assert [h.what for h in journal.happenings] == ["stall"] and times.steps == 19


def test_what_is_kept_is_bounded_and_the_rest_counted() -> None:
    _, journal = shared()
    for _ in range(LOG_LIST_ITEMS + 5):
        journal.write("restart", PLACE)
    assert len(journal.happenings) == LOG_LIST_ITEMS and journal.left["events"] == 5
