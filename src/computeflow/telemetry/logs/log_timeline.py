"""Books every second between the first and the last time of a log, once.

The clock of a run goes forward only: it follows the times that lines carry, and between them the step
times that the log states. The time between two logged steps is divided as follows: the steps take what
they state (or all, where none is stated); checkpoints and evaluations take what is stated of them, or
what exceeds the usual step where nothing else can explain it; the rest is `unexplained`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from computeflow.telemetry.logs.timers import accounts_of

_STALL_TIMES = 4.0
"""Least excess of a stall over the usual step, in usual steps."""
_STALL_SECONDS = 10.0
"""Least excess of a stall over the usual step, in seconds."""
_WARM = 1.5
"""A first step longer than this many usual ones includes warm-up."""
_WINDOW = 64
_REFRESH = 8
"""Steps between two computations of a full window's median."""
_COARSE = 2.0
_DUST = 1e-5
"""Shorter times are not booked: differences of Unix times are no finer."""
_FEW = 3
_BACK = 600.0
"""A time this far back is from another clock (a zone, a new machine), not a late line."""


@dataclass(slots=True)
class _First:
    """The first logged interval of a launch, until usual ones are known to compare it with."""

    span: float
    steps: int | None
    seconds: float | None
    again: float
    begun: bool
    account: str
    by_steps: bool
    """Whether the span is a stated step time, not a difference of times."""


