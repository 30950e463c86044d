"""Records of ranks, sent to a watcher as they would come while the run goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from computeflow.collection.online.live_values import LiveFinding
from computeflow.collection.online.watcher import Watcher, WatchOptions
from computeflow.collection.wire.batches import (
    Batch,
    RankPart,
    make_batch,
    pack_batch,
    unpack_batch,
)
from computeflow.recorder.frames import FrameReader, Record
from computeflow.telemetry.run_folders.rank_reading import RankColumns

OWN_TIME = ("s", "b", "e", "end")
"""Records that are written at the time they state; others come with the next of these."""


@dataclass
class Told:
    """What a watcher said: seconds since the run began, and the finding."""

    opened: list[tuple[float, LiveFinding]] = field(default_factory=list)
    closed: list[tuple[float, LiveFinding]] = field(default_factory=list)

    def rules(self) -> list[str]:
        return list(dict.fromkeys(finding.rule for _, finding in self.opened))


def records_of(path: Path) -> list[Record]:
    with path.open("rb") as file:
        return list(FrameReader(file).read())


@dataclass
class LiveRankFile:
    records: Sequence[Record]
    node: str

    def __post_init__(self) -> None:
        self.columns = RankColumns()
        self.sent = 0
        self.epoch = self.records[0]["unix_ns"] // 1000
        self.times: list[int] = []
        last = 0
        for record in self.records:
            if record["k"] in OWN_TIME:
                last = max(last, record["t"])
            self.times.append(self.epoch + last)

    def part(self, until: float, alive: bool | None = None) -> RankPart | None:
        """Records that were written up to a moment and not sent yet."""
        first = self.sent
        while self.sent < len(self.records) and self.times[self.sent] <= until * 1e6:
            self.columns.take(self.records[self.sent], Path("rank"))
            self.sent += 1
        file = self.columns.drain(Path("rank"))
        if self.sent == first or file is None:
            return None
        return RankPart(first=first, records=self.sent - first, file=file, alive=alive)


def over_the_wire(batch: Batch) -> Batch:
    return unpack_batch(pack_batch(batch))


def watch(
    ranks: Sequence[Sequence[Record]],
    *,
    nodes: Mapping[int, str] | None = None,
    watcher: Watcher | None = None,
    lag: float = 1.0,
    after: float = 30.0,
    run: str = "run",
    about: Mapping[str, Any] | None = None,
) -> Told:
    """Send all records in their own time, a batch and a tick each second."""
    files = [
        LiveRankFile(records, (nodes or {}).get(rank, "node")) for rank, records in enumerate(ranks)
    ]
    watcher = watcher or Watcher(WatchOptions(price_usd_per_gpu_hour=2.0))
    begin = min(file.times[0] for file in files) / 1e6
    end = max(file.times[-1] for file in files) / 1e6
    told, now, number = Told(), begin, 0
    while now < end + after:
        now, number = now + 1.0, number + 1
        for node in sorted({file.node for file in files}):
            parts = [file.part(now - lag) for file in files if file.node == node]
            batch = make_batch(
                [part for part in parts if part is not None],
                agent=node,
                number=number,
                node=node,
                sent=round(now * 1e6),
                run=run,
                about=dict(about or {}),
            )
            watcher.take(over_the_wire(batch), now)
        changes = watcher.tick(now)
        told.opened += [(now - begin, finding) for finding in changes.opened]
        told.closed += [(now - begin, finding) for finding in changes.closed]
    return told
