"""Findings on nodes and jobs that no window of steps shows: `StateFindings`.

A fault of a node, clocks that it slows, errors of its links, an agent that fell silent, a job that
holds GPUs and does nothing. What a finding of a run on the node explains already is its evidence, and
is not reported again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from computeflow.collection.online.live_values import LiveFinding, finding_key, open_finding
from computeflow.collection.online.looks import STOPPED, Judged
from computeflow.collection.online.node_watch import NodeWatch
from computeflow.collection.online.rank_memory import RankMemory, RunMemory
from computeflow.collection.online.tracking import Changes, Costs
from computeflow.collection.wire.batches import Batch
from computeflow.diagnosis import diagnose_source
from computeflow.diagnosis.rules.live_states import SILENT_SECONDS
from computeflow.ledger import Finding
from computeflow.telemetry.live.live_states import JOB, NODE, LiveJobState, LiveNodeState
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import HOUR_SECONDS

STATE_RULES = frozenset(
    {"failing-node", "clock-throttle", "slow-link", "silent-agent", "idle-allocation"}
)
_NODES_PER_TICK = 64
_LOST_SECONDS = 6.0
"""Seconds without a word of an agent from which on a rank on its node may live unseen: it sends one
every five."""
_BEHIND_SECONDS = 5.0
"""Age of batches from which on the watch itself is behind, and who is silent is not known."""
_GONE_ON_SECONDS = 5.0
"""Seconds after the last record of a rank that is not seen, from which on others could not have done
a step had it died: what a lost node had not sent yet is of the last two."""


@dataclass(frozen=True, slots=True)
class WatchedRun:
    memory: RunMemory
    findings: Sequence[LiveFinding]
    """Those that are open on it."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """A node or a job, with what the rule book needs of it."""

    node: str
    run: str
    nodes: tuple[str, ...]
    gpus: int
    report: SourceReport


@dataclass(slots=True)
class StateFindings:
    nodes: NodeWatch
    usd_per_gpu_hour: float | None
    _open: dict[tuple[str, str], LiveFinding] = field(default_factory=dict)
    """By rule, and node or run."""
    _due: dict[str, None] = field(default_factory=dict)
    """Nodes to look at next: those with news first, then in turn."""
    _taken: float | None = None
    """When the last batch was received that came since the last tick."""

    def know(self, findings: Iterable[LiveFinding]) -> None:
        """Know findings that were open before a restart."""
        for each in findings:
            on_job = each.rule == "idle-allocation"
            self._open[each.rule, each.run if on_job else "".join(each.nodes)] = each

    def take(self, batch: Batch, received: float) -> None:
        if any(signal.fault for signal in batch.signals):
            self._due = {batch.node: None} | self._due
        else:
            self._due.setdefault(batch.node)
        self._taken = received

    def findings(self) -> list[LiveFinding]:
        return list(self._open.values())

    def silence(self, key: str, until: float) -> LiveFinding | None:
        for place, each in self._open.items():
            if each.key == key:
                self._open[place] = replace(each, silenced_until=until)
                return self._open[place]
        return None

    def update(self, runs: Sequence[WatchedRun], now: float) -> Changes:
        """Judge the nodes that have news, and all jobs."""
        named = {node for run in runs for each in run.findings for node in each.nodes}
        is_behind = self._taken is not None and now - self._taken > _BEHIND_SECONDS
        self._taken = None
        looked, subjects = self._subjects(runs, now, is_behind)
        opened: list[LiveFinding] = []
        updated: list[LiveFinding] = []
        shown: set[tuple[str, str]] = set()
        for subject in subjects:
            for finding in diagnose_source(subject.report).findings:
                key = finding.rule, subject.node or subject.run
                shown.add(key)
                if key in self._open:
                    self._open[key] = self._current(self._open[key], finding, subject, now)
                    updated.append(self._open[key])
                elif not (subject.node in named if subject.node else _is_stuck(subject, runs)):
                    self._open[key] = self._made(finding, subject, now)
                    opened.append(self._open[key])
        gone = [
            (rule, name)
            for rule, name in self._open
            if (rule, name) not in shown
            and name in looked
            and not (is_behind and rule == "silent-agent")
        ]
        closed = [
            replace(self._open.pop(key), closed=now, why_closed="no longer seen") for key in gone
        ]
        return Changes(opened=tuple(opened), updated=tuple(updated), closed=tuple(closed))

    def _subjects(
        self, runs: Sequence[WatchedRun], now: float, is_behind: bool
    ) -> tuple[set[str], list[_Subject]]:
        """What was looked at, by name, and those of it that may have something to say."""
        due = [*self._due][:_NODES_PER_TICK]
        for name in due:
            del self._due[name]
        silent = {} if is_behind else dict(self.nodes.silent(now, SILENT_SECONDS))
        open_nodes = {name for rule, name in self._open if rule != "idle-allocation"}
        looked = {*due, *silent, *open_nodes}
        subjects = []
        for name in looked:
            state = self.nodes.state(name, now)
            if state is not None or name in silent:
                state = state or LiveNodeState(node=name, ranks=0, jobs=())
                subjects.append(_node_subject(state, runs, silent.get(name, 0.0)))
        for run in runs:
            looked.add(run.memory.run)
            subjects += self._job(run.memory, now)
        return looked, subjects

    def _job(self, memory: RunMemory, now: float) -> Iterator[_Subject]:
        """A job that has not done a step for a while, though its processes are heard of."""
        ranks = list(memory.latest().values())
        heard = now - memory.heard < SILENT_SECONDS
        if not ranks or not heard:
            return
        began = min(rank.start.epoch + rank.start.began for rank in ranks)
        stepped = max(rank.step_end for rank in ranks)
        stepless = max(rank.last for rank in ranks) - (stepped or began)
        if stepless < 60e6:
            return
        nodes = tuple(sorted({rank.node for rank in ranks}))
        state = LiveJobState(
            run=memory.run,
            ranks=len(ranks),
            device=ranks[0].start.device,
            nodes=nodes,
            steps=max(rank.step for rank in ranks),
            stepless_seconds=stepless / 1e6,
            inactive_seconds=self.nodes.inactive_seconds(nodes, now),
        )
        report = SourceReport(kind=JOB, sources=(memory.run,), facts=state)
        yield _Subject("", memory.run, nodes, memory.world, report)

    def _made(self, finding: Finding, subject: _Subject, now: float) -> LiveFinding:
        onset = now - finding.gpu_seconds / max(subject.gpus, 1)
        key = finding_key(f"{subject.run} {subject.node}", finding.rule, "", (), onset)
        made = open_finding(finding, key, subject.run, nodes=subject.nodes, onset=onset, now=now)
        return self._current(made, finding, subject, now)

    def _current(
        self, known: LiveFinding, finding: Finding, subject: _Subject, now: float
    ) -> LiveFinding:
        share = 1.0 if finding.gpu_seconds else 0.0
        costs = Costs(world=subject.gpus, usd_per_gpu_hour=self.usd_per_gpu_hour)
        rate = costs.usd_per_hour(share)
        seconds = now - known.onset
        return replace(
            known,
            title=finding.title,
            evidence=finding.evidence,
            remedy=finding.remedy,
            share=share,
            gpu_seconds=share * subject.gpus * seconds,
            usd_per_hour=rate,
            usd=None if rate is None else rate * seconds / HOUR_SECONDS,
            seen=now,
        )

    def without_unseen(self, judged: list[Judged], memory: RunMemory, now: float) -> list[Judged]:
        """Windows without ranks that seem to have fallen silent and must live: their agent is not
        heard, and others, which would wait for them, have gone on.
        """
        if not any(each.kind == STOPPED and each.sightings for each in judged):
            return judged
        lost = {name for name, _ in self.nodes.silent(now, _LOST_SECONDS)}
        latest = memory.latest()
        unseen = {rank for rank, each in latest.items() if each.node in lost}
        if not unseen or not _has_gone_on(latest.values(), lost):
            return judged
        return [
            replace(
                each,
                sightings=tuple(
                    some for some in each.sightings if not set(some.finding.ranks) <= unseen
                ),
            )
            if each.kind == STOPPED
            else each
            for each in judged
        ]


def _has_gone_on(ranks: Iterable[RankMemory], lost: Iterable[str]) -> bool:
    """Whether ranks on other nodes have done steps long after the last record of those on these
    nodes, without which they could not.
    """
    lost, seen, stepped = set(lost), 0, 0
    for rank in ranks:
        if rank.node in lost:
            seen = max(seen, rank.last)
        else:
            stepped = max(stepped, rank.step_end)
    return stepped - seen >= _GONE_ON_SECONDS * 1e6


def _is_stuck(subject: _Subject, runs: Sequence[WatchedRun]) -> bool:
    """Whether a finding on the job says already that it does not go on."""
    return any(
        each.rule in ("hang", "silent-rank")
        for run in runs
        if run.memory.run == subject.run
        for each in run.findings
    )


def _node_subject(state: LiveNodeState, runs: Sequence[WatchedRun], silent: float) -> _Subject:
    """The node with the jobs on it."""
    jobs, count, trains = [], 0, False
    for run in runs:
        latest = run.memory.latest().values()
        here = sum(rank.node == state.node and rank.ended is None for rank in latest)
        if here:
            jobs.append(run.memory.run)
            count += here
            trains = trains or _has_gone_on(latest, [state.node])
    state = replace(state, jobs=tuple(jobs), ranks=count, silent_seconds=silent, trains=trains)
    report = SourceReport(kind=NODE, sources=(state.node,), facts=state)
    return _Subject(
        state.node, jobs[0] if len(jobs) == 1 else "", (state.node,), max(count, 1), report
    )
