"""`FolderFollower`: run folders on a shared disk are read as they grow, without an agent.

Records go the same way as an agent's: batches, numbered, to the journal. After a restart each file is
read again from its beginning, and what is known already is passed over.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from computeflow.collection.agent.run_ids import facts_to_send, run_id
from computeflow.collection.collector.clients import RefusedError
from computeflow.collection.collector.intake import Intake
from computeflow.collection.store.positions import Verdict
from computeflow.collection.store.processes import say_line
from computeflow.collection.wire.batches import Batch, RankPart, make_batch, pack_batch
from computeflow.errors import ComputeFlowError, InputError
from computeflow.files.limits import FILES, NAME_CHARACTERS
from computeflow.files.parsing import parse_json
from computeflow.files.reading import read_text
from computeflow.telemetry.run_folders.rank_file import RankFile
from computeflow.telemetry.run_folders.rank_reading import RankFollower

_ENDING = ".cfr"
_LOOK_SECONDS = 1.0
_READ_SECONDS = 0.2
_RECORDS = 2000
"""Records of a rank that are taken at once."""
_RANKS = 256
"""Ranks in a batch."""
_DEPTH = 3
"""Levels below a followed folder in which run folders are looked for."""


@dataclass(slots=True)
class _Rank:
    path: Path
    reader: RankFollower
    is_placed: bool = False
    """Whether records that are known already were passed over."""
    waiting: tuple[int, int, RankFile] | None = None
    """First record, records and columns that are not yet on the disk."""
    failed: str = ""


@dataclass(slots=True)
class _Folder:
    path: Path
    run: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    """All of `run.json`."""
    about: dict[str, Any] = field(default_factory=dict)
    stamp: float = 0.0
    ranks: dict[str, _Rank] = field(default_factory=dict)


class FolderFollower:
    def __init__(self, folders: Sequence[Path], intake: Intake, agent: str) -> None:
        self._roots, self._intake, self._agent = folders, intake, agent
        self._folders: dict[Path, _Folder] = {}
        self._number = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        for folder in self._folders.values():
            for rank in folder.ranks.values():
                rank.reader.close()

    def _run(self) -> None:
        looked = float("-inf")
        while not self._stopping.is_set():
            try:
                if time.monotonic() - looked >= _LOOK_SECONDS:
                    looked = time.monotonic()
                    self._look()
                for folder in self._folders.values():
                    self._ship(folder)
            except (ComputeFlowError, OSError) as error:
                say_line(f"--follow: {error}")
                self._stopping.wait(_LOOK_SECONDS)
            self._stopping.wait(_READ_SECONDS)

    def _look(self) -> None:
        """Find run folders and files of ranks that are new."""
        for path in _run_folders(self._roots):
            folder = self._folders.setdefault(path, _Folder(path))
            _read_about(folder)
            for file in sorted(path.glob(f"*{_ENDING}")):
                if file.name not in folder.ranks:
                    folder.ranks[file.name] = _Rank(file, RankFollower(file))

    def _ship(self, folder: _Folder) -> None:
        """Send what the ranks of a folder have written since, one batch for each of their hosts."""
        hosts: dict[str, list[_Rank]] = {}
        for rank in folder.ranks.values():
            if rank.failed:
                continue
            try:
                self._read(folder, rank)
            except (ComputeFlowError, OSError) as error:
                rank.failed = str(error)
                say_line(f"--follow: {error}")
                continue
            if rank.waiting is not None:
                host = rank.waiting[2].start.host or "unknown"
                hosts.setdefault(host[:NAME_CHARACTERS], []).append(rank)
        for host, ranks in hosts.items():
            for start in range(0, len(ranks), _RANKS):
                self._send(folder, host, ranks[start : start + _RANKS])

    def _read(self, folder: _Folder, rank: _Rank) -> None:
        if rank.waiting is None and not rank.is_placed:
            self._place(folder, rank)
        if rank.waiting is not None or not rank.is_placed:
            return
        first = rank.reader.records
        part = rank.reader.read(_RECORDS)
        if part is not None:
            rank.waiting = (first, rank.reader.records - first, part)

    def _place(self, folder: _Folder, rank: _Rank) -> None:
        """Pass over records that the store has; nothing where the file has none of its own yet."""
        part = rank.reader.read(1)
        if part is None:
            return
        start = part.start
        if not folder.run:
            folder.run = run_id(folder.facts, folder.path)[:NAME_CHARACTERS]
        known = self._intake.next_of_run(folder.run).get(f"{start.rank}.{start.attempt}", 0)
        rank.is_placed = True
        if not known:
            rank.waiting = (0, 1, part)
        while rank.reader.records < known:
            if rank.reader.read(known - rank.reader.records) is None:
                raise InputError(f"{rank.path}: has fewer records than the store: written anew?")

    def _send(self, folder: _Folder, host: str, ranks: Sequence[_Rank]) -> None:
        parts = [
            RankPart(first=first, records=records, file=file)
            for first, records, file in (rank.waiting for rank in ranks if rank.waiting)
        ]
        self._number += 1
        batch = make_batch(
            parts,
            agent=self._agent,
            number=self._number,
            node=host,
            sent=time.time_ns() // 1000,
            run=folder.run,
            about=folder.about,
        )
        verdict = self._commit(batch)
        if verdict is None:
            return
        for rank in ranks:
            rank.waiting = None
            if verdict == "refused":  # an agent sends of this run, too: on from where the store is
                rank.reader.close()
                rank.reader, rank.is_placed = RankFollower(rank.path), False

    def _commit(self, batch: Batch) -> Verdict | None:
        """Bring a batch to the disk; None where there is no room now."""
        done = threading.Event()
        try:
            verdict, ticket = self._intake.submit(batch, pack_batch(batch), done)
        except RefusedError:
            return None
        if ticket is not None:
            done.wait()
            if ticket.error is not None:
                return None
        return verdict


def _run_folders(roots: Sequence[Path]) -> Iterator[Path]:
    """Folders that hold files of ranks, down to some levels."""
    seen = 0
    for root in roots:
        for place, folders, files in os.walk(root):
            seen += len(files)
            if seen > FILES:
                raise InputError(f"--follow {root}: more than {FILES:,} files")
            if any(name.endswith(_ENDING) for name in files):
                folders.clear()
                yield Path(place)
            elif len(Path(place).relative_to(root).parts) >= _DEPTH:
                folders.clear()


def _read_about(folder: _Folder) -> None:
    """Read `run.json` where it changed; its environment stays where it is."""
    path = folder.path / "run.json"
    try:
        stamp = path.stat().st_mtime
        if stamp == folder.stamp:
            return
        facts = parse_json(read_text(path), str(path))
    except (OSError, ComputeFlowError):
        return
    folder.stamp = stamp
    if isinstance(facts, dict):
        folder.facts = facts
        folder.about = facts_to_send(facts)
