"""What the columns of a repeated line mean: `read_columns`, from their values, names and units.

A column counts steps if it grows by a constant (or is the first of "3/10"); it is a time of steps if
its unit or its name says so and the lines' own times, or another clock in the line, do not
contradict. Whatever is not certain is marked so and not used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from computeflow.telemetry.logs.line_templates import BRACKETS, ELAPSED, TOTAL
from computeflow.telemetry.logs.log_facts import LearnedColumn

_STEP = set(
    "step steps iter iters iteration iterations it itr update updates batch batches minibatch "
    "idx i ba".split()
)
_GLOBAL = set("global num acc total cur".split())
_EPOCH = set("epoch epochs ep pass".split())
_NO_COUNTER = set(
    "token tokens tok sample samples seen time sec secs ms mem memory lr loss eta consumed "
    "size example examples line pid port rank worker images bytes mb gb seqlen seq gpu "
    "version v instances".split()
)
_TIME = set(
    "time dt elapsed duration dur sec secs second seconds ms took wall timing runtime cost latency "
    "t walltime s millis spent".split()
)
_LEFT = set("eta remaining left remain".split())
_PART = set(
    "data reader loader loading load forward fwd backward bwd optim opt optimizer comm val eval "
    "valid test save ckpt gen preprocess fetch wait inference sync compile".split()
)
_EACH = set("step iter iteration it batch update".split())
_MILLI = set("ms msec msecs millis milliseconds millisecond".split())
_SECOND = set("s sec secs second seconds".split())
_EVALUATION = set("val valid validation eval evaluation test testing dev".split())
_WHOLE_LOSS = set(
    "loss train training total lm step batch curr avg mean reduced cross entropy ce "
    "crossentropyloss".split()
)
_RATE = re.compile(
    r"/s(?:ec|econd)?\b|per[ _-]?s(?:ec|econd)?(?![a-z])|\b[a-z]ps\b|throughput|speed"
)
_DEVICE = re.compile(r"gpu|device|chip|rank|worker")
_WORDS = re.compile(r"[a-z]+")
_WHOLE = 0.9
"""Least share of changes that a counter makes upwards."""
_USUAL = 0.6
"""Least share of a counter's changes that are of the usual size."""
_AGREES = (0.7, 1.2)
"""Stated over measured time. A stated time may leave out the loader or the printing, and measured ones
include pauses; milliseconds taken for seconds, or one step for ten, are far outside."""
_PAUSE = 4.0
"""An interval of so many usual ones holds a pause and is left out of the comparison."""
_MIN_AGREEING = 3
"""Least intervals that a time is compared over."""
_MIN_SECONDS = 3.0
"""Least seconds, by a clock of whole seconds, that a time is compared over."""
_COARSE_SECONDS = 10.0
"""Least time that a clock of whole seconds must have run to tell step times: within ten per cent."""
_DOUBTFUL = 9

_FROM_START = 0.5
"""Least growth of a time since the start over its first value: the time of a step may rise, too, but
not like a clock (Keras: 54ms/step, 54, 58, 59)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Values of one template's lines, with the times of the lines where they have them."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    units: tuple[str, ...]
    examples: tuple[str, ...]
    values: np.ndarray
    """One row for each line, one column for each slot; NaN where there is no value."""
    times: np.ndarray
    """Unix seconds of the lines; NaN where a line has none."""

    def words(self, index: int) -> set[str]:
        return set(_WORDS.findall(self.names[index]))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """Columns that count steps."""

    step: int
    total: int | None
    epoch: int | None
    unit: str
    """What is counted: "steps" or "epochs"."""
    by_name: bool
    """Whether the name says that it counts steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadColumns:
    """Columns of a step line, by index; None for what the line has not, or not for certain."""

    counted: StepColumns
    seconds: int | None
    seconds_scale: float
    per_line: bool
    """Whether the time is of all steps since the line before."""
    elapsed: int | None
    rate: int | None
    loss: int | None
    tokens: int | None
    gpu_tokens: int | None
    mfu: int | None
    tflops: int | None
    columns: tuple[LearnedColumn, ...]


