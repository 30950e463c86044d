"""Step lines of a trainer that nobody described: `learn` their format from the beginning of a log.

Lines are grouped by template; the template that counts steps beside a loss or a time is the step line.
Later lines belong to it if they begin alike, up to the number of the step; their other columns are
taken by name. Only the beginning of a file is learned from, so time and memory are bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from computeflow.files.limits import (
    LOG_HEAD_BYTES,
    LOG_LEARN_BYTES,
    LOG_LEARNED_ROWS,
    LOG_TEMPLATES,
)
from computeflow.telemetry.logs.learned_columns import (
    ReadColumns,
    Rows,
    find_steps,
    is_evaluation,
    read_columns,
)
from computeflow.telemetry.logs.line_events import Evaluation, Event, StepLine
from computeflow.telemetry.logs.line_templates import (
    TOTAL,
    SplitLine,
    header_names,
    slot_names,
    split_line,
)
from computeflow.telemetry.logs.line_times import LineClock
from computeflow.telemetry.logs.log_facts import LearnedColumn, LearnedLine
from computeflow.telemetry.logs.log_lines import LogLine
from computeflow.telemetry.logs.progress_bars import within_second

_MIN_ROWS = 3
"""Least lines of a named format; two points always lie on a line."""
_MIN_UNNAMED_ROWS = 8
"""Least lines of a format whose step is known only by its growth."""
_MAX_STEP = 1e12
_MAX_MEMBERS = 32
"""Most lines of a record; Composer prints about twenty."""
_FOLLOWS = 0.8
"""Least share of step lines that a line of the same record follows; the last record may be cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A line that follows every step line and tells more of the step."""

    key: str
    first: int
    """Its first column among those of the step."""


@dataclass(slots=True)
class _Template:
    """Lines of one template, from the writer that wrote the first."""

    first: SplitLine
    names: tuple[str, ...]
    stream: str
    text: str
    values: list[tuple[float, ...]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """The number of each line."""
    lines: int = 0
    members: tuple[_Member, ...] = ()

    def add(self, line: SplitLine, stream: str, seconds: float | None, place: int) -> None:
        self.lines += stream == self.stream
        if stream != self.stream or len(self.values) >= LOG_LEARNED_ROWS:
            return
        self.values.append(tuple(slot.value for slot in line.slots))
        self.times.append(math.nan if seconds is None else seconds)
        self.places.append(place)
        for index, slot in enumerate(line.slots):
            if self.kinds[index] == "missing":
                self.kinds[index] = slot.kind

    def rows(self) -> Rows:
        return Rows(
            names=self.names,
            kinds=tuple(self.kinds),
            units=tuple(slot.unit for slot in self.first.slots),
            examples=tuple(slot.text for slot in self.first.slots),
            values=np.array(self.values),
            times=np.array(self.times),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepFormat:
    """A template whose lines are steps, or scores of an evaluation."""

    prefix: str
    """The template up to the number of the step."""
    names: tuple[str, ...]
    headed: bool
    """Whether the names are those of a table's header."""
    read: ReadColumns
    evaluation: bool
    bar: bool
    shown: LearnedLine
    lines: int
    first_steps: tuple[int, int]
    """The first step and the usual growth from line to line."""

    members: tuple[_Member, ...] = ()

    @property
    def step_name(self) -> str:
        return self.names[self.read.counted.step]

    @property
    def scores(self) -> bool:
        """Whether a line has the loss of an evaluation."""
        named = any(
            "loss" in column.meaning and is_evaluation(column.name) for column in self.read.columns
        )
        return named or (self.evaluation and self.shown.loss)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedFormat:
    """What was learned of a log: its step lines, and lines of evaluations."""

    steps: tuple[_StepFormat, ...]
    evaluations: tuple[_StepFormat, ...]

    @property
    def shown(self) -> tuple[LearnedLine, ...]:
        lines = (self.steps[0].shown, *(known.shown for known in self.evaluations))
        return tuple({line.template: line for line in lines}.values())

    @property
    def starts_after(self) -> int | None:
        """The step before the first one; None where the log starts in the middle."""
        first, gap = self.steps[0].first_steps
        return first - 1 if first <= 1 else 0 if first == gap else None

    @property
    def is_bar(self) -> bool:
        return self.steps[0].bar

    @property
    def by_epoch(self) -> bool:
        return self.steps[0].read.counted.epoch is not None

    @property
    def is_timed(self) -> bool:
        read = self.steps[0].read
        return read.seconds is not None or read.elapsed is not None or read.rate is not None


