"""Launches of a run: where each starts, which of its steps were done before, and the restarts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from computeflow.telemetry.logs.checkpoint_pauses import iteration_text
from computeflow.telemetry.logs.journal import Journal, LogState
from computeflow.telemetry.logs.line_events import (
    Checkpoint,
    Failure,
    Launch,
    LinePosition,
    StepLine,
)
from computeflow.telemetry.logs.log_facts import Restart
from computeflow.telemetry.logs.log_timeline import LogTimeline
from computeflow.telemetry.logs.logged_settings import LoggedSettings


@dataclass(slots=True)
class _Bar:
    """The progress bar that counts the training's steps, and its clock."""

    name: str = ""
    base: float | None = None
    """The timeline's moment at which the bar read zero."""
    passed: float = 0.0

    def moment(self, elapsed: float, began: float | None, timeline: LogTimeline) -> float:
        """The bar's time on the timeline's clock; a bar that starts over continues from there."""
        if self.base is None or int(elapsed) < int(self.passed):
            now = max(timeline.cursor, timeline.seen)
            if self.base is None and began is not None:
                now = began
            elif self.base is None and now:
                now -= elapsed
            self.base = now
        else:  # fractions of a second are estimates and may go back
            elapsed = max(elapsed, self.passed)
        self.passed = elapsed
        return max(self.base + elapsed, 0.0)


@dataclass(slots=True)
class _Attempt:
    """The state since the last launch."""

    last: int | None = None
    before: int | None = None
    """The iteration logged before `last`."""
    points: int = 0
    after: int | None = None
    """The iteration that this launch starts from, where known."""
    launched: bool = False
    began: float | None = None
    """Time at which the first step of this launch began, where the log says so."""
    bar: _Bar = field(default_factory=_Bar)


class Attempts:
    def __init__(self, timeline: LogTimeline, journal: Journal, settings: LoggedSettings) -> None:
        self.first_step: int | None = None
        self.last_logged: int | None = None
        """The last iteration of any launch; `last_step` is that of the current one."""
        self.unit = "steps"
        self.marks = 0
        self.steps_repeated = 0
        self._timeline = timeline
        self._journal = journal
        self._settings = settings
        self._attempt = _Attempt()
        self._total: int | None = None
        self._best: int | None = None
        self._gap = 1
        self._restarts: list[Restart] = []

    @property
    def last_step(self) -> int | None:
        return self._attempt.last

    @property
    def total_steps(self) -> int | None:
        return self._total or self._settings.number("total")

    @property
    def stepped(self) -> bool:
        """Whether a step was logged since the last launch."""
        return self._attempt.points > 0

    @property
    def launched(self) -> bool:
        return self._attempt.launched

    @property
    def starting(self) -> bool:
        """Whether the program was launched and no step is known to have begun."""
        return self._attempt.launched and self._attempt.began is None

    def launch(self, launch: Launch, now: LogState) -> None:
        attempt = self._attempt
        attempt.launched = True
        if launch.after is not None:
            attempt.after = launch.after
        if launch.begins and now.place.seconds is not None and attempt.began is None:
            self._timeline.begin()
            attempt.began = self._timeline.seen

    def load(self, event: Checkpoint, now: LogState) -> None:
        if event.iteration is not None and not self.stepped:
            self._attempt.after = event.iteration
        detail = iteration_text(event.iteration)
        self._journal.write("checkpoint loaded", now.place, detail=detail)

    def restart(self, cause: tuple[Failure, LinePosition] | None, now: LogState) -> None:
        last = self._attempt.last
        self._timeline.launch()
        self._attempt = _Attempt()
        self.marks += 1
        what, where = (cause[0].what, cause[1].where) if cause else ("", "")
        restart = Restart(
            after=last,
            resumed=None,
            seconds=None,
            lost_steps=0,
            cause=what,
            cause_where=where,
            at=self._journal.unix(),
            where=now.place.where,
        )
        self._journal.keep(self._restarts, restart, "restarts")
        detail = f"after iteration {last}" + (f": {what}" if what else "")
        self._journal.write("restart", now.place, fault=True, detail=detail)

    def is_training(self, step: StepLine) -> bool:
        """Whether a bar counts training steps: by the stated total, else the first bar is taken."""
        total = self._settings.number("total")
        if total and step.total:
            return step.total == total
        bar = self._attempt.bar
        bar.name = bar.name or step.bar
        return step.bar == bar.name

    def goes_back(self, step: StepLine) -> bool:
        return self._attempt.last is not None and step.iteration < self._attempt.last

    def is_late(self, step: StepLine) -> bool:
        """Whether a rank without a label may have written the line late, or drawn its own bar."""
        return bool(step.bar) or step.iteration == self._attempt.before

    def bar_moment(self, elapsed: float) -> float:
        return self._attempt.bar.moment(elapsed, self._attempt.began, self._timeline)

    def steps_since(self, step: StepLine) -> int | None:
        """Steps since the last logged one; None where the log starts in the middle."""
        if self._attempt.last is not None:
            self._gap = step.iteration - self._attempt.last
            return self._gap
        start = self._start(step)
        if start is None or start >= step.iteration:
            return self._gap if self._restarts else None
        gap = step.iteration - start
        interval = self._settings.number("log_interval")
        return min(gap, interval) if interval else gap

    def _start(self, step: StepLine) -> int | None:
        """The iteration before the first of this launch, where known."""
        attempt = self._attempt
        from_scratch = attempt.launched and not self._restarts and not step.from_zero
        return 0 if attempt.after is None and from_scratch else attempt.after

    def repeated(self, iteration: int, steps: int) -> int:
        """Number of the `steps` up to `iteration` that were done before."""
        if self._best is None:
            return 0
        return min(max(self._best - (iteration - steps), 0), steps)

    def advance(self, step: StepLine, repeated: int) -> None:
        """Count a logged step."""
        attempt, iteration = self._attempt, step.iteration
        self.unit = step.unit
        self.first_step = iteration if self.first_step is None else self.first_step
        self.last_logged = iteration
        self._total = step.total or self._total
        self._best = iteration if self._best is None else max(iteration, self._best)
        self.marks += 1
        self.steps_repeated += repeated
        if self._restarts and (repeated or not attempt.points):
            last = self._restarts[-1]
            self._restarts[-1] = replace(
                last,
                resumed=last.resumed if attempt.points else iteration,
                lost_steps=last.lost_steps + repeated,
            )
        attempt.before, attempt.last = attempt.last, iteration
        attempt.points += 1

    def facts(self, launch_seconds: list[float]) -> tuple[Restart, ...]:
        """The restarts; `launch_seconds` is what every launch took, the first one included."""
        took = dict(enumerate(launch_seconds))
        return tuple(replace(r, seconds=took.get(n)) for n, r in enumerate(self._restarts, 1))
