"""`RunLog`: the state of a run in bounded memory: `take` its events in order, then `summary`.

Each kind of event has a tracker that takes events and gives facts; all share the clock (`LogTimeline`)
and the list of what happened (`Journal`).
"""

from __future__ import annotations

from dataclasses import replace

from computeflow.telemetry.logs.checkpoint_pauses import Evaluations, Saves
from computeflow.telemetry.logs.faults import Faults
from computeflow.telemetry.logs.journal import Journal, LogState
from computeflow.telemetry.logs.line_events import (
    Checkpoint,
    Evaluation,
    Event,
    Failure,
    Finished,
    Launch,
    LinePosition,
    SettingLine,
    StepLine,
    Timers,
)
from computeflow.telemetry.logs.log_facts import LearnedLine, LoggedRun
from computeflow.telemetry.logs.log_timeline import LogTimeline
from computeflow.telemetry.logs.logged_settings import LoggedSettings
from computeflow.telemetry.logs.losses import Losses
from computeflow.telemetry.logs.rank_filter import RankFilter
from computeflow.telemetry.logs.restarts import Attempts
from computeflow.telemetry.logs.step_times import LoggedStepTimes
from computeflow.telemetry.logs.throughput import Throughput
from computeflow.telemetry.logs.timers import SAVE, TimerMeans