@dataclass(slots=True)
class LogTimeline:
    booked: dict[str, float] = field(default_factory=dict)
    offset: float | None = None
    """Unix time at which this clock read 0."""
    cursor: float = 0.0
    """The time up to which all is booked."""
    seen: float = 0.0
    """The latest time that a line carried."""
    phase: str = "startup"
    """The account of the time before the first step of a launch."""
    trained: float = 0.0
    """Steps whose time is booked, without those done before."""
    set_backs: int = 0
    left_out: float = 0.0
    settled: list[float] = field(default_factory=list)
    """Seconds that each launch took, in order, without launches that saw no step."""
    _gap: bool = False
    _begun: bool = False
    _first: _First | None = None
    _fresh: bool = True
    _items: dict[tuple[str, object], float | None] = field(default_factory=dict)
    _usual: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    _last: tuple[float, int, float] | None = None
    _timers: dict[str, float] = field(default_factory=dict)
    _known: tuple[float, float] = (0.0, 0.0)
    _age: int = 0
    _untimed: int = 0
    """Steps since the last one with a time; the next interval includes theirs."""
    _owed: float = 0.0
    """Stated step time that whole seconds of a coarse clock cut off; the next interval gets it."""
    overbooked: int = 0
    """Intervals whose timers exceed their step time."""

    def moment(self, unix: float) -> float:
        """A Unix time on this clock, which advances to it."""
        if self.offset is None:
            self.offset = unix - self.seen
        if self._gap:
            skipped = max(0.0, unix - self.offset - self.seen)
            self.left_out += skipped
            self.offset += skipped
            self._gap = False
        now = unix - self.offset
        if now < self.seen - _BACK:
            self.set_backs += 1
            self.offset = unix - self.seen
            now = self.seen
        self.seen = max(self.seen, now)
        return now

    def unix(self, moment: float) -> float | None:
        return None if self.offset is None else self.offset + moment

    def leave_gap(self, account: str) -> None:
        """Leave the time to the next line out; what is not booked yet goes to `account`."""
        self.flush()
        self._book(self.phase if self._fresh else account, self.seen - self.cursor)
        self.cursor = max(self.cursor, self.seen)
        self._gap = True

    def launch(self) -> None:
        """The program starts again: time up to its next step is booked as `restart`."""
        self.flush()
        self._settle()
        self.phase, self._fresh, self._begun = "restart", True, False
        self._items.clear()

    def begin(self) -> None:
        """The first step starts here: the time before is booked to the launch."""
        if self._fresh and not self._begun:
            self._book(self.phase, self.seen - self.cursor)
            self.settled.append(max(0.0, self.seen - self.cursor))
            self.cursor, self._begun = max(self.cursor, self.seen), True

    def explain(self, account: str, key: object, seconds: float | None) -> None:
        """Note a pause before the next step; `seconds` is None where its length is unknown."""
        if seconds is not None or (account, key) not in self._items:
            self._items[account, key] = seconds

    def timers(self, milliseconds: Mapping[str, float]) -> None:
        """Take the timers of one iteration of the last interval."""
        self._timers |= milliseconds

    def step(
        self, *, steps: int | None, seconds: float | None, moment: float | None, again: float
    ) -> tuple[float, float] | None:
        """Book up to `moment` (or by the stated `seconds`). Returns the seconds of a step and of an
        unexplained stall; None where there is no time at all.
        """
        self.flush()
        self._learn_first(steps)
        moment, by_steps = self._end_of(steps, seconds, moment)
        if moment is None:
            self._untimed += steps or 1
            return None
        self.trained += self._untimed * (1 - again)
        self._untimed = 0
        span = max(0.0, moment - self.cursor)
        self.cursor = max(self.cursor, moment)
        self.seen = max(self.seen, self.cursor)
        timed = None if seconds is None else (seconds, 0.0)
        if self._fresh:
            self._fresh = False
            self._first = _First(span, steps, seconds, again, self._begun, self.phase, by_steps)
        else:
            steps = max(1, steps or 1)
            busy, stalled = self._divide(span, steps, seconds)
            self._last = (busy, steps, again)
            self._usual.append(busy / steps)
            timed = (seconds if seconds is not None else busy / steps), stalled
        self._items.clear()
        if len(self._usual) >= _FEW:
            self._settle()
        return timed

    def _end_of(
        self, steps: int | None, seconds: float | None, moment: float | None
    ) -> tuple[float | None, bool]:
        """End of an interval, and whether it follows from the stated step time alone."""
        if moment is not None:
            return moment, False
        if seconds is None:
            passed = self.offset is not None and self.seen > self.cursor
            return (self.seen if passed else None), False
        paused = math.fsum(pause for pause in self._items.values() if pause)
        end = self.cursor + (steps or 1) * seconds + paused
        return max(end, self.seen), end > self.seen

    def _learn_first(self, steps: int | None) -> None:
        """The first interval of a log that starts in the middle has as many steps as the second."""
        first = self._first
        if first and first.steps is None and steps:
            first.steps = steps
            if first.by_steps and first.seconds:
                more = (steps - 1) * first.seconds
                first.span += more
                self.cursor += more
                self.seen = max(self.seen, self.cursor)

    def _divide(self, span: float, steps: int, seconds: float | None) -> tuple[float, float]:
        """The steps' own part of an interval, and the stall in it; the rest is booked."""
        busy = span
        if seconds is not None:
            stated = steps * seconds + self._owed
            busy = min(span, stated)
            self._owed = min(stated - busy, _COARSE)
        usual, spread = self._usual_step()
        usual_busy = steps * usual if len(self._usual) >= _FEW else math.inf
        # A stated step time may or may not include a pause: the excess over the usual tells.
        floor = 0.0 if seconds is None else usual_busy
        busy, rest = self._book_known(busy, span - busy, floor)
        excess = max(0.0, busy - usual_busy)
        vague = {account for (account, _), known in self._items.items() if known is None}
        if len(vague) == 1:
            limit = steps * max(0.02 * usual, 4.5 * spread)
            return busy - self._book_vague(vague.pop(), rest, excess, limit), 0.0
        stalled = 0.0
        if not self._items and _is_stall(excess, usual):
            self._book("unexplained", excess)
            busy, stalled = busy - excess, excess
        if not vague and _is_stall(rest, usual or busy / steps):
            stalled += rest
        self._book("unexplained", rest)
        return busy, stalled

    def _book_vague(self, account: str, rest: float, excess: float, limit: float) -> float:
        """Book the rest as a pause of unknown length, with the steps' time above usual where nothing
        else happened. Returns that part.
        """
        self._book(account, rest)
        alone = all(other == account for other, _ in self._items)
        part = excess if alone and excess > limit else 0.0
        self._book(account, part)
        return part

    def _book_known(self, busy: float, rest: float, floor: float) -> tuple[float, float]:
        """Book pauses of known length, first from the rest, then from the steps' time above `floor`."""
        for (account, _), known in self._items.items():
            if known:
                from_rest = min(known, rest)
                from_busy = min(known - from_rest, max(0.0, busy - floor))
                rest, busy = rest - from_rest, busy - from_busy
                self._book(account, from_rest + from_busy)
        return busy, rest

    def _usual_step(self) -> tuple[float, float]:
        if not self._usual:
            return 0.0, 0.0
        self._age = (self._age + 1) % _REFRESH
        if self._age == 1 or len(self._usual) < _WINDOW:
            usual = median(self._usual)
            self._known = usual, median(abs(value - usual) for value in self._usual)
        return self._known

    def _settle(self) -> None:
        """Book the first interval of a launch: what exceeds usual steps belongs to the launch."""
        first, self._first = self._first, None
        if first is None:
            return
        steps, each = first.steps or 1, self._seconds_of(first)
        busy = min(first.span, steps * each)
        if each:  # a log that starts in the middle has only the end of its first interval
            self.trained += busy / each * (1 - first.again)
        self._book("compute", busy * (1 - first.again))
        self._book("lost", busy * first.again)
        self._book(first.account, first.span - busy)
        if first.begun:
            self.settled[-1] += first.span - busy
        else:
            self.settled.append(first.span - busy)

    def _seconds_of(self, first: _First) -> float:
        """Seconds of a step of the first interval, without warm-up."""
        stated = first.seconds
        if self._usual:
            usual, _ = self._usual_step()
            return usual if stated is None or stated > _WARM * usual else stated
        if stated is None:
            return first.span / (first.steps or 1) if first.begun else 0.0
        return stated

    def flush(self) -> None:
        """Book the interval held back for the timers printed after it."""
        if self._last is None:
            self._timers = {}
            return
        busy, steps, again = self._last
        self.trained += steps * (1 - again)
        self._book("lost", busy * again)
        accounts = accounts_of(self._timers)
        new, timed = busy * (1 - again), math.fsum(accounts.values()) * steps
        if timed > busy * 1.01:
            self.overbooked += 1
        elif busy and timed:
            for account, seconds in accounts.items():
                self._book(account, seconds * steps * (new / busy) * min(1.0, busy / timed))
            new -= min(new, timed * new / busy)
        self._book("compute", new)
        self._last, self._timers = None, {}

    def finish(self, *, saving: bool, hung: float | None, starting: bool) -> None:
        """Book what comes after the last step: `saving` or `starting` if that was going on."""
        self.flush()
        self._settle()
        tail = self.seen - self.cursor
        self.cursor = max(self.cursor, self.seen)
        if self._fresh:
            launching = starting or self.phase == "restart"
            self._book(self.phase if launching else "unexplained", tail)
            return
        for (account, _), known in self._items.items():
            part = min(known or 0.0, tail)
            self._book(account, part)
            tail -= part
        if saving:
            self._book("checkpoint", tail)
            return
        idle = min(tail, hung or 0.0)
        self._book("idle", idle)
        self._book("unexplained", tail - idle)

    def spread(self, seconds: float, *, evaluation: float) -> None:
        """Book a run of which only the total time and that of evaluations are known."""
        self._book("compute", seconds - evaluation)
        self._book("evaluation", evaluation)
        self.cursor = self.seen = seconds

    def _book(self, account: str, seconds: float) -> None:
        if seconds > _DUST:
            self.booked[account] = self.booked.get(account, 0.0) + seconds


def _is_stall(excess: float, usual: float) -> bool:
    return excess > max(_STALL_SECONDS, _STALL_TIMES * usual)
