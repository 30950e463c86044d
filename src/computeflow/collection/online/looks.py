"""A look at a run that goes on: the rule book over windows of its last steps.

A window is judged as `audit` judges a whole run folder, by the same rules; which rules, depends on the
window (`docs/online.md`):

- stalls and slow ranks in windows of 2, 10 and 60 seconds: what lasts shows in one after the other;
- checkpoints and evaluations from the end of one to the end of another, so that a pause is weighed
  against the time between two;
- what is rare or slow (growth of steps, restarts, memory) over all that is remembered;
- hangs and ranks that fell silent by the heart beats since the last step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from computeflow.collection.online.cohorts import LEAST_SECONDS
from computeflow.collection.online.rank_memory import RankMemory, RunMemory
from computeflow.collection.online.run_totals import EVERY_SECONDS, RunTotals
from computeflow.diagnosis import diagnose_source
from computeflow.ledger import Finding, Ledger
from computeflow.telemetry.run_folders.attempt_time import AttemptTime
from computeflow.telemetry.run_folders.phases import CHECKPOINT, EVALUATION, PARTS
from computeflow.telemetry.run_folders.rank_file import RankFile
from computeflow.telemetry.run_folders.run_facts import RecordedRun
from computeflow.telemetry.run_folders.run_folder_source import measure_run, report_run
from computeflow.telemetry.run_folders.run_summary import RunDescription
from computeflow.telemetry.source_reports import SourceReport, SourceRequest

LEVELS = (2.0, 10.0, 60.0)
"""Seconds of the windows in which something that lasts is looked for."""
MIN_STEPS = 7
"""Fewest steps of a window: the first one only begins it."""
LASTING_RULES = frozenset({"input-stall", "host-stall", "straggler-rank", "imbalance", "gc-pause"})
_STALLING = {"input-stall": "input", "host-stall": "host", "gc-pause": "gc"}
"""Rules on what a rank does longer than it should, by the part of a step."""
_COMPUTING = ("forward", "backward", "optimizer")
_MOSTLY = 0.5
"""Median over mean of a stall from which on it is in most steps."""
_LEAST_IRREGULAR = 0.05
"""Least share of a stall that is in some steps alone."""
_PAUSING = {"checkpoint-stall": CHECKPOINT, "evaluation": EVALUATION}
_RARE = frozenset({"regression", "restarts", "memory-pressure", "checkpoint-interval"})
_STOPPED = frozenset({"hang", "silent-rank"})
_LONG_EVERY_SECONDS = 15.0
_BEFORE_STEPS = 1.5
"""A window that is booked begins so many steps before: its first step only begins it."""
_PERIODS = 3
"""Pauses that a window for them reaches back over."""
_TAIL_SECONDS = 10.0
_PATIENCE_SECONDS = 2.5
LASTING, PAUSING, RARE, STOPPED = "lasting", "pausing", "rare", "stopped"
SUSPECTED = "suspected"
"""The last steps of ranks that are late beyond chance."""


def kind_of(rule: str) -> str:
    """The kind of windows that a rule is judged in."""
    if rule in _PAUSING:
        return PAUSING
    return LASTING if rule in LASTING_RULES else RARE if rule in _RARE else STOPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A finding in one window."""

    finding: Finding
    kind: str
    level: float
    """Seconds of the window's level; 0 where windows have none."""
    begin: float
    """Unix seconds."""
    end: float
    share: float
    """Share of the GPU-seconds in which the run trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A window that was judged, with or without findings."""

    kind: str
    level: float
    rules: frozenset[str]
    begin: float
    end: float
    sightings: tuple[Sighting, ...]
    report: SourceReport | None = None


