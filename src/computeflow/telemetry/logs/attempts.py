"""Launches of a run: where each starts, which of its steps were done before, and the restarts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from computeflow.telemetry.logs.events import Checkpoint, Failure, Launch, Place, Step
from computeflow.telemetry.logs.facts import Restart
from computeflow.telemetry.logs.journal import Journal, Now
from computeflow.telemetry.logs.pauses import iteration_text
from computeflow.telemetry.logs.settings import Settings
from computeflow.telemetry.logs.timeline import Timeline


@dataclass(slots=True)
class _Bar:
    """The progress bar that counts the training's steps, and its clock."""

    name: str = ""
    base: float | None = None
    """The timeline's moment at which the bar read zero."""
    passed: float = 0.0

    def moment(self, elapsed: float, began: float | None, timeline: Timeline) -> float:
        """On the timeline's clock; a bar that starts over goes on from the time come to."""
        if self.base is None or elapsed < self.passed:
            now = max(timeline.cursor, timeline.seen)
            if self.base is None and began is not None:
                now = began
            elif self.base is None and now:
                now -= elapsed
            self.base = now
        self.passed = elapsed
        return max(self.base + elapsed, 0.0)


@dataclass(slots=True)
class _Attempt:
    """Since the last launch."""

    last: int | None = None
    before: int | None = None
    """The one logged before the last."""
    points: int = 0
    after: int | None = None
    """The iteration that it starts from, where known."""
    launched: bool = False
    began: float | None = None
    """When its first step began, where the log says so."""
    bar: _Bar = field(default_factory=_Bar)


class Attempts:
    def __init__(self, timeline: Timeline, journal: Journal, settings: Settings) -> None:
        self.first_step: int | None = None
        self.last_logged: int | None = None
        """Of all launches; `last_step` is of this one."""
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
        """Since the last launch."""
        return self._attempt.points > 0

    @property
    def launched(self) -> bool:
        return self._attempt.launched

    @property
    def starting(self) -> bool:
        """Launched, and nothing says that steps began."""
        return self._attempt.launched and self._attempt.began is None

    def launch(self, launch: Launch, now: Now) -> None:
        attempt = self._attempt
        attempt.launched = True
        if launch.after is not None:
            attempt.after = launch.after
        if launch.begins and now.place.seconds is not None and attempt.began is None:
            self._timeline.begin()
            attempt.began = self._timeline.seen

    def load(self, event: Checkpoint, now: Now) -> None:
        if event.iteration is not None and not self.stepped:
            self._attempt.after = event.iteration
        detail = iteration_text(event.iteration)
        self._journal.write("checkpoint loaded", now.place, detail=detail)

    def restart(self, cause: tuple[Failure, Place] | None, now: Now) -> None:
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

    def is_training(self, step: Step) -> bool:
        """Whether a bar is the training's: of as many steps as stated, or the first that came."""
        total = self._settings.number("total")
        if total and step.total:
            return step.total == total
        bar = self._attempt.bar
        bar.name = bar.name or step.bar
        return step.bar == bar.name

    def goes_back(self, step: Step) -> bool:
        return self._attempt.last is not None and step.iteration < self._attempt.last

    def is_late(self, step: Step) -> bool:
        """A line that a rank without a label may have written late, or its own bar."""
        return bool(step.bar) or step.iteration == self._attempt.before

    def bar_moment(self, elapsed: float) -> float:
        return self._attempt.bar.moment(elapsed, self._attempt.began, self._timeline)

    def steps_since(self, step: Step) -> int | None:
        """The last logged one; None where the log starts in the middle."""
        if self._attempt.last is not None:
            self._gap = step.iteration - self._attempt.last
            return self._gap
        start = self._start(step)
        if start is None or start >= step.iteration:
            return self._gap if self._restarts else None
        gap = step.iteration - start
        interval = self._settings.number("log_interval")
        return min(gap, interval) if interval else gap

    def _start(self, step: Step) -> int | None:
        """The iteration before the first of this launch, where known."""
        attempt = self._attempt
        from_scratch = attempt.launched and not self._restarts and not step.from_zero
        return 0 if attempt.after is None and from_scratch else attempt.after

    def repeated(self, iteration: int, steps: int) -> int:
        """How many of the `steps` up to `iteration` were done before."""
        if self._best is None:
            return 0
        return min(max(self._best - (iteration - steps), 0), steps)

    def advance(self, step: Step, repeated: int) -> None:
        """A logged step counts."""
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
        """`launch_seconds`: what every launch took, the first start included."""
        took = dict(enumerate(launch_seconds))
        return tuple(replace(r, seconds=took.get(n)) for n, r in enumerate(self._restarts, 1))
