"""From sightings to findings: what lasts is opened once, kept up to date, and closed when it is gone.

Something that lasts is opened when all windows of one level show it, from one to the next that has no
step in common with it; a rank that is late beyond chance at once. A pause is opened when it was seen to
come again. Hangs and silent ranks are opened when they are seen for more than a second, restarts at
once. A finding is closed when windows in a row of its level do not show it, nor half as much of it as
there was at first.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from computeflow.collection.online.live_values import LiveFinding, finding_key, open_finding
from computeflow.collection.online.looks import (
    LASTING,
    LASTING_RULES,
    LEVELS,
    PAUSING,
    RARE,
    STOPPED,
    SUSPECTED,
    Judged,
    Sighting,
    kind_of,
    lateness,
    strength,
)
from computeflow.errors import InputError
from computeflow.units import HOUR_SECONDS

_REMAINS = 0.5
"""Share of what a finding was at first that keeps it open where its rule no longer names it."""
_GROWTH = "regression"
_SLOW = "straggler-rank"
_WINDOWS = 200
"""Windows by which it is known how late ranks are in a run."""
_FEW_WINDOWS, _LONGER = 8, 3.0
"""With fewer windows, what lasts must last so many windows."""
_UNUSUAL = 1.25
"""Times the latest rank of these windows that a slow rank is late."""
_YOUNG_SECONDS, _MUCH = 40.0, 2.5
"""The same where windows of less time are known: half a minute of two noisy ranks has shown 2.2."""
_GROWTH_SECONDS = 60.0
"""Least time in which steps grow: a run that has just begun finds its pace."""
_GONE = 2.0
"""Windows without a sighting after which a finding is closed."""
_RARE_SECONDS = 60.0
_SURE_SECONDS = 1.5
"""How long a hang or a silent rank is seen before it is told: what others wrote may be on its way."""
_EXPIRES_SECONDS = 900.0
"""Seconds after which a finding of a run that nothing is heard of is closed."""
_NO_PAUSE = 3.0
"""Times the usual distance of pauses without one after which they are over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a tick changed."""

    opened: tuple[LiveFinding, ...] = ()
    updated: tuple[LiveFinding, ...] = ()
    closed: tuple[LiveFinding, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.opened or self.updated or self.closed)


@dataclass(slots=True)
class _Open:
    finding: LiveFinding
    kind: str
    level: float
    shown_until: float
    """End of the last window that showed it, Unix seconds of the run's clock."""
    strength: float = 0.0
    """How much of it there was when it was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Windows in a row that show the same."""

    first: Sighting
    last: Sighting


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a share of a run costs."""

    world: int
    usd_per_gpu_hour: float | None

    def usd_per_hour(self, share: float) -> float | None:
        if self.usd_per_gpu_hour is None:
            return None
        return share * self.world * self.usd_per_gpu_hour


class FindingBook:
    """Findings of one run, open and lately closed."""

    def __init__(self, run: str, findings: Sequence[LiveFinding] = ()) -> None:
        self._run = run
        self._open = [
            _Open(finding=each, kind=kind_of(each.rule), level=LEVELS[0], shown_until=each.seen)
            for each in findings
            if each.is_open
        ]
        self._told = [each for each in findings if not each.is_open]
        self._rows: dict[float, list[_Row]] = {}
        """By level: windows in a row that show the same."""
        self._usual: defaultdict[float, deque[tuple[float, float]]] = defaultdict(
            lambda: deque(maxlen=_WINDOWS)
        )
        """By level: ends of windows, and how late the latest rank was in each."""
        self._stopped: dict[tuple[str, frozenset[int]], float] = {}
        self._over: dict[str, float] = {}
        """Until when closed findings of a rule were shown: windows that begin before open none."""

    def findings(self) -> list[LiveFinding]:
        return [each.finding for each in self._open]

    def update(
        self, judged: Sequence[Judged], nodes: dict[int, str], costs: Costs, now: float
    ) -> Changes:
        """Take what windows showed; `nodes` has the node of each rank."""
        opened: list[LiveFinding] = []
        updated: dict[str, LiveFinding] = {}
        self._note_stopped(judged, now)
        self._follow_rows(judged)
        for window in judged:
            for sighting in window.sightings:
                known = self._known(sighting)
                if known is not None:
                    if self._show(known, sighting, nodes, costs, now):
                        updated[known.finding.key] = known.finding
                elif self._lasts(sighting, window, now):
                    opened.append(self._opened(sighting, window, nodes, costs, now))
        self._note_usual(judged)
        closed = [each for window in judged for each in self._gone(window, now)]
        shut = {each.key for each in closed}
        return Changes(
            opened=tuple(opened),
            updated=tuple(each for key, each in updated.items() if key not in shut),
            closed=tuple(closed),
        )

    def _known(self, sighting: Sighting) -> _Open | None:
        """The open finding that a sighting is of: the same rule on some of its ranks, or on all."""
        found = (e for e in self._open if _is_of(e.finding.rule, e.finding.ranks, sighting))
        return next(found, None)

    def _note_stopped(self, judged: Sequence[Judged], now: float) -> None:
        """Note since when each hang and each silent rank is seen."""
        for window in judged:
            if window.kind == STOPPED:
                seen = {_of(each) for each in window.sightings}
                self._stopped = {key: self._stopped.get(key, now) for key in seen}

    def _was_told(self, sighting: Sighting) -> bool:
        """Whether a finding on it was closed before a restart: the journal is read again."""
        return any(
            each.closed is not None
            and sighting.begin < each.closed
            and _is_of(each.rule, each.ranks, sighting)
            for each in self._told
        )

    def _lasts(self, sighting: Sighting, window: Judged, now: float) -> bool:
        if self._was_told(sighting):
            return False
        if sighting.kind == STOPPED:
            return now - self._stopped[_of(sighting)] >= _SURE_SECONDS
        if sighting.finding.rule == _GROWTH:
            return self._is_unexplained(sighting)
        if sighting.kind != LASTING:
            return True
        begun_after = self._over.get(sighting.finding.rule, 0.0)
        if sighting.begin < begun_after:
            return False
        row = self._row(sighting)
        if row is None or row.first.end > sighting.begin + 1e-6:
            return False
        return sighting.finding.rule != _SLOW or self._is_unusual(sighting, window, row)

    def _is_unusual(self, sighting: Sighting, window: Judged, row: _Row) -> bool:
        """Whether a rank is later than any was in this run before; a young run must show it longer,
        or more of it.
        """
        begin = row.first.begin
        before = [(end, late) for end, late in self._usual[sighting.level] if end <= begin]
        lasts = sighting.begin - begin >= _LONGER * (sighting.end - sighting.begin)
        if len(before) < _FEW_WINDOWS:
            return lasts
        is_young = before[-1][0] - before[0][0] < _YOUNG_SECONDS and not lasts
        late = 0.0 if window.report is None else lateness(window.report)
        return late >= (_MUCH if is_young else _UNUSUAL) * max(late for _, late in before)

    def _note_usual(self, judged: Sequence[Judged]) -> None:
        """Note how late ranks are while nothing makes any of them late."""
        if any(each.kind == LASTING for each in self._open):
            return
        over = max((self._over.get(rule, 0.0) for rule in LASTING_RULES), default=0.0)
        for window in judged:
            if window.kind == LASTING and window.report is not None and window.begin >= over:
                self._usual[window.level].append((window.end, lateness(window.report)))

    def _forget_usual(self, onset: float) -> None:
        """Forget how late ranks were since the onset of a finding: that was not usual."""
        for level, windows in self._usual.items():
            kept = [window for window in windows if window[0] <= onset]
            self._usual[level] = deque(kept, maxlen=_WINDOWS)

    def _row(self, sighting: Sighting) -> _Row | None:
        rows = self._rows.get(sighting.level, [])
        return next((row for row in rows if _is_same(row.last, sighting)), None)

    def _follow_rows(self, judged: Sequence[Judged]) -> None:
        """A window that does not show the same ends its row."""
        for window in judged:
            if window.kind == LASTING:
                self._rows[window.level] = [
                    _Row(first=each if (row := self._row(each)) is None else row.first, last=each)
                    for each in window.sightings
                ]

    def _is_unexplained(self, sighting: Sighting) -> bool:
        """Whether steps grew while nothing else was found: a slow rank makes steps longer, too."""
        if sighting.end - sighting.begin < _GROWTH_SECONDS:
            return False
        early = sighting.begin + (sighting.end - sighting.begin) / 3
        others = [each.shown_until for each in self._open if each.finding.rule != _GROWTH]
        return max([*others, *self._over.values()], default=0.0) < early

    def _opened(
        self,
        sighting: Sighting,
        window: Judged,
        nodes: dict[int, str],
        costs: Costs,
        now: float,
    ) -> LiveFinding:
        finding = sighting.finding
        row = self._row(sighting)
        onset = sighting.begin if row is None else min(row.first.begin, sighting.begin)
        made = open_finding(
            finding,
            finding_key(self._run, finding.rule, finding.account, finding.ranks, onset),
            self._run,
            ranks=finding.ranks,
            share=sighting.share,
            onset=onset,
            now=now,
        )
        opened = _Open(
            finding=made,
            kind=LASTING if sighting.kind == SUSPECTED else sighting.kind,
            level=sighting.level,
            shown_until=sighting.end,
            strength=strength(finding.rule, finding.ranks, window.report) if window.report else 0.0,
        )
        self._open.append(opened)
        if opened.kind == LASTING:
            self._forget_usual(onset)
        self._show(opened, sighting, nodes, costs, now)
        return opened.finding

    def _show(
        self, known: _Open, sighting: Sighting, nodes: dict[int, str], costs: Costs, now: float
    ) -> bool:
        """Bring an open finding up to date; larger windows than its own do not."""
        if sighting.level > known.level and known.kind == LASTING:
            return False
        known.shown_until = max(known.shown_until, sighting.end)
        old, seen = known.finding, sighting.finding
        lasted = max(sighting.end - old.onset, 0.0)
        rate = costs.usd_per_hour(sighting.share)
        gpu_seconds = sighting.share * costs.world * lasted
        known.finding = replace(
            old,
            title=seen.title,
            ranks=seen.ranks,
            nodes=tuple(sorted({nodes[rank] for rank in seen.ranks if rank in nodes})),
            share=sighting.share,
            gpu_seconds=gpu_seconds,
            usd_per_hour=rate,
            usd=None if rate is None else rate * lasted / HOUR_SECONDS,
            evidence=seen.evidence,
            remedy=seen.remedy,
            seen=now,
        )
        return True

    def _gone(self, window: Judged, now: float) -> list[LiveFinding]:
        """Close what this window should show and does not."""
        shown = {id(known) for each in window.sightings if (known := self._known(each)) is not None}
        closed = []
        for each in list(self._open):
            if id(each) in shown or each.finding.rule not in window.rules:
                continue
            if self._remains(each, window):
                each.shown_until = max(each.shown_until, window.end)
            elif self._is_gone(each, window):
                closed.append(self._close(each, now, "no longer seen"))
        return closed

    def _remains(self, each: _Open, window: Judged) -> bool:
        """Whether half of what lasts is still there, though its rule does not name it here."""
        if each.kind != LASTING or window.level != each.level or window.report is None:
            return False
        found = strength(each.finding.rule, each.finding.ranks, window.report)
        return each.strength > 0 and found >= _REMAINS * each.strength

    def _is_gone(self, each: _Open, window: Judged) -> bool:
        if each.kind != window.kind:
            return False
        if each.kind == LASTING:
            length = window.end - window.begin
            return window.level == each.level and window.end - each.shown_until >= _GONE * length
        return each.kind != RARE or window.end - each.shown_until >= _RARE_SECONDS

    def _close(self, each: _Open, now: float, why: str) -> LiveFinding:
        self._open.remove(each)
        rule = each.finding.rule
        self._over[rule] = max(each.shown_until, self._over.get(rule, 0.0))
        return replace(each.finding, closed=now, why_closed=why)

    def close_pauses(self, edge: float, now: float) -> tuple[LiveFinding, ...]:
        """Close findings on pauses that no longer come."""
        over = [
            each
            for each in self._open
            if each.kind == PAUSING and edge - each.shown_until > _NO_PAUSE * max(each.level, 1.0)
        ]
        return tuple(self._close(each, now, "it did not happen again") for each in over)

    def close_all(self, now: float, why: str) -> tuple[LiveFinding, ...]:
        return tuple(self._close(each, now, why) for each in list(self._open))

    def expire(self, heard: float, now: float) -> tuple[LiveFinding, ...]:
        """Close findings of a run that nothing is heard of."""
        if now - heard < _EXPIRES_SECONDS:
            return ()
        return self.close_all(now, "expired: nothing is heard of the run")

    def silence(self, key: str, until: float) -> LiveFinding:
        for each in self._open:
            if each.finding.key == key:
                each.finding = replace(each.finding, silenced_until=until)
                return each.finding
        raise InputError(f"finding '{key}': none is open under this key")

    def has(self, key: str) -> bool:
        return any(each.finding.key == key for each in self._open)


def _of(sighting: Sighting) -> tuple[str, frozenset[int]]:
    return sighting.finding.rule, frozenset(sighting.finding.ranks)


def _is_same(one: Sighting, other: Sighting) -> bool:
    return _is_of(one.finding.rule, one.finding.ranks, other)


def _is_of(rule: str, ranks: Iterable[int], sighting: Sighting) -> bool:
    """Whether a sighting is of the same thing: the same rule on some of the same ranks, or on all."""
    mine, theirs = set(ranks), set(sighting.finding.ranks)
    return rule == sighting.finding.rule and bool(mine & theirs or not mine or not theirs)