def is_evaluation(text: str) -> bool:
    return bool(_EVALUATION & set(_WORDS.findall(text.lower())))


def find_steps(rows: Rows) -> StepColumns | None:
    """The column that counts steps; None where there is none."""
    counters = [index for index in range(len(rows.names)) if _is_counter(rows, index)]
    epochs = [
        index for index in counters if rows.words(index) & _EPOCH and _never_falls(rows, index)
    ]
    epoch = epochs[0] if epochs else _constant_epoch(rows)
    steps = [index for index in counters if index not in epochs]
    best = max(steps, key=lambda index: _step_score(rows, index), default=None)
    if best is not None and (_step_score(rows, best)[0] > 0 or epoch is None):
        named = bool(rows.words(best) & _STEP) or _has_total(rows, best)
        before = epoch if epoch is not None else _unnamed_epoch(rows, best)
        return StepColumns(
            step=best, total=_total(rows, best), epoch=before, unit="steps", by_name=named
        )
    if not epochs:
        return None
    total = _total(rows, epochs[0])
    return StepColumns(step=epochs[0], total=total, epoch=None, unit="epochs", by_name=True)


def _never_falls(rows: Rows, index: int) -> bool:
    return bool((np.diff(rows.values[:, index]) >= 0).all())


def _is_counter(rows: Rows, index: int) -> bool:
    """Whether a column is whole numbers that grow by a constant, or to a total; it may start over."""
    values = rows.values[:, index]
    if rows.kinds[index] != "number" or rows.units[index] or rows.words(index) & _NO_COUNTER:
        return False
    if rows.names[index].endswith((TOTAL, BRACKETS)):
        return False
    if not np.isfinite(values).all() or (values != np.round(values)).any() or values.min() < 0:
        return False
    changes = np.diff(values)
    changes = changes[changes != 0]
    if not len(changes) or values.max() > 1e12:
        return False
    up = changes[changes > 0]
    low = values.min() + (up.min() if len(up) else 0)
    over = [v for v, change in zip(values[1:], np.diff(values), strict=True) if change < 0]
    if any(value > low for value in over):
        return False
    if len(up) < _WHOLE * len(changes) and len(over) > len(up) / 2:
        return False
    if _has_total(rows, index):
        return True
    _, times = np.unique(up, return_counts=True)
    return bool(times.max() >= _USUAL * len(up))


def _has_total(rows: Rows, index: int) -> bool:
    return _total(rows, index) is not None


def _total(rows: Rows, index: int) -> int | None:
    """The column after "/", if it is never exceeded."""
    after = index + 1
    if after >= len(rows.names) or TOTAL not in rows.names[after]:
        return None
    fits = (rows.values[:, index] <= rows.values[:, after]).all()
    return after if fits and (rows.values[:, after] > 0).all() else None


def _step_score(rows: Rows, index: int) -> tuple[float, ...]:
    """Named counters first, those that never start over, those of most changes, of least growth."""
    values, words = rows.values[:, index], rows.words(index)
    named = bool(words & _STEP)
    changes = np.diff(values)
    moves = int((changes != 0).sum())
    often = moves / max(1, len(values) - 1)
    over = bool((changes < 0).any())
    total = _has_total(rows, index)
    growth = float(np.median(changes[changes > 0])) if (changes > 0).any() else math.inf
    return (
        2.0 * (named and often > 0.5) + total - 3.0 * (often < 0.2),
        not over,
        often,
        bool(words & _GLOBAL),
        -growth,
        -index,
    )


def _constant_epoch(rows: Rows) -> int | None:
    """A column named after epochs that did not change yet."""
    for index, kind in enumerate(rows.kinds):
        column = rows.values[:, index]
        named = rows.words(index) & _EPOCH and TOTAL not in rows.names[index]
        if (
            named
            and kind == "number"
            and (column == column[0]).all()
            and column[0] == round(column[0])
        ):
            return index
    return None