class RunLooks:
    """Looks at one run, each window no more often than it can change."""

    def __init__(self, request: SourceRequest) -> None:
        self._request = request
        self.totals = RunTotals()
        self._done: dict[float, float] = {}
        """End of the last window of each level."""
        self._pauses: dict[str, float] = {}
        self._long = 0.0
        self._suspected_until = 0.0
        self._was_stopped = True
        """Whether the last look showed, or may have shown, a run that does not go on."""

    def look(
        self,
        memory: RunMemory,
        ranks: Sequence[RankMemory],
        suspects: Mapping[int, int],
        now: float,
    ) -> list[Judged]:
        """Judge the windows that are due; `ranks` are those to compare with each other, `suspects`
        those that are late beyond chance, with the steps that show it.
        """
        begun = [rank for rank in ranks if rank.first_end]
        judged: list[Judged] = []
        edge = _edge(begun, now)
        if edge is not None and begun:
            step = step_seconds(begun)
            due = 0.0 if stopped_seconds(begun, step) else EVERY_SECONDS
            if edge - self.totals.until > due:
                self._book(memory, begun, edge)
            judged += self._suspected(memory, begun, suspects)
            for level in LEVELS:
                judged += self._level(memory, begun, level, edge, step)
            judged += self._paused(memory, begun, edge)
            judged += self._rare(memory, edge)
        judged += self._stopped(memory, ranks, now)
        return judged

    def end(self, memory: RunMemory, ranks: Sequence[RankMemory]) -> None:
        """Book what is left of a run that has ended."""
        begun = [rank for rank in ranks if rank.first_end]
        if begun:
            self._book(memory, begun, max(rank.last for rank in begun) / 1e6, ended=True)

    def _book(
        self, memory: RunMemory, ranks: Sequence[RankMemory], edge: float, *, ended: bool = False
    ) -> None:
        began = min(rank.start.epoch + rank.start.began for rank in ranks) / 1e6
        warm = max(rank.first_end for rank in ranks) / 1e6
        totals = self.totals
        totals.begin_attempt(memory.attempt, memory.world, began, warm)
        begin = totals.until - _BEFORE_STEPS * step_seconds(ranks)
        begin = min(begin, *(rank.steps[max(len(rank.steps) - 2, 0)][0] / 1e6 for rank in ranks))
        files = _files(ranks, begin, edge)
        ledger, before = self._ledger(files), None
        if ended and ledger is not None:
            before = self._ledger(_files(ranks, begin, totals.until))
            edge = min(edge, ledger.window.end_seconds or edge)  # processes may take long to end
        totals.take(files, ledger, memory.world, edge, before)

    def _ledger(self, files: Sequence[RankFile]) -> Ledger | None:
        about = RunDescription(folder="", more={})
        return report_run(measure_run(files, []), about, self._request).ledger

    def _suspected(
        self,
        memory: RunMemory,
        ranks: Sequence[RankMemory],
        suspects: Mapping[int, int],
    ) -> list[Judged]:
        """Judge the steps in which suspects were late. So few steps show other ranks late by chance:
        those are left out, and the rest is judged again.
        """
        mine = [rank for rank in ranks if rank.start.rank in suspects]
        if not mine:
            return []
        edge = min(rank.known_end for rank in mine) / 1e6
        if edge == self._suspected_until:
            return []
        self._suspected_until = edge
        ranks = [rank for rank in ranks if rank.known_end >= edge * 1e6 - 1]
        steps = max(suspects.values()) + 1
        begin = min(rank.steps[max(len(rank.steps) - steps, 0)][0] for rank in ranks) / 1e6
        begin = min(begin, edge - LEAST_SECONDS)
        for _ in range(2):
            judged = self._judge(
                memory,
                _files(ranks, begin + 1e-6, edge),
                SUSPECTED,
                frozenset({"straggler-rank"}),
                begin,
                edge,
                LEVELS[0],
            )
            named = {rank for each in judged.sightings for rank in each.finding.ranks}
            if named <= suspects.keys():
                return [judged] if _by_computing(named, judged.report) else []
            chance = named - suspects.keys()
            ranks = [rank for rank in ranks if rank.start.rank not in chance]
        return []

    def _level(
        self,
        memory: RunMemory,
        ranks: Sequence[RankMemory],
        level: float,
        edge: float,
        step: float,
    ) -> list[Judged]:
        """Judge the last window; and the one before it, where steps of more than one came at once."""
        length = max(level, (MIN_STEPS + 0.5) * step)
        done = self._done.get(level, 0.0)
        if edge - done < length / 3:
            return []
        oldest = min(rank.first_end for rank in ranks) / 1e6
        ends = [edge - length] if edge - done >= 4 / 3 * length else []
        judged = []
        for end in [*ends, edge]:
            begin = end - length
            if begin >= oldest:
                files = _files(ranks, begin, end)
                judged.append(self._judge(memory, files, LASTING, LASTING_RULES, begin, end, level))
                self._done[level] = end
        return judged

    def _paused(self, memory: RunMemory, ranks: Sequence[RankMemory], edge: float) -> list[Judged]:
        judged = []
        kept = [rank for rank in ranks if rank.long]
        for rule, kind in _PAUSING.items():
            ends = [end for end in _pause_ends(kept, kind) if end <= edge]
            if len(ends) < 2 or ends[-1] == self._pauses.get(rule):
                continue
            self._pauses[rule] = ends[-1]
            first = max(len(ends) - 1 - _PERIODS, 0)
            while first > 0 and ends[-1] - ends[first] < LEVELS[0]:
                first -= 1
            begin = ends[first]
            files = _files(kept, begin - 1e-6, ends[-1])
            judged.append(
                self._judge(
                    memory, files, PAUSING, frozenset({rule}), begin, ends[-1], ends[-1] - begin
                )
            )
        return judged

    def _rare(self, memory: RunMemory, edge: float) -> list[Judged]:
        if edge - self._long < _LONG_EVERY_SECONDS:
            return []
        self._long = edge
        kept = [rank for rank in memory.ranks.values() if rank.long and rank.first_end]
        begin = min((rank.first_end for rank in kept), default=0) / 1e6
        if not kept or begin >= edge:
            return []
        return [self._judge(memory, _files(kept, 0.0, edge), RARE, _RARE, begin, edge, 0.0)]

    def _stopped(self, memory: RunMemory, ranks: Sequence[RankMemory], now: float) -> list[Judged]:
        """Judge what happened since the last step: heart beats, and who has none."""
        usual = step_seconds(ranks)
        stepped = max((rank.step_end for rank in ranks), default=0) / 1e6
        if not stepped or not (self._was_stopped or _seems_stopped(ranks, usual)):
            return []
        last = max(rank.last for rank in ranks) / 1e6
        files = _files(ranks, stepped - max(_TAIL_SECONDS, 20 * usual), max(last, now))
        judged = self._judge(memory, files, STOPPED, _STOPPED, stepped, last, 0.0)
        self._was_stopped = bool(judged.sightings) or _seems_stopped(ranks, usual)
        return [judged]

    def _judge(
        self,
        memory: RunMemory,
        files: Sequence[RankFile],
        kind: str,
        rules: frozenset[str],
        begin: float,
        end: float,
        level: float,
    ) -> Judged:
        about = RunDescription(
            folder="",
            name=str(memory.about.get("name", "")),
            more={"expected": memory.about.get("expected")},
        )
        attempts = measure_run(files, [])
        report = report_run(attempts, about, self._request)
        findings = [each for each in diagnose_source(report).findings if each.rule in rules]
        if kind == LASTING:
            findings = [
                each for each in findings if _lasts(each, attempts[-1], report.ledger, level)
            ]
        return Judged(
            kind=kind,
            level=level,
            rules=rules,
            begin=begin,
            end=end,
            report=report,
            sightings=tuple(
                Sighting(
                    finding=finding,
                    kind=kind,
                    level=level,
                    begin=begin,
                    end=end,
                    share=share_of(finding, report.ledger),
                )
                for finding in findings
            ),
        )