def learn(lines: Iterable[LogLine]) -> LearnedFormat | None:
    """The format of the step lines; None where no line counts steps beside a loss or a time."""
    templates = _collect(lines)
    joined = [more for template in templates if (more := _join(template, templates)) is not None]
    formats = [known for each in (*templates, *joined) if (known := _format_of(each)) is not None]
    training = [known for known in formats if not known.evaluation]
    if not training:
        return None
    best = max(training, key=_worth)
    alike = [known for known in training if _is_alike(known, best)]
    alike.sort(key=lambda known: known is not best)
    unit = best.read.counted.unit
    scores = [
        known
        for known in formats
        if known not in alike and known.scores and known.read.counted.unit == unit
    ]
    return LearnedFormat(steps=tuple(alike), evaluations=tuple(scores))


def _collect(lines: Iterable[LogLine]) -> list[_Template]:
    templates: dict[str, _Template] = {}
    clock, header, size, full = LineClock(), "", 0, False
    for place, line in enumerate(lines):
        size += len(line.text) + 1
        if size > (LOG_LEARN_BYTES if full else LOG_HEAD_BYTES):
            break
        stamp = clock.take(line.text)
        parts = split_line(line.text)
        if parts is None:
            header = line.text if any(sign.isalpha() for sign in line.text) else header
            continue
        template = templates.get(parts.key)
        if template is None:
            if len(templates) >= LOG_TEMPLATES:
                _drop_rare(templates)
            template = templates[parts.key] = _new_template(parts, line, header)
        template.add(parts, line.stream, stamp[0] if stamp else None, place)
        full = full or len(template.values) >= LOG_LEARNED_ROWS
    return [template for template in templates.values() if len(template.values) >= _MIN_ROWS]