def _unnamed_epoch(rows: Rows, step: int) -> int | None:
    """A column before the steps that grows whenever they start over."""
    over = np.diff(rows.values[:, step]) < 0
    for index in range(step):
        change = np.diff(rows.values[:, index])
        if over.any() and ((change > 0) == over).all():
            return index
    return None


def read_columns(rows: Rows, counted: StepColumns) -> ReadColumns:
    reader = _Reader(rows, counted)
    return reader.read()


class _Reader:
    """Finds the meaning of each column once, in the order of certainty."""

    def __init__(self, rows: Rows, counted: StepColumns) -> None:
        self._rows = rows
        self._counted = counted
        self._meanings: dict[int, tuple[str, str, bool, str]] = {}
        values = rows.values[:, counted.step]
        self._steps = np.diff(values)
        self._fresh = self._steps > 0
        """Intervals between lines that belong to a whole number of steps."""
        self._gap = float(np.median(self._steps[self._fresh])) if self._fresh.any() else 1.0

    def read(self) -> ReadColumns:
        counted = self._counted
        self._say_counters()
        rate = self._find_rate()
        elapsed = self._find_elapsed()
        seconds, scale, per_line = self._find_seconds(rate, elapsed)
        loss = self._find_loss()
        tokens, gpu_tokens = self._find_tokens()
        mfu = self._first_named({"mfu"}, "MFU as the log states it")
        tflops = self._first_named({"tflops", "tflop"}, "TFLOP/s as the log states it")
        self._say_others()
        return ReadColumns(
            counted=counted,
            seconds=seconds,
            seconds_scale=scale,
            per_line=per_line,
            elapsed=elapsed,
            rate=rate if seconds is None else None,
            loss=loss,
            tokens=tokens,
            gpu_tokens=gpu_tokens,
            mfu=mfu,
            tflops=tflops,
            columns=tuple(self._column(index) for index in range(len(self._rows.names))),
        )

    def _column(self, index: int) -> LearnedColumn:
        meaning, unit, sure, because = self._meanings[index]
        return LearnedColumn(
            name=self._rows.names[index],
            example=self._rows.examples[index],
            meaning=meaning,
            unit=unit,
            sure=sure,
            because=because,
        )

    def _say(self, index: int, meaning: str, unit: str, because: str, *, sure: bool = True) -> None:
        self._meanings.setdefault(index, (meaning, unit, sure, because))

    def _say_counters(self) -> None:
        counted = self._counted
        grows = f"grows by {self._gap:g}"
        if counted.by_name:
            grows += " and is named so" if self._rows.names[counted.step] else ", up to a total"
        self._say(counted.step, counted.unit.removesuffix("s"), "", grows)
        if counted.total is not None:
            self._say(counted.total, f"{counted.unit} to do", "", "never exceeded")
        if counted.epoch is not None:
            named = bool(self._rows.words(counted.epoch) & _EPOCH)
            because = "by its name" if named else "grows where the steps start over"
            self._say(counted.epoch, "epoch", "", because)

    def _time_like(self, index: int) -> bool:
        words, kind = self._rows.words(index), self._rows.kinds[index]
        if index in self._meanings or words & _LEFT or kind == "rate" or self._is_rate(index):
            return False
        if self._rows.units[index] == "%" or words & {"lr", "loss"}:
            return False
        return kind in ("time", "clock") or bool(words & _TIME)

    def _is_rate(self, index: int) -> bool:
        if self._rows.kinds[index] in ("time", "clock"):
            return False
        return bool(self._rows.units[index].endswith("/s") or _RATE.search(self._rows.names[index]))

    def _find_rate(self) -> int | None:
        """Steps per second."""
        for index, kind in enumerate(self._rows.kinds):
            words = self._rows.words(index)
            named = self._is_rate(index) and (words & (_EACH | {"steps", "batches", "its", "ups"}))
            if kind == "rate" or (kind == "number" and named):
                self._say(index, "steps per second", "1/s", "by its unit")
                return index if self._counted.unit == "steps" else None
        return None

    def _find_elapsed(self) -> int | None:
        """Seconds since the start, which never fall within an epoch."""
        for index in range(len(self._rows.names)):
            if not self._time_like(index) or self._rows.words(index) & _PART:
                continue
            values = self._rows.values[:, index]
            changes = np.diff(values)[self._fresh]
            if self._rows.kinds[index] == "number" and self._stated_scale(index) is None:
                continue
            named = self._rows.names[index] == ELAPSED
            if not (named and (changes >= 0).all()) and not self._grows(values, changes):
                continue
            if not named and values.max() - values.min() < _FROM_START * abs(values[0]):
                continue
            if self._is_coarse(values):
                because = "whole seconds of a short log: too coarse for step times"
                self._say(index, "time since the start", "s", because, sure=False)
                continue
            self._say(index, "time since the start", "s", "grows with the steps")
            return index
        return None

    def _is_coarse(self, values: np.ndarray) -> bool:
        """Whether a clock has no fractions, nor a rate beside it, and has not run for long."""
        fine = (values != np.round(values)).any() or "rate" in self._rows.kinds
        return not fine and float(np.nanmax(values) - np.nanmin(values)) < _COARSE_SECONDS

    def _grows(self, values: np.ndarray, changes: np.ndarray) -> bool:
        if len(changes) < _MIN_AGREEING or not np.isfinite(values).all():
            return False
        return bool((changes >= 0).all() and changes.sum() > 0 and values[-1] > 1.5 * changes.max())

    def _stated_scale(self, index: int) -> float | None:
        """Seconds of one unit, by the column's unit or name; None where neither says it."""
        if self._rows.kinds[index] in ("time", "clock"):
            return 1.0
        words = self._rows.words(index)
        if words & _MILLI:
            return 1e-3
        return 1.0 if words & _SECOND else None

    def _find_seconds(
        self, rate: int | None, elapsed: int | None
    ) -> tuple[int | None, float, bool]:
        """The column of step times that agrees with another clock, or whose unit leaves no doubt."""
        clocks = self._clocks(rate, elapsed)
        found: list[tuple[float, int, float, bool]] = []
        others: list[int] = []
        for index in range(len(self._rows.names)):
            if not self._time_like(index) or index == elapsed:
                continue
            if self._rows.words(index) & _PART:
                self._say(index, "part of a step", "", "by its name", sure=False)
                continue
            fit = self._compare(index, clocks)
            others += [index] if fit is None else []
            found += [] if fit is None else [fit]
        if found:
            for index in others:
                self._say(index, "a time", "", "agrees with no other clock", sure=False)
            return min(found)[1:]
        return self._by_unit(others, compared=bool(clocks))

    def _compare(
        self, index: int, clocks: Sequence[tuple[str, np.ndarray]]
    ) -> tuple[float, int, float, bool] | None:
        """How a time fits another clock: distance, column, scale, whether it is of a whole line."""
        stated = self._stated_scale(index)
        scales = (1.0, 1e-3, 1e-6) if stated is None else (stated,)
        for name, spans in clocks:
            fits = [
                (abs(math.log(ratio)), scale, per_line)
                for scale in scales
                for per_line in (False, True)
                if (ratio := self._ratio(index, scale, per_line, spans))
                and _AGREES[0] <= ratio <= _AGREES[1]
            ]
            if fits:
                off, scale, per_line = min(fits)
                unit = _unit(scale, self._rows.kinds[index])
                self._say(index, self._time_meaning(per_line), unit, f"agrees with {name}")
                return off, index, scale, per_line
        return None

    def _by_unit(self, times: Sequence[int], *, compared: bool) -> tuple[int | None, float, bool]:
        """The time whose unit and name leave no doubt, where no other clock confirms one."""
        ranked = sorted((self._doubt(index), index) for index in times)
        sure = [index for doubt, index in ranked if doubt == ranked[0][0] and doubt < _DOUBTFUL]
        chosen = sure[0] if len(sure) == 1 and not compared else None
        for index in times:
            if index == chosen:
                self._say(index, self._time_meaning(False), "s", "by its unit")
            else:
                self._say(index, "a time", "", self._why_unsure(index, compared), sure=False)
        scale = 1.0 if chosen is None else self._stated_scale(chosen)
        return chosen, scale or 1.0, False

    def _doubt(self, index: int) -> int:
        """How far unit and name leave open that a time is that of one step."""
        words, each = self._rows.words(index), self._rows.units[index].startswith("/")
        if self._rows.names[index].endswith(BRACKETS):  # the name is that of the number before
            words = set()
        epochs = self._counted.unit == "epochs"
        if self._stated_scale(index) is None or (each and epochs):
            return _DOUBTFUL
        if self._rows.kinds[index] == "clock" and not (epochs and words & _TIME):
            return _DOUBTFUL  # times of day and since the start look the same
        if each:
            return 0
        if words & _EACH and self._counted.unit == "steps":
            return 1
        if self._gap != 1:
            return _DOUBTFUL
        return 2 if words & _TIME else 3

    def _why_unsure(self, index: int, compared: bool) -> str:
        if compared:
            return "agrees with no other clock"
        if self._stated_scale(index) is None:
            return "no unit, and nothing in the log to compare it with"
        if self._gap != 1:
            return f"of one step or of {self._gap:g}: the log does not say"
        return "one of several times"

    def _time_meaning(self, per_line: bool) -> str:
        if self._gap == 1:
            return f"{self._counted.unit.removesuffix('s')} time"
        return f"time of {self._gap:g} steps" if per_line else "step time"

    def _clocks(self, rate: int | None, elapsed: int | None) -> list[tuple[str, np.ndarray]]:
        """Seconds between lines by every clock but the column itself; pauses are NaN."""
        clocks = []
        spans = np.diff(self._rows.times)
        if np.isfinite(spans).sum() >= _MIN_AGREEING and np.nansum(spans) >= _MIN_SECONDS:
            clocks.append(("the times on the lines", spans))
        if elapsed is not None:
            column = self._rows.values[:, elapsed]
            whole = (column == np.round(column)).all()
            scale = self._stated_scale(elapsed) or 1.0
            spans = np.diff(column) * scale
            if not whole or column[-1] - column[0] >= _MIN_SECONDS:
                clocks.append(("the clock beside it", spans))
        if rate is not None:
            spans = self._steps / np.where(
                self._rows.values[1:, rate] > 0, self._rows.values[1:, rate], np.nan
            )
            if np.isfinite(spans).sum() >= _MIN_AGREEING:
                clocks.append(("the rate beside it", spans))
        clocks += self._by_remaining()
        return clocks

    def _by_remaining(self) -> list[tuple[str, np.ndarray]]:
        """Step times by the time that is left for the steps to do."""
        total = self._counted.total
        if total is None:
            return []
        for index, kind in enumerate(self._rows.kinds):
            if kind == "clock" and self._rows.words(index) & _LEFT:
                values = self._rows.values
                left = values[1:, total] - values[1:, self._counted.step]
                spans = self._steps * values[1:, index] / np.where(left > 0, left, np.nan)
                spans[values[1:, index] < 10] = np.nan
                if np.isfinite(spans).sum() >= _MIN_AGREEING:
                    return [("the time left", spans)]
        return []

    def _ratio(self, index: int, scale: float, per_line: bool, spans: np.ndarray) -> float | None:
        """Stated over measured time, without the intervals that hold a pause."""
        values = self._rows.values[1:, index] * scale
        stated = values if per_line else values * self._steps
        known = self._fresh & np.isfinite(stated) & np.isfinite(spans) & (spans >= 0)
        if known.sum() < min(_MIN_AGREEING, len(spans)):
            return None
        usual = np.median(spans[known])
        known &= spans <= max(_PAUSE * usual, usual + 1.0)
        measured, sum_stated = float(spans[known].sum()), float(stated[known].sum())
        return sum_stated / measured if measured > 0 and sum_stated > 0 else None

    def _find_loss(self) -> int | None:
        losses = [index for index in range(len(self._rows.names)) if self._is_loss(index)]
        whole = [index for index in losses if self._rows.words(index) <= _WHOLE_LOSS]
        first = [index for index in whole if self._rows.names[index] == "loss"] or whole or losses
        if not first:
            return None
        if len(losses) > 1 and not whole:
            for index in losses:
                self._say(index, "one of several losses", "", "no total among them", sure=False)
            return None
        self._say(first[0], "loss", "", "by its name")
        return first[0]

    def _is_loss(self, index: int) -> bool:
        words, name = self._rows.words(index), self._rows.names[index]
        if index in self._meanings or self._rows.kinds[index] not in ("number", "missing"):
            return False
        if name.endswith(BRACKETS) or words & (_EVALUATION | {"scale", "scaler"}):
            return False
        return any(word.endswith("loss") for word in words)

    def _find_tokens(self) -> tuple[int | None, int | None]:
        """Tokens per second: of the job, and of one device."""
        whole = each = None
        for index in range(len(self._rows.names)):
            text = f"{self._rows.names[index]} {self._rows.units[index]}"
            if index in self._meanings or not self._is_rate(index) or "tok" not in text:
                continue
            if _DEVICE.search(text):
                each = index if each is None else each
                self._say(index, "tokens per second of a device", "1/s", "by its name and unit")
            else:
                whole = index if whole is None else whole
                self._say(index, "tokens per second", "1/s", "by its name and unit")
        return whole, each

    def _first_named(self, words: set[str], meaning: str) -> int | None:
        for index in range(len(self._rows.names)):
            if index not in self._meanings and self._rows.words(index) & words:
                self._say(index, meaning, self._rows.units[index], "by its name")
                return index
        return None

    def _say_others(self) -> None:
        for index in range(len(self._rows.names)):
            words, column = self._rows.words(index), self._rows.values[:, index]
            name = self._rows.names[index]
            if words & {"lr", "learning"}:
                self._say(index, "learning rate", "", "by its name")
            elif "norm" in words or words & {"gnorm", "gradnorm"}:
                self._say(
                    index,
                    "gradient norm",
                    "",
                    "by its name",
                    sure="grad" in name or "gnorm" in name,
                )
            elif words & _LEFT:
                self._say(
                    index, "time left", "s", "by its name", sure=self._rows.kinds[index] == "clock"
                )
            elif self._is_rate(index):
                self._say(
                    index, "a rate", self._rows.units[index], "by its name or unit", sure=False
                )
            elif words & {"mem", "memory", "vram"}:
                self._say(index, "memory", "", "by its name", sure=False)
            elif any(word.endswith("loss") for word in words):
                what = "loss of an evaluation" if words & _EVALUATION else "another loss"
                self._say(index, what, "", "by its name", sure=bool(words & _EVALUATION))
            elif self._rows.units[index] == "%":
                self._say(index, "a share", "%", "by its unit", sure=False)
            elif (column == column[0]).all():
                self._say(index, "constant", "", "the same in all lines", sure=False)
            elif (np.diff(column)[self._fresh] > 0).all():
                self._say(index, "grows with the steps", "", "in every line", sure=False)
            else:
                self._say(index, "not understood", self._rows.units[index], "", sure=False)


def _unit(scale: float, kind: str) -> str:
    if kind in ("time", "clock"):
        return "s"
    return {1.0: "s", 1e-3: "ms", 1e-6: "µs"}.get(scale, "s")
