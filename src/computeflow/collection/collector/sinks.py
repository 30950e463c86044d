"""`ChangeSink`: where changes of findings go beside the store; `LiveChanges`: those of one tick."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from computeflow.collection.online.live_values import LiveFinding, LiveNode, LiveRun
from computeflow.collection.wire.batches import Batch
from computeflow.telemetry.run_folders.rank_file import RankStart


class LiveChanges(Protocol):
    @property
    def opened(self) -> tuple[LiveFinding, ...]: ...
    @property
    def updated(self) -> tuple[LiveFinding, ...]: ...
    @property
    def closed(self) -> tuple[LiveFinding, ...]: ...


class ChangeSink(Protocol):
    def publish(self, changes: LiveChanges, runs: Sequence[LiveRun]) -> None:
        """Pass changes on; called about once a second, also without any, and must not wait."""


class LiveWatcher(Protocol):
    """The part of `online.watcher.Watcher` that a collector uses."""

    def take(self, batch: Batch, received: float) -> None: ...
    def know(self, run: str, start: RankStart, now: float) -> None: ...
    def tick(self, now: float) -> LiveChanges: ...
    def silence(self, key: str, until: float) -> LiveFinding: ...
    def findings(self) -> tuple[LiveFinding, ...]: ...
    def runs(self) -> tuple[LiveRun, ...]: ...
    def nodes(self) -> tuple[LiveNode, ...]: ...