def _drop_rare(templates: dict[str, _Template]) -> None:
    """Forget templates seen once; all but the most frequent half where that is not enough."""
    ordered = sorted(templates, key=lambda key: -templates[key].lines)
    for key in ordered[LOG_TEMPLATES // 2 :]:
        del templates[key]


def _new_template(parts: SplitLine, line: LogLine, header: str) -> _Template:
    names = slot_names(parts)
    if not any(name.replace(TOTAL, "").strip(" #0123456789") for name in names[:3]):
        names = _table_names(parts, line.text, header) or names
    return _Template(
        first=parts,
        names=names,
        stream=line.stream,
        text=line.text,
        kinds=[slot.kind for slot in parts.slots],
    )


def _table_names(parts: SplitLine, text: str, header: str) -> tuple[str, ...] | None:
    """Names by the last line without numbers, for rows that have none of their own."""
    names = header_names(header, text, parts.starts)
    if names is None:
        return None
    own = slot_names(parts)
    return tuple(name or own[index] for index, name in enumerate(names))


def _join(first: _Template, templates: list[_Template]) -> _Template | None:
    """A record of several lines: one that counts steps, and those that follow it every time.

    Trainers print "Epoch 3/10" and then its figures, or one figure a line.
    """
    counted = find_steps(first.rows())
    if counted is None or not counted.by_name or is_evaluation(first.first.key):
        return None
    starts = np.array(first.places)
    parts = [(first, np.arange(len(starts)))]
    for other in templates:
        if other is first or other.stream != first.stream or len(parts) > _MAX_MEMBERS:
            continue
        records = np.searchsorted(starts, other.places, side="right") - 1
        often = len(records) >= _FOLLOWS * len(starts)
        if often and records.min() >= 0 and len(np.unique(records)) == len(records):
            parts.append((other, records))
    return _joined(parts) if len(parts) > 1 else None


def _joined(parts: list[tuple[_Template, np.ndarray]]) -> _Template | None:
    """One template of several, with the records that have all of them."""
    first = parts[0][0]
    common = set(parts[0][1].tolist()).intersection(*(records.tolist() for _, records in parts))
    if len(common) < _MIN_ROWS:
        return None
    rows: list[list[float]] = [[] for _ in common]
    names: list[str] = []
    members = []
    for part, records in parts:
        members.append(_Member(key=part.first.key, first=len(names)))
        names += [f"{name} #{len(members)}" if name in names else name for name in part.names]
        kept = [index for index, record in enumerate(records.tolist()) if record in common]
        for row, index in zip(rows, kept, strict=True):
            row += part.values[index]
    kept = sorted(common)
    return _Template(
        first=_chained([part.first for part, _ in parts]),
        names=tuple(names),
        stream=first.stream,
        text=first.text,
        values=[tuple(row) for row in rows],
        kinds=[kind for part, _ in parts for kind in part.kinds],
        times=[first.times[index] for index in kept],
        lines=first.lines,
        members=tuple(members[1:]),
    )


def _chained(lines: list[SplitLine]) -> SplitLine:
    """Several lines as one; its key and places of slots are those of the first."""
    first = lines[0]
    return first._replace(
        key=" / ".join(line.key for line in lines),
        slots=tuple(slot for line in lines for slot in line.slots),
        gaps=tuple(gap for line in lines for gap in line.gaps),
    )


def _format_of(template: _Template) -> _StepFormat | None:
    rows = template.rows()
    counted = find_steps(rows)
    if counted is None:
        return None
    if not counted.by_name and len(rows.values) < _MIN_UNNAMED_ROWS:
        return None
    read = read_columns(rows, counted)
    timed = read.seconds is not None or read.elapsed is not None or read.rate is not None
    evaluation = _is_evaluation(template, read)
    losses = [column for column in read.columns if "loss" in column.meaning]
    if not timed and not losses:
        return None
    if not counted.by_name and read.loss is None:
        return None
    if counted.unit == "epochs" and not losses:
        return None
    end = template.first.ends[counted.step]
    return _StepFormat(
        prefix=template.first.key[:end],
        names=template.names,
        headed=not template.members and template.names != slot_names(template.first),
        read=read,
        evaluation=evaluation,
        bar="%~" in template.first.key,
        shown=LearnedLine(
            template=_shown(template),
            lines=template.lines,
            evaluation=evaluation,
            columns=tuple(_named(column) for column in read.columns),
        ),
        lines=template.lines,
        first_steps=_first_steps(rows.values[:, counted.step]),
        members=_used(template, read),
    )


def _used(template: _Template, read: ReadColumns) -> tuple[_Member, ...]:
    """The members whose columns are used."""
    used = [index for index, column in enumerate(read.columns) if column.sure]
    ends = [member.first for member in template.members[1:]] + [len(read.columns)]
    return tuple(
        member
        for member, end in zip(template.members, ends, strict=False)
        if any(member.first <= index < end for index in used)
    )


def _named(column: LearnedColumn) -> LearnedColumn:
    """The column with the name that people see: the counting of equal names is left out."""
    return replace(column, name=column.name.split(" #")[0].strip())


def _first_steps(steps: np.ndarray) -> tuple[int, int]:
    growth = np.diff(steps)
    return int(steps[0]), int(np.median(growth[growth > 0]))


def _is_evaluation(template: _Template, read: ReadColumns) -> bool:
    """Whether the lines begin with a word for evaluation, or have no loss but that of one."""
    gaps = template.first.gaps
    if is_evaluation(gaps[0]) or is_evaluation(gaps[read.counted.step]):
        return True
    return read.loss is None and any(
        is_evaluation(c.name) for c in read.columns if "loss" in c.meaning
    )


def _shown(template: _Template) -> str:
    """The template as people read it: names of columns in the place of numbers."""
    key, parts = template.first.key, []
    names = iter(template.names)
    for sign in key:
        if sign in "\x01\x02":
            name = next(names, "")
            parts.append("<" + (name.split(" #")[0].strip() or "number") + ">")
        else:
            parts.append(sign)
    return "".join(parts).strip()[:_MAX_SHOWN]


_MAX_SHOWN = 400


def _worth(known: _StepFormat) -> tuple[float, ...]:
    """Most lines first, then what is known of them."""
    read = known.read
    timed = read.seconds is not None or read.elapsed is not None or read.rate is not None
    steps = read.counted.unit == "steps"
    return (steps + (read.loss is not None) + timed, known.lines, len(read.columns))


def _is_alike(known: _StepFormat, best: _StepFormat) -> bool:
    """Whether lines count the same steps: with some columns more or fewer."""
    if known is best:
        return True
    same_unit = known.read.counted.unit == best.read.counted.unit
    return same_unit and known.step_name == best.step_name and known.prefix == best.prefix


class LearnedLines:
    """Events of lines in a learned format. Counters that start over with each epoch go on."""

    def __init__(self, learned: LearnedFormat) -> None:
        self._formats = [*learned.steps, *learned.evaluations]
        self._steps = learned.steps
        self._needles = [_needle(known.prefix) for known in self._formats]
        self._count = _Count(gap=learned.steps[0].first_steps[1])
        self._record = _Record()

    def event(self, text: str) -> Event | None:
        formats = [
            known
            for known, needle in zip(self._formats, self._needles, strict=True)
            if needle in text
        ]
        if not formats and not self._record.open:
            return None
        parts = split_line(text)
        if parts is None:
            return None
        for known in formats:
            if parts.key.startswith(known.prefix) and (event := self._event(known, parts)):
                return event
        return self._continued(parts)

    def _event(self, known: _StepFormat, parts: SplitLine) -> Event | None:
        if known.members:
            self._record = _Record(known=known, lines=[parts])
            return None
        return self._step(known, _Values(known, parts))

    def _continued(self, parts: SplitLine) -> Event | None:
        """The step of a record, when its last line has come."""
        known = self._record.known
        if known is None or not self._record.take(parts):
            return None
        values = _Values(known, _chained(self._record.lines), self._record.names())
        self._record = _Record()
        return self._step(known, values)

    def _step(self, known: _StepFormat, values: _Values) -> Event | None:
        step = values.at(known.read.counted.step)
        if step is None or not 0 <= step < _MAX_STEP:
            return None
        if known.evaluation or known not in self._steps:
            return values.score(int(step))
        if known.bar and not step:  # a bar as it is first drawn
            return None
        return values.step_line(self._count, int(step))


@dataclass(slots=True)
class _Record:
    """The lines so far of a step that is told in several."""

    known: _StepFormat | None = None
    lines: list[SplitLine] = field(default_factory=list)

    @property
    def open(self) -> bool:
        return self.known is not None

    def take(self, parts: SplitLine) -> bool:
        """Add a line that belongs here; returns whether it was the last."""
        assert self.known is not None
        members = self.known.members
        index = len(self.lines) - 1
        if parts.key == members[index].key:
            self.lines.append(parts)
        return len(self.lines) > len(members)

    def names(self) -> list[str]:
        """The names of the columns, line by line."""
        assert self.known is not None
        starts = [0, *(member.first for member in self.known.members)]
        return [
            name
            for line, start in zip(self.lines, starts, strict=True)
            for name in self.known.names[start : start + len(line.slots)]
        ]


def _needle(prefix: str) -> str:
    """The longest piece of text in a prefix that has no slot and no space: cheap to look for."""
    for mark in "\x01\x02@~":
        prefix = prefix.replace(mark, " ")
    return max(prefix.split(" "), key=len)


@dataclass(slots=True)
class _Count:
    """Steps counted over epochs, for counters that start over."""

    base: int = 0
    last: int = -1
    first_epoch: float | None = None
    last_epoch: float | None = None
    per_epoch: int = 0
    folded: bool = False
    gap: int = 1

    def over_epochs(self, step: int, total: int | None, epoch: float | None) -> int:
        """The step since the first epoch."""
        if epoch is not None:
            return self._by_epoch(step, total, epoch)
        if step < self.last and total and self.last + self.gap > total:
            self.base += total
        elif step > self.last >= 0:
            self.gap = step - self.last
        self.last = step
        return self.base + step

    def _by_epoch(self, step: int, total: int | None, epoch: float) -> int:
        if self.first_epoch is None:
            self.first_epoch = epoch
        if self.last_epoch is not None and epoch > self.last_epoch and step <= self.last:
            if not self.folded:
                self.per_epoch = total or (self.last + self.gap - (self.last % self.gap))
            self.folded = True
        elif step > self.last >= 0:
            self.gap = step - self.last
        self.last, self.last_epoch = step, epoch
        per_epoch = (total or self.per_epoch) if self.folded else 0
        return int((epoch - self.first_epoch) * per_epoch) + step


class _Values:
    """The values of a line by the columns of its format."""

    def __init__(
        self, known: _StepFormat, parts: SplitLine, names: Sequence[str] | None = None
    ) -> None:
        self._known = known
        self._parts = parts
        same = len(parts.slots) == len(known.names)
        if names is None:
            names = known.names if known.headed or same else slot_names(parts)
        self._index = {name: index for index, name in enumerate(names)}

    def at(self, column: int | None) -> float | None:
        if column is None:
            return None
        index = self._index.get(self._known.names[column])
        if index is None or index >= len(self._parts.slots):
            return None
        value = self._parts.slots[index].value
        return None if math.isnan(value) and self._parts.slots[index].kind == "missing" else value

    def finite(self, column: int | None) -> float | None:
        value = self.at(column)
        return value if value is not None and math.isfinite(value) else None

    def score(self, step: int) -> Evaluation | None:
        columns = self._known.read.columns
        chosen = [
            index
            for index, column in enumerate(columns)
            if "loss" in column.meaning and (is_evaluation(column.name) or column.meaning == "loss")
        ]
        loss = self.at(
            max(chosen, key=lambda index: is_evaluation(columns[index].name), default=None)
        )
        return None if loss is None else Evaluation(phase="end", iteration=step, loss=loss)

    def step_line(self, count: _Count, step: int) -> StepLine:
        read = self._known.read
        counted = read.counted
        total = self.finite(counted.total)
        whole = int(total) if total is not None and total < _MAX_STEP else None
        iteration = count.over_epochs(step, whole, self.finite(counted.epoch))
        folded = counted.epoch is not None or iteration != step
        mfu = self.finite(read.mfu)
        return StepLine(
            iteration=iteration,
            total=None if folded else whole,
            seconds=self._seconds(count),
            elapsed=self._elapsed(step) if read.seconds is None else None,
            loss=self.at(read.loss),
            tokens_per_second=self.finite(read.tokens),
            gpu_tokens_per_second=self.finite(read.gpu_tokens),
            gpu_tflops=self.finite(read.tflops),
            mfu=None if mfu is None else mfu / 100 if self._percent(read.mfu) else mfu,
            unit=counted.unit,
            bar=f"learned of {whole}" if self._known.bar else "",
            from_one=whole is not None,
        )

    def _elapsed(self, step: int) -> float | None:
        elapsed, rate = self.finite(self._known.read.elapsed), self.finite(self._known.read.rate)
        whole = elapsed is not None and elapsed == int(elapsed) and self._known.bar
        return within_second(elapsed, step, rate) if elapsed is not None and whole else elapsed

    def _percent(self, column: int | None) -> bool:
        return column is not None and self._known.read.columns[column].unit == "%"

    def _seconds(self, count: _Count) -> float | None:
        """Seconds of one step, where the line states them."""
        read = self._known.read
        seconds = self.finite(read.seconds)
        if seconds is not None:
            return seconds * read.seconds_scale / (count.gap if read.per_line else 1)
        rate = self.finite(read.rate)
        timed = read.elapsed is not None
        return 1 / rate if rate and not timed else None
