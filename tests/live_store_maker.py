"""A collector's store of a young run, as its collector has it before anything is sealed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from batch_maker import batches_of
from computeflow.collection.collector.loop import WatchLoop
from computeflow.collection.online.watcher import Watcher, WatchOptions
from computeflow.collection.store.journal import JournalWriter
from computeflow.collection.store.sealing_journals import seal_journal
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import open_store
from computeflow.collection.wire.batches import Batch, pack_batch
from run_folder_maker import MS, Training

RUN = "run-1"
LATE = 60 * MS
LATE_RANK = 1


def late_rank(rank: int, step: int) -> Mapping[str, int]:
    return {"f": LATE} if rank == LATE_RANK else {}


def node_batches(folder: Path, training: Training) -> list[Batch]:
    """Each rank is on its own node, with its own agent."""
    training.write(folder)
    found = []
    for path in sorted(folder.glob("*.cfr")):
        alone = folder / path.stem
        alone.mkdir()
        path.rename(alone / path.name)
        name = f"node-{path.name[5:10].lstrip('0') or '0'}"
        found += batches_of(alone, run=RUN, agent=f"agent-{name}", node=name)
    return sorted(found, key=lambda batch: batch.number)


def young_store(folder: Path, training: Training | None = None, *, sealed: bool = False) -> Path:
    """A store with one run on a node for each rank; rank 1 is late by 60 ms in each step."""
    made = training or Training(ranks=2, steps=60, extra=late_rank, ends=False)
    store = open_store(folder / "store")
    writer, now = JournalWriter(store.journal, 1), time.time()
    loop = WatchLoop(store, lambda found: Watcher(WatchOptions(), found))
    for number, batch in enumerate(node_batches(folder / "made", made)):
        writer.append([(int(now * 1e6) + number, pack_batch(batch))])
        loop.read()
        loop.tick(now + number)
    loop.close()
    writer.close()
    if sealed:
        state = StateDatabase(store.state)
        seal_journal(store, state, 1)
        state.close()
    return store.path