def _seems_stopped(ranks: Sequence[RankMemory], usual: float) -> bool:
    """Whether a step takes much longer than usual, or a rank says nothing while others do."""
    last = max(rank.last for rank in ranks)
    patience = _patience(usual) * 1e6
    quiet = stopped_seconds(ranks, usual) > 0
    behind = any(rank.ended is None and last - rank.last > patience for rank in ranks)
    some_ended = len({rank.ended is None for rank in ranks}) > 1
    return quiet or behind or some_ended or any(rank.alive is False for rank in ranks)


def stopped_seconds(ranks: Sequence[RankMemory], usual: float) -> float:
    """Seconds from the last step to the last record; 0 where a step may well take so long."""
    last, stepped = max(rank.last for rank in ranks), max(rank.step_end for rank in ranks)
    seconds = (last - stepped) / 1e6
    return seconds if seconds > _patience(usual) else 0.0


def _patience(usual: float) -> float:
    return max(_PATIENCE_SECONDS, 5 * usual)


def _lasts(finding: Finding, attempt: AttemptTime, ledger: Ledger | None, level: float) -> bool:
    """Whether a stall is in most steps; what is not must cost more, and shows in long windows only."""
    part = _STALLING.get(finding.rule)
    if part is None:
        return True
    column = PARTS.index(part)
    stalled = [
        rank.parts[1:, column]
        for rank in attempt.ranks
        if not finding.ranks or rank.rank in finding.ranks
    ]
    micros = np.concatenate(stalled) if stalled else np.zeros(0)
    if len(micros) and np.median(micros) >= _MOSTLY * micros.mean():
        return True
    return level == LEVELS[-1] and share_of(finding, ledger) >= _LEAST_IRREGULAR