class RunLog:
    def __init__(self) -> None:
        self.files: list[str] = []
        self.lines = 0
        self.finished = False
        self.stated_seconds: float | None = None
        self.learned: tuple[LearnedLine, ...] = ()
        self.spread = False
        """Whether only the total time is known, not when things happened."""
        self.timeline = LogTimeline()
        self.journal = Journal(self.timeline)
        self.settings = LoggedSettings()
        self.ranks = RankFilter()
        self.attempts = Attempts(self.timeline, self.journal, self.settings)
        self.throughput = Throughput(self.settings)
        self.times = LoggedStepTimes(self.timeline, self.journal)
        self.losses = Losses(self.journal)
        self.saves = Saves(self.timeline, self.journal)
        self.evaluations = Evaluations(self.timeline, self.journal)
        self.faults = Faults(self.journal)
        self.timers = TimerMeans()

    @property
    def stepped(self) -> bool:
        return self.times.points > 0

    @property
    def is_over(self) -> bool:
        """Whether training has ended: a launch after it is another run."""
        return self.finished and self.stepped

    @property
    def trained_steps(self) -> float:
        """Steps whose time is booked, each once."""
        if self.spread:
            return self.times.steps - self.attempts.steps_repeated
        return self.timeline.trained

    def read_line(self, file: str) -> None:
        self.lines += 1
        if file not in self.files:
            self.files.append(file)

    def take(self, event: Event | None, place: LinePosition) -> None:
        moment = None
        if place.seconds is not None:
            self.journal.dated = self.journal.dated and place.dated
            moment = self.timeline.moment(place.seconds)
        if event is not None:
            last, marks = self.attempts.last_step, self.attempts.marks
            self._take(event, LogState(place=place, moment=moment, last=last, marks=marks))

    def _take(self, event: Event, now: LogState) -> None:
        match event:
            case StepLine():
                self._step(event, now)
            case Timers():
                self._timers(event)
            case SettingLine():
                self._setting(event, now)
            case Launch():
                self._launch(event, now)
            case Checkpoint():
                self._checkpoint(event, now)
            case Evaluation():
                self._evaluation(event, now)
            case Failure():
                self.faults.take(event, now)
            case Finished():
                self._finish(event)

    def leave_gap(self) -> None:
        """Another job follows: leave the time until then out, as its GPUs may not have been held."""
        self.timeline.leave_gap("restart" if self.faults.cause else "unexplained")

    def spread_steps(self, seconds: float) -> None:
        """Book a run of which only the total time is known: evaluations, and the rest as steps."""
        self.timeline.spread(seconds, evaluation=min(self.evaluations.seconds, seconds))
        self.spread = True

    def _setting(self, setting: SettingLine, now: LogState) -> None:
        self.settings.take(setting)
        if setting.launch:
            self._launch(Launch(), now)

    def _checkpoint(self, event: Checkpoint, now: LogState) -> None:
        if event.phase == "loaded":
            self.attempts.load(event, now)
        else:
            self.saves.take(event, now)

    def _evaluation(self, event: Evaluation, now: LogState) -> None:
        running = self.stepped or self.attempts.launched
        self.evaluations.take(event, now, running=running)

    def _finish(self, event: Finished) -> None:
        self.finished = event.whole
        self.stated_seconds = event.seconds or self.stated_seconds
        if event.steps and not self.stepped:  # losses without steps: only the totals are known
            self.times.steps = event.steps
            if event.seconds and not self.timeline.seen:
                self.spread_steps(event.seconds)

    def _launch(self, launch: Launch, now: LogState) -> None:
        if self.attempts.stepped:
            self._restart(now)
        self.attempts.launch(launch, now)

    def _restart(self, now: LogState) -> None:
        self.attempts.restart(self.faults.cause, now)
        for tracker in (self.saves, self.evaluations, self.ranks, self.losses, self.faults):
            tracker.forget()

    def _step(self, step: StepLine, now: LogState) -> None:
        if step.bar and not self.attempts.is_training(step):
            return
        if step.iteration < 0:  # a loss without its iteration belongs to the one before
            self.losses.take(step, now)
        elif self.ranks.counts(step.iteration, now.place.stream, now.last):
            self._take_new_step(step, now)

    def _take_new_step(self, step: StepLine, now: LogState) -> None:
        """Take a step of the rank that is counted."""
        back = self.attempts.goes_back(step)
        if step.iteration == now.last:  # a bar drawn again
            if step.bar and step.loss is not None:
                self.losses.take(step, now)
        elif back and self.faults.cause is None and self.attempts.is_late(step):
            self.ranks.copies += 1
        else:
            if back:
                self._restart(now)
            self._count(step, now)

    def _count(self, step: StepLine, now: LogState) -> None:
        attempts = self.attempts
        steps = attempts.steps_since(step)
        repeated = attempts.repeated(step.iteration, steps or 1)
        if step.elapsed is not None and now.moment is None:
            now = replace(now, moment=attempts.bar_moment(step.elapsed))
        seconds = self.times.take(step, now, steps=steps, again=repeated / (steps or 1))
        self.throughput.take(step, steps or 1, seconds)
        attempts.advance(step, repeated)
        self.losses.take(step, now)
        self.faults.survive()

    def _timers(self, event: Timers) -> None:
        self.timers.take(event)
        if SAVE in event.milliseconds and event.form != "mean":
            self.saves.time_last(event.milliseconds[SAVE] / 1e3)
        if self.attempts.stepped and event.form != "most":
            ranks = (self.throughput.world_size or 1) if event.form == "mean" else 1
            share = min(1.0, event.ranks / ranks)
            self.timeline.timers({n: value * share for n, value in event.milliseconds.items()})

    def summary(self) -> LoggedRun:
        """End the run, book the time after its last step, and give its facts."""
        attempts, times, throughput = self.attempts, self.times, self.throughput
        self.timeline.finish(
            saving=self.saves.is_saving(attempts.marks) and self.faults.cause is None,
            hung=self.faults.hung_seconds,
            starting=attempts.starting and not self.finished,
        )
        mean = times.mean_seconds
        if self.spread and mean is None and times.steps:
            mean = self.timeline.booked.get("compute", 0.0) / times.steps or None
        return LoggedRun(
            framework=self.settings.framework,
            files=tuple(self.files),
            lines=self.lines,
            unit=attempts.unit,
            steps=times.steps,
            points=times.points,
            first_step=attempts.first_step,
            last_step=attempts.last_logged,
            total_steps=attempts.total_steps,
            step_seconds=mean,
            step_seconds_median=times.median_seconds,
            world_size=throughput.world_size,
            layout=self.settings.layout,
            batch=throughput.batch,
            sequence=throughput.sequence,
            tokens_per_second=throughput.tokens_per_second(mean),
            claimed_gpu_tflops=throughput.mean("gpu_tflops"),
            claimed_mfu=throughput.mean("mfu"),
            first_loss=self.losses.first,
            last_loss=self.losses.last,
            spikes=self.losses.facts(),
            nan_steps=self.losses.nans,
            skipped_steps=self.losses.skipped,
            restarts=attempts.facts(self.timeline.settled),
            root_causes=tuple(self.faults.root_causes),
            stalls=tuple(times.stalls),
            saves=self.saves.facts(),
            evaluations=self.evaluations.facts(),
            timers_ms=self.timers.facts(),
            timers_form=self.timers.form,
            learned=self.learned,
            series=times.series(),
        )
