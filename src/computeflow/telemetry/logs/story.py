"""What happened in a run, line after line, in bounded memory. Feed events in order, then `told`."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from computeflow.telemetry.logs.events import (
    Checkpoint,
    Evaluation,
    Event,
    Failure,
    Finished,
    Launch,
    Place,
    Setting,
    Step,
    Timers,
)
from computeflow.telemetry.logs.facts import Restart, Run, Save, Scored, Stall
from computeflow.telemetry.logs.losses import Losses
from computeflow.telemetry.logs.series import Series
from computeflow.telemetry.logs.speakers import Speakers
from computeflow.telemetry.logs.timeline import Timeline
from computeflow.telemetry.logs.timers import SAVE
from computeflow.telemetry.observed import Happening

MOST = 1_000
"""Of each list; more are counted."""
_LONGEST = 1e9
"""Seconds of a step that can be meant."""
_LAYOUT = ("tp", "pp", "dp", "cp", "ep", "dp_replicate", "dp_shard")


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
    bar_base: float | None = None
    bar_passed: float = 0.0
    bar: str = ""


class Story:
    def __init__(self) -> None:
        self.timeline = Timeline()
        self.losses = Losses()
        self.series = Series()
        self.settings: dict[str, str] = {}
        self.files: list[str] = []
        self.lines = 0
        self.happenings: list[Happening] = []
        self.left: Counter[str] = Counter()
        self.worlds: set[int] = set()
        self.dated = True
        self.finished = False
        self.stated_seconds: float | None = None
        self.evaluated_seconds = 0.0
        self.framework = ""
        self.unit = "steps"
        self.speakers = Speakers()
        self.spread = False
        """Only the whole time is known, not when what happened."""
        self._attempt = _Attempt()
        self._best: int | None = None
        self._gap = 1
        self._first: int | None = None
        self._total: int | None = None
        self._restarts: list[Restart] = []
        self._stalls: list[Stall] = []
        self._saves: list[Save] = []
        self._scores: list[Scored] = []
        self._failure: tuple[Failure, Place] | None = None
        self._hung: float | None = None
        self._failed: set[tuple[str, int | None, str]] = set()
        self._saving: tuple[int | None, float | None, int] | None = None
        self._evaluating: tuple[float | None, int] | None = None
        self._nans = self._skipped = 0
        self._timer_sums: dict[str, list[float]] = {}
        self._timer_form = ""
        self._rates: dict[str, list[float]] = {}
        self._batch: int | None = None
        self._sequence: int | None = None
        self._marks = 0  # launches and steps so far: tells whether a step lies between two lines

    def feed(self, event: Event | None, place: Place) -> None:
        moment = None
        if place.seconds is not None:
            self.dated = self.dated and place.dated
            moment = self.timeline.moment(place.seconds)
        match event:
            case None:
                return
            case Step():
                self._step(event, place, moment)
            case Timers():
                self._timers(event)
            case Setting():
                self._setting(event)
                if event.launch:
                    self._launch(Launch(), place)
            case Launch():
                self._launch(event, place)
            case Checkpoint():
                self._checkpoint(event, place, moment)
            case Evaluation():
                self._evaluation(event, place, moment)
            case Failure():
                self._fail(event, place)
            case Finished():
                self.finished = event.whole
                self.stated_seconds = event.seconds or self.stated_seconds

    def leave_gap(self) -> None:
        """What comes next is another job's: the GPUs may not have been held until then."""
        self.timeline.leave_gap("restart" if self._failure else "unexplained")

    @property
    def stepped(self) -> bool:
        return self.series.points > 0

    # Steps

    def _step(self, step: Step, place: Place, moment: float | None) -> None:
        if step.bar and not self._counts(step):
            return
        if step.seconds is not None and not 0 <= step.seconds < _LONGEST:
            step = replace(step, seconds=None)
        if step.iteration < 0:  # a loss without its iteration: of the one before
            self._learn(step, place)
            return
        last = self._attempt.last
        if not self.speakers.counts(step.iteration, place.stream, last):
            return
        if step.iteration == last:  # a bar drawn again
            if step.loss is not None and step.bar:
                self._learn(step, place)
            return
        back = last is not None and step.iteration < last and not self._failure
        if back and (step.bar or step.iteration == self._attempt.before):
            self.speakers.echoes += 1  # a rank without a label: its own bar, or a line late
            return
        if last is not None and step.iteration < last:
            self._restart(place)
        attempt = self._attempt
        steps = self._steps_of(step)
        again = self._again(step.iteration, steps or 1)
        if step.elapsed is not None and moment is None:
            moment = self._bar_moment(step)
        timed = self.timeline.step(steps=steps, seconds=step.seconds, moment=moment, again=again)
        at = self._unix()
        seconds, stalled = timed if timed else (None, 0.0)
        self.series.add(step.iteration, steps, seconds, step.loss, at)
        if stalled:
            self._stall(step.iteration, stalled, seconds, at, place)
        self._note_step(step, again, steps or 1)
        attempt.before, attempt.last = attempt.last, step.iteration
        attempt.points += 1
        if attempt.points == 1 and self._restarts:
            self._restarts[-1] = replace(self._restarts[-1], resumed=step.iteration)
        self._learn(step, place)
        self._failure = None

    def _counts(self, step: Step) -> bool:
        """Whether a bar is the training's: of as many steps as stated, or the first that came."""
        total = self._number("total")
        if total and step.total:
            return step.total == total
        self._attempt.bar = self._attempt.bar or step.bar
        return step.bar == self._attempt.bar

    def _steps_of(self, step: Step) -> int | None:
        attempt = self._attempt
        if attempt.last is not None:
            gap = step.iteration - attempt.last
            self._gap = gap
            return gap
        before = attempt.after
        if before is None and attempt.launched and not self._restarts and not step.from_zero:
            before = 0
        if before is None or before >= step.iteration:
            return self._gap if self._restarts else None
        gap = step.iteration - before
        interval = self._number("log_interval")
        return min(gap, interval) if interval else gap

    def _again(self, iteration: int, steps: int) -> float:
        """The share of these steps that was done before."""
        if self._best is None:
            return 0.0
        return min(max(self._best - (iteration - steps), 0), steps) / steps

    def _bar_moment(self, step: Step) -> float:
        attempt, passed = self._attempt, step.elapsed or 0.0
        if attempt.bar_base is None or passed < attempt.bar_passed:
            now = max(self.timeline.cursor, self.timeline.seen)
            if attempt.bar_base is None and attempt.began is not None:
                now = attempt.began
            elif attempt.bar_base is None and now:
                now -= passed
            attempt.bar_base = now
        attempt.bar_passed = passed
        return max(attempt.bar_base + passed, 0.0)

    def _note_step(self, step: Step, again: float, steps: int) -> None:
        self.unit = step.unit
        self._first = step.iteration if self._first is None else self._first
        self._total = step.total or self._total
        self._best = max(step.iteration, self._best if self._best is not None else step.iteration)
        self._nans += step.nans
        self._skipped += step.skipped
        self._batch, self._sequence = step.batch or self._batch, step.sequence or self._sequence
        self._marks += 1
        self._hung = None
        if again and self._restarts:
            last = self._restarts[-1]
            self._restarts[-1] = replace(last, lost_steps=last.lost_steps + round(again * steps))
        for name in ("tokens_per_second", "gpu_tokens_per_second", "gpu_tflops", "mfu"):
            value = getattr(step, name)
            if value is not None and math.isfinite(value):
                kept = self._rates.setdefault(name, [0.0, 0.0])
                kept[0] += value * steps
                kept[1] += steps

    def _learn(self, step: Step, place: Place) -> None:
        at = step.iteration if step.iteration >= 0 else (self._attempt.last or 0)
        loss = step.loss
        bad = step.nans > 0 or (loss is not None and not math.isfinite(loss))
        if bad:
            self._nans += step.nans == 0
            self._happen("NaN loss", place, fault=True, detail=f"iteration {at}")
        if step.skipped:
            detail = f"{step.skipped} up to iteration {at}"
            self._happen("skipped iterations", place, detail=detail)
        if loss is not None and math.isfinite(loss):
            spike = self.losses.add(at, loss, place.where)
            if spike:
                detail = f"iteration {at}: {loss:.4g}, usually {spike.usual:.4g}"
                self._happen("loss spike", place, detail=detail)

    def _stall(
        self, iteration: int, seconds: float, usual: float | None, at: float | None, place: Place
    ) -> None:
        stall = Stall(iteration=iteration, seconds=seconds, usual_seconds=usual, at=at,
                      where=place.where)  # fmt: skip
        self._keep(self._stalls, stall, "stalls")
        detail = f"{seconds:.1f} s before iteration {iteration}"
        self._happen("stall", place, fault=True, detail=detail, at=at)

    # Launches

    def _launch(self, launch: Launch, place: Place) -> None:
        if self._attempt.points:
            self._restart(place)
        self._attempt.launched = True
        if launch.after is not None:
            self._attempt.after = launch.after
        if launch.begins and place.seconds is not None and self._attempt.began is None:
            self.timeline.begin()
            self._attempt.began = self.timeline.seen

    def _restart(self, place: Place) -> None:
        old = self._attempt
        self.timeline.launch()
        self._attempt = _Attempt()
        self._saving = self._evaluating = None
        self.speakers.forget()
        self.losses.forget()
        self._marks += 1
        failure, where = self._failure or (None, None)
        restart = Restart(
            after=old.last, resumed=None, seconds=None, lost_steps=0,
            cause=failure.what if failure else "", cause_where=where.where if where else "",
            at=self._unix(), where=place.where,
        )  # fmt: skip
        self._keep(self._restarts, restart, "restarts")
        self._failed.clear()
        detail = f"after iteration {old.last}" + (f": {failure.what}" if failure else "")
        self._happen("restart", place, fault=True, detail=detail)

    # What else

    def _setting(self, setting: Setting) -> None:
        for name, value in setting.values.items():
            if len(self.settings) < 64 or name in self.settings:
                self.settings[name] = value
        self.framework = setting.values.get("framework", self.framework)
        world = self._number("world_size")
        if "world_size" in setting.values and world:
            self.worlds.add(world)

    def _timers(self, event: Timers) -> None:
        for name, value in event.milliseconds.items():
            if len(self._timer_sums) < 256 or name in self._timer_sums:
                kept = self._timer_sums.setdefault(name, [0.0, 0.0, 0.0])
                if event.form == "mean" and event.ranks > 1:  # corrects what one rank less gave
                    kept[0], kept[1] = kept[0] - kept[2], kept[1] - 1
                kept[:] = kept[0] + value, kept[1] + 1, value
        self._timer_form = event.form
        if SAVE in event.milliseconds and self._saves and event.form != "mean":
            seconds = event.milliseconds[SAVE] / 1e3
            last = self._saves[-1]
            self._saves[-1] = replace(last, seconds=seconds)
            self.timeline.explain("checkpoint", last.iteration, seconds)
        if event.form == "most" or not self._attempt.points:
            return
        share = min(1.0, event.ranks / (self.world_size or 1)) if event.form == "mean" else 1.0
        self.timeline.timers({n: value * share for n, value in event.milliseconds.items()})

    def _checkpoint(self, event: Checkpoint, place: Place, moment: float | None) -> None:
        last = self._attempt.last
        if event.phase == "loaded":
            if event.iteration is not None and not self._attempt.points:
                self._attempt.after = event.iteration
            self._happen("checkpoint loaded", place, detail=_iteration(event.iteration))
        elif event.phase == "saving":
            iteration = event.iteration if event.iteration is not None else last
            self._saving = (iteration, moment, self._marks)
            self.timeline.explain("checkpoint", iteration, None)
            self._keep_save(iteration, None, place)
        elif event.phase == "saved":
            self._saved(event, place, moment)

    def _saved(self, event: Checkpoint, place: Place, moment: float | None) -> None:
        begun, self._saving = self._saving, None
        seconds, iteration = event.seconds, event.iteration
        if begun:
            iteration = begun[0] if iteration is None else iteration
            if seconds is None and moment is not None and begun[1] is not None:
                seconds = max(0.0, moment - begun[1]) if begun[2] == self._marks else None
        iteration = self._attempt.last if iteration is None else iteration
        if event.blocking and (begun is None or begun[2] == self._marks):
            self.timeline.explain("checkpoint", iteration, seconds)
        if self._saves and self._saves[-1].iteration == iteration:
            last = self._saves[-1]
            self._saves[-1] = replace(
                last, seconds=seconds if seconds is not None else last.seconds
            )
        else:
            self._keep_save(iteration, seconds, place)

    def _keep_save(self, iteration: int | None, seconds: float | None, place: Place) -> None:
        if self._saves and iteration is not None and self._saves[-1].iteration == iteration:
            return  # another rank says it too
        save = Save(iteration=iteration, seconds=seconds, at=self._unix(place), where=place.where)
        self._keep(self._saves, save, "checkpoints")
        self._happen("checkpoint", place, detail=_iteration(iteration))

    def _evaluation(self, event: Evaluation, place: Place, moment: float | None) -> None:
        if event.phase == "start":
            self._evaluating = (moment, self._marks)
            self.timeline.explain("evaluation", self._marks, None)
            return
        begun, self._evaluating = self._evaluating, None
        seconds = event.seconds
        if seconds is None and begun and begun[0] is not None and moment is not None:
            seconds = max(0.0, moment - begun[0]) if begun[1] == self._marks else None
        if not self.stepped and not self._attempt.launched:
            return
        self.timeline.explain("evaluation", self._marks, seconds)
        self.evaluated_seconds += seconds or 0.0
        iteration = event.iteration if event.iteration is not None else self._attempt.last
        last = self._scores[-1] if self._scores else None
        if last and last.iteration == iteration:  # a start, an end and a score are one
            self._scores[-1] = replace(
                last,
                seconds=seconds if last.seconds is None else last.seconds,
                score=event.loss if event.loss is not None else last.score,
            )
            return
        score = Scored(iteration=iteration, seconds=seconds, score=event.loss,
                       at=self._unix(place), where=place.where)  # fmt: skip
        self._keep(self._scores, score, "evaluations")

    def _fail(self, event: Failure, place: Place) -> None:
        rank = event.rank if event.rank is not None else place.rank
        node = event.node or place.node
        if event.fault and (self._failure is None or event.waited_seconds is not None):
            self._failure = (event, place)
        self._hung = max(self._hung or 0.0, event.waited_seconds or 0.0) or None
        key = (event.what, rank, node)
        if key in self._failed:
            self.left["failures said again"] += 1
            return
        if len(self._failed) < 1 << 16:
            self._failed.add(key)
        self._happen(
            event.what, place, fault=event.fault, detail=event.detail, rank=rank, node=node
        )

    def _happen(
        self,
        what: str,
        place: Place,
        *,
        fault: bool = False,
        detail: str = "",
        rank: int | None = None,
        node: str = "",
        at: float | None = None,
    ) -> None:
        happening = Happening(
            seconds=at if at is not None else self._unix(place),
            what=what,
            node=node or place.node,
            rank=rank if rank is not None else place.rank,
            detail=f"{place.where} {detail[:200]}".strip(),
            fault=fault,
        )
        self._keep(self.happenings, happening, "happenings")

    def _keep(self, kept: list[Any], item: Any, name: str) -> None:
        if len(kept) < MOST:
            kept.append(item)
        else:
            self.left[name] += 1

    def _unix(self, place: Place | None = None) -> float | None:
        if not self.dated:
            return None
        if place is not None and place.seconds is not None:
            return place.seconds
        return self.timeline.unix(max(self.timeline.cursor, self.timeline.seen))

    def _number(self, name: str) -> int | None:
        text = self.settings.get(name, "")
        return int(text) if text.isdigit() and len(text) < 12 else None

    # The end

    def told(self) -> Run:
        saving = self._saving is not None and self._saving[2] == self._marks and not self._failure
        died = self._attempt.launched and not self.finished and self._attempt.began is None
        self.timeline.finish(saving=saving, hung=self._hung, starting=died)
        waits = dict(enumerate(self.timeline.settled))  # the first is the first start
        restarts = [replace(r, seconds=waits.get(n)) for n, r in enumerate(self._restarts, 1)]
        series = self.series
        mean = series.mean_seconds
        if self.spread and mean is None and series.steps:
            mean = self.timeline.booked["compute"] / series.steps
        return Run(
            framework=self.framework,
            files=tuple(self.files),
            lines=self.lines,
            unit=self.unit,
            steps=series.steps,
            points=series.points,
            first_step=self._first,
            last_step=self._attempt.last,
            total_steps=self._total or self._number("total"),
            step_seconds=mean,
            step_seconds_median=series.median_seconds,
            world_size=self.world_size,
            layout={n: v for n in _LAYOUT if (v := self._number(n))},
            batch=self._batch or self._number("batch"),
            sequence=self._sequence or self._number("sequence"),
            tokens_per_second=self._tokens_per_second(mean),
            claimed_gpu_tflops=self._rate("gpu_tflops"),
            claimed_mfu=self._rate("mfu"),
            first_loss=self.losses.first,
            last_loss=self.losses.last,
            spikes=tuple(self.losses.spikes),
            nan_steps=self._nans,
            skipped_steps=self._skipped,
            restarts=tuple(restarts),
            stalls=tuple(self._stalls),
            saves=tuple(self._saves),
            evaluations=tuple(self._scores),
            timers_ms={name: total / count for name, (total, count, _) in self._timer_sums.items()},
            timers_form=self._timer_form,
            series=series.told(),
        )

    @property
    def world_size(self) -> int | None:
        """Stated, or by what the log divides; None where neither tells."""
        if self.worlds:
            return max(self.worlds)
        total, each = self._rate("tokens_per_second"), self._rate("gpu_tokens_per_second")
        if total and each and total / each < 100:  # three digits are printed
            return round(total / each)
        batch, device = self._number("batch"), self._number("device_batch")
        parts = (device or 0) * (self._number("accumulation") or 1)
        return batch // parts if batch and parts and batch % parts == 0 else None

    def _rate(self, name: str) -> float | None:
        total, steps = self._rates.get(name, (0.0, 0.0))
        return total / steps if steps else None

    def _tokens_per_second(self, mean: float | None) -> float | None:
        stated, each = self._rate("tokens_per_second"), self._rate("gpu_tokens_per_second")
        if stated:
            return stated
        if each and self.world_size:
            return each * self.world_size
        batch, sequence = self._batch or self._number("batch"), self._number("sequence")
        sequence = self._sequence or sequence
        return batch * sequence / mean if batch and sequence and mean else None


def _iteration(iteration: int | None) -> str:
    return "" if iteration is None else f"iteration {iteration}"