def _by_computing(ranks: set[int], report: SourceReport | None) -> bool:
    """Whether ranks are late by what they compute, and not by waiting for data or by their host."""
    if report is None:
        return False
    facts: RecordedRun = report.facts
    late = [each.excess for each in facts.per_rank if each.rank in ranks and each.excess]
    computing = sum(each.by_part.get(part, 0.0) for each in late for part in _COMPUTING)
    return computing >= _MOSTLY * sum(each.mean_seconds for each in late)


def lateness(report: SourceReport) -> float:
    """How much longer than others the latest rank of a window worked, as a share of the step."""
    facts: RecordedRun = report.facts
    late = [each.excess.seconds for each in facts.per_rank if each.excess is not None]
    return max(late) / facts.step_seconds if late and facts.step_seconds else 0.0


def strength(rule: str, ranks: Sequence[int], report: SourceReport) -> float:
    """How much of a finding there is in a window, as a share of the time, whatever the rule says."""
    facts: RecordedRun = report.facts
    if rule == "straggler-rank":
        late = [
            each.excess.seconds for each in facts.per_rank if each.rank in ranks and each.excess
        ]
        return max(sum(late) / facts.step_seconds, 0.0) if facts.step_seconds else 0.0
    ledger = report.ledger
    if ledger is None:
        return 0.0
    trained = ledger.gpu_seconds - ledger.booked("startup")
    if rule == "imbalance":
        return ledger.booked("imbalance") / trained if trained > 0 else 0.0
    part = _STALLING.get(rule, "")
    own = facts.collections.seconds if part == "gc" else ledger.booked(part) if part else 0.0
    waits = sum(each.waited_for.get(part, 0.0) for each in facts.per_rank)
    return (own + waits) / trained if trained > 0 else 0.0


def share_of(finding: Finding, ledger: Ledger | None) -> float:
    """The finding's share of the GPU-seconds in which the run trained."""
    if ledger is None:
        return 1.0 if finding.account == "idle" else 0.0
    beside = sum(ledger.booked(name) for name in ("startup", "restart", "lost"))
    trained = ledger.gpu_seconds - beside
    return min(finding.gpu_seconds / trained, 1.0) if trained > 0 else 0.0


def _files(ranks: Sequence[RankMemory], begin: float, end: float) -> list[RankFile]:
    return [rank.window(round(begin * 1e6), round(end * 1e6)) for rank in ranks]


def _edge(ranks: Sequence[RankMemory], now: float) -> float | None:
    """The moment up to which steps and arrivals of all ranks are known, Unix seconds."""
    return min(min(rank.known_end for rank in ranks) / 1e6, now) if ranks else None


def step_seconds(ranks: Sequence[RankMemory]) -> float:
    """The usual step of the last ones."""
    micros = [end - begin for rank in ranks for begin, end in rank.steps]
    return float(np.median(micros)) / 1e6 if micros else 0.0


def _pause_ends(ranks: Sequence[RankMemory], kind: int) -> list[float]:
    """Ends of the steps in which any rank paused so, in order."""
    ends: dict[int, int] = {}
    for rank in ranks:
        for step, end in rank.pauses.get(kind, {}).items():
            ends[step] = max(ends.get(step, 0), end)
    return [end / 1e6 for _, end in sorted(ends.items())]
