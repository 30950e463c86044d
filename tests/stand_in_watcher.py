"""A watcher with the face of the real one: a step of more than a second is a finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from computeflow.collection.online.live_values import (
    LiveFinding,
    LiveNode,
    LiveRun,
    finding_key,
)
from computeflow.collection.wire.batches import Batch
from computeflow.errors import InputError
from computeflow.telemetry.run_folders.rank_file import RankStart

SLOW_MICROS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    price_usd_per_gpu_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    opened: tuple[LiveFinding, ...] = ()
    updated: tuple[LiveFinding, ...] = ()
    closed: tuple[LiveFinding, ...] = ()


class Watcher:
    def __init__(self, options: WatchOptions, findings: Sequence[LiveFinding] = ()) -> None:
        self.options = options
        self.open = {(f.run, f.ranks[0]): f for f in findings}
        self.given = tuple(findings)
        self.starts: set[tuple[str, int]] = set()
        self.taken: list[tuple[Batch, float]] = []
        self._changed: dict[str, tuple[str, LiveFinding]] = {}
        self._runs: dict[str, LiveRun] = {}
        self._nodes: dict[str, LiveNode] = {}

    def take(self, batch: Batch, received: float, body: bytes | None = None) -> None:
        self.taken.append((batch, received))
        self._nodes[batch.node] = LiveNode(
            node=batch.node, agent=batch.agent, last_seen=received, gpus=0
        )
        at = 0
        for rows in batch.ranks:
            if rows.news is not None and rows.news.start is not None:
                self.starts.add((batch.run, rows.rank))
            for place in range(at, at + rows.steps):
                long = int(batch.steps["end"][place] - batch.steps["begin"][place])
                self._judge(batch, rows.rank, long > SLOW_MICROS, received)
            at += rows.steps
        if batch.run:
            self._runs[batch.run] = _run(batch.run, received)

    def knows(self, run: str) -> bool:
        return run in self._runs

    def know_booked(self, before: LiveRun, now: float) -> None:
        pass

    def know(self, run: str, start: RankStart, now: float) -> None:
        self.starts.add((run, start.rank))

    def _judge(self, batch: Batch, rank: int, is_slow: bool, now: float) -> None:
        known = self.open.get((batch.run, rank))
        if is_slow and known is None:
            finding = _finding(batch.run, rank, batch.node, now)
            self.open[batch.run, rank] = finding
            self._changed[finding.key] = ("opened", finding)
        elif not is_slow and known is not None:
            del self.open[batch.run, rank]
            closed = replace(known, closed=now, why_closed="steps are fast again")
            self._changed[known.key] = ("closed", closed)

    def tick(self, now: float) -> Changes:
        changed, self._changed = self._changed, {}
        return Changes(
            opened=tuple(f for kind, f in changed.values() if kind == "opened"),
            updated=tuple(f for kind, f in changed.values() if kind == "updated"),
            closed=tuple(f for kind, f in changed.values() if kind == "closed"),
        )

    def silence(self, key: str, until: float) -> LiveFinding:
        for place, finding in self.open.items():
            if finding.key == key:
                self.open[place] = replace(finding, silenced_until=until)
                self._changed[key] = ("updated", self.open[place])
                return self.open[place]
        raise InputError(f"no finding {key}")

    def findings(self) -> tuple[LiveFinding, ...]:
        return tuple(self.open.values())

    def runs(self) -> tuple[LiveRun, ...]:
        return tuple(self._runs.values())

    def nodes(self, now: float) -> tuple[LiveNode, ...]:
        return tuple(self._nodes.values())


def _finding(run: str, rank: int, node: str, now: float) -> LiveFinding:
    return LiveFinding(
        key=finding_key(run, "straggler-rank", "straggler", (rank,), now),
        run=run,
        rule="straggler-rank",
        title=f"rank {rank} is slow",
        account="straggler",
        ranks=(rank,),
        nodes=(node,),
        share=0.1,
        gpu_seconds=1.0,
        usd_per_hour=None,
        usd=None,
        confidence=0.9,
        evidence=(),
        remedy=None,
        onset=now,
        opened=now,
        seen=now,
    )


def _run(run: str, now: float) -> LiveRun:
    return LiveRun(
        run=run,
        name=run,
        command="",
        state="running",
        world=2,
        ranks=2,
        nodes=("n1",),
        device="cpu",
        gpu="",
        started=now,
        updated=now,
        attempt=0,
        step=1,
        step_seconds=None,
        tokens_per_second=None,
        mfu=None,
        accounts={},
        goodput=None,
        usd_per_gpu_hour=None,
        slowest=(),
    )
