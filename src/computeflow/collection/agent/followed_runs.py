"""Run folders of this node and the files of its own ranks in them: `FollowedRuns`.

A disk may be shared by many nodes, and hold years of runs: a folder in which nothing was written for a
day is looked at again when a file comes or goes in it.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from computeflow.collection.agent.processes import ProcessWatch, TrainingProcess
from computeflow.collection.agent.rank_tails import RankTail
from computeflow.collection.agent.run_ids import facts_to_send, read_facts, run_id
from computeflow.collection.wire.batches import PROCESS_GONE, NodeSignal
from computeflow.files.limits import FILES
from computeflow.units import DAY_SECONDS

_RANK = re.compile(r"rank-\d{1,7}\.attempt-\d{1,6}\.cfr")
RECENT_SECONDS = DAY_SECONDS
_ENDED_SECONDS = 60.0
"""How long the file of a process that ended is kept open."""
_MAX_TAILS = 4096
"""Files that are followed at once: a node has some ten ranks for each run."""


class FollowedRun:
    """One run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts = read_facts(folder / "run.json")
        self.run = run_id(self.facts, folder)
        self.about: dict[str, Any] = facts_to_send(self.facts)
        self.about_sent: dict[str, Any] | None = None
        self.tails: dict[str, RankTail] = {}
        """Files of this node's ranks, by `RANK.ATTEMPT`."""
        self.known = False
        """Whether the collector has said what it has of this run."""
        self.positions: dict[str, int] = {}
        """What the collector had of each rank when it was asked."""
        self.signals: list[NodeSignal] = []
        """What is to be said of its processes."""
        self._gone: set[str] = set()
        """Ranks of which it was said that their process is gone."""
        self.unread: dict[str, str] = {}
        """Files that cannot be read, and why."""
        self._facts_changed = -1.0
        self._turn = 0
        self._unopened: dict[str, RankTail] = {}
        self._passed: set[str] = set()
        """Files that are another host's, or no file of a rank, or are done."""

    def look(self, names: Iterable[str], hosts: frozenset[str], room: int) -> None:
        """Take in the files that are there; `hosts` are this node's names, empty for any."""
        self._look_at_facts()
        for name in sorted(names):
            if len(self.tails) + len(self._unopened) >= room:
                break
            if name not in self._passed and name not in self._unopened:
                self._unopened[name] = RankTail(self.folder / name)
                self._passed.add(name)
        for name, tail in list(self._unopened.items()):
            if tail.refused or tail.open():
                del self._unopened[name]
                self._take(tail, hosts)

    def _take(self, tail: RankTail, hosts: frozenset[str]) -> None:
        start = tail.start
        if tail.refused:
            self.unread[tail.path.name] = tail.refused
        if start is None or (hosts and start.host not in hosts) or tail.key in self.tails:
            tail.close()
            return
        if start.pid and start.host == socket.gethostname():
            tail.process = ProcessWatch(start.pid, _changed(tail.path))
        tail.go_to(self.positions.get(tail.key, 0))
        self.tails[tail.key] = tail

    def has_news(self) -> bool:
        return self.about != self.about_sent or any(tail.has_news() for tail in self.tails.values())

    def ready_tails(self) -> list[tuple[str, RankTail]]:
        """Files that may have news; those that were read least recently first."""
        ready = [(key, tail) for key, tail in self.tails.items() if tail.has_news()]
        self._turn += 1
        turn = self._turn % max(len(ready), 1)
        return ready[turn:] + ready[:turn]

    def note_lost_processes(self, at: int) -> None:
        """Note processes that were there, are gone, and did not say that they end."""
        for key, tail in self.tails.items():
            if key in self._gone or tail.ended or tail.process is None or tail.has_news():
                continue
            if tail.process.alive() is False:
                self._gone.add(key)
                rank = int(key.partition(".")[0])
                detail = f"rank {rank} of {self.run}: process {tail.process.pid}"
                self.signals.append(NodeSignal(at=at, what=PROCESS_GONE, detail=detail, rank=rank))

    def _look_at_facts(self) -> None:
        changed = _changed(self.folder / "run.json")
        if changed == self._facts_changed:
            return
        self._facts_changed = changed
        facts = read_facts(self.folder / "run.json")
        if facts:  # a run keeps its first id
            self.facts, self.about = facts, facts_to_send(facts)

    def close_ended(self, now: float) -> None:
        """Let go of files of processes that ended, once all of them is read."""
        for key, tail in list(self.tails.items()):
            if tail.refused or (
                tail.ended and not tail.has_news() and now - _changed(tail.path) > _ENDED_SECONDS
            ):
                tail.end()
                del self.tails[key]


class FollowedRuns:
    """All runs below some folders."""

    def __init__(self, roots: Sequence[Path], hosts: frozenset[str]) -> None:
        self._roots, self._hosts = roots, hosts
        self._quiet: dict[Path, float] = {}
        """Folders without news, and when a file last came or went in them."""
        self.runs: dict[Path, FollowedRun] = {}
        self.missing: dict[str, str] = {}

    def look(self, now: float) -> None:
        """Find new runs and new files; `now` is Unix seconds."""
        self.missing = {}
        for folder in self._folders():
            changed = _changed(folder)
            if self._quiet.get(folder) == changed:
                continue
            names = _rank_files(folder)
            run = self.runs.get(folder)
            if run is None:
                newest = max((_changed(folder / name) for name in names), default=changed)
                if not names or now - newest > RECENT_SECONDS:
                    if names:
                        self._quiet[folder] = changed
                    continue
                run = self.runs[folder] = FollowedRun(folder)
            run.look(names, self._hosts, _MAX_TAILS)
        for folder, run in list(self.runs.items()):
            run.note_lost_processes(round(now * 1e6))
            run.close_ended(now)
            if run.unread:
                example = next(iter(run.unread.values()))
                self.missing[f"records in {folder.name}"] = (
                    f"{len(run.unread)} files cannot be read: {example}"
                )
            if not folder.is_dir():
                del self.runs[folder]

    def _folders(self) -> Iterator[Path]:
        for root in self._roots:
            try:
                with os.scandir(root) as entries:
                    children = [
                        Path(entry.path)
                        for _, entry in zip(range(FILES), entries, strict=False)
                        if entry.is_dir(follow_symlinks=False)
                    ]
            except OSError as error:
                self.missing[f"runs in {root}"] = error.strerror or str(error)
                continue
            yield root
            yield from children

    def tails(self) -> Iterator[tuple[FollowedRun, RankTail]]:
        for run in self.runs.values():
            for tail in run.tails.values():
                yield run, tail

    def processes(self) -> Iterator[TrainingProcess]:
        """Processes that train, as far as they are seen on this node."""
        for run, tail in self.tails():
            if tail.start and tail.process and tail.process.alive():
                yield TrainingProcess(run=run.run, rank=tail.start.rank, pid=tail.process.pid)


def _changed(path: Path) -> float:
    try:
        return os.stat(path).st_mtime  # noqa: PTH116
    except OSError:
        return 0.0


def _rank_files(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [
                entry.name
                for _, entry in zip(range(FILES), entries, strict=False)
                if _RANK.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            ]
    except OSError:
        return []
