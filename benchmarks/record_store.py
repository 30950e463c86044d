"""A collector's store of real training on a GPU, for pages: `python3 -m benchmarks.record_store OUT`.

A collector follows two runs of Hugging Face's Trainer, one after the other, and an agent reads the GPU.
The second run begins to tokenise in the training process halfway; the collector is stopped while that
finding is open, as a page that is looked at meanwhile has it. OUT gets store.tar.gz and runs.tar.gz;
tests/data/gpu_store and gpu_runs are what an H200 gave; `--again STORE` judges a store's journal anew,
after a rule has changed, by the clock of the recording.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks.live_training import LiveCollector, collecting, environment, wait_for
from computeflow.collection.online.live_values import LiveFinding
from computeflow.collection.online.watcher import Watcher, WatchOptions
from computeflow.collection.store.journal import JournalFollower
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.wire.batches import unpack_known

SCRIPT = Path(__file__).parent / "page_scripts" / "pretrain.py"
STEPS, SLOW_FROM = 400, 250
_OPEN_SECONDS = 20.0
"""The finding stays open for so long before the collector is stopped."""


def start(folder: Path, name: str, steps: int, *more: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "computeflow", "record", "--quiet", "--no-seal", "--name", name]
    words += ["--out", f"runs/{name}", "--total-steps", str(steps), "--"]
    script = ["python3", SCRIPT.name, str(steps), f"saved/{name}", *more]
    shown = environment(HF_HUB_OFFLINE="1")
    return subprocess.Popen([*words, *script], cwd=folder, env=shown)


def agent(folder: Path, collector: LiveCollector) -> subprocess.Popen[bytes]:
    words = ["agent", "--collector", collector.address, "--state", str(folder / "agent")]
    return subprocess.Popen(
        [sys.executable, "-m", "computeflow", *words, "--every", "1", "--quiet"], env=environment()
    )


def record(folder: Path) -> None:
    with collecting(folder, "--follow", str(folder / "runs")) as collector:
        reading = agent(folder, collector)
        assert start(folder, "llama-1b", STEPS).wait(300) == 0
        second = start(folder, "llama-1b-tokenising", 4 * STEPS, str(SLOW_FROM))
        try:
            wait_for(lambda: has_finding(collector, "llama-1b-tokenising"), "the finding")
            time.sleep(_OPEN_SECONDS)
        finally:
            reading.terminate()
            reading.wait(60)
    second.terminate()
    second.wait(60)


def has_finding(collector: LiveCollector, name: str) -> bool:
    """Whether a finding is open on a run."""
    ids = {run["run"] for run in collector.get("/v1/runs")["runs"] if run["name"] == name}
    return any(each["run"] in ids for each in collector.open_findings())


def pack(folder: Path, name: str, target: Path) -> None:
    with tarfile.open(target / f"{name}.tar.gz", "w:gz") as packed:
        packed.add(folder / name, name)


def judge_again(store: Path) -> None:
    """Replace runs, findings and nodes of a store whose journal is whole by what its journal shows."""
    frames = JournalFollower(store / "journal").read(1 << 20)
    with closing(StateDatabase(store / "state.sqlite")) as state:
        before = [state.run(unpack_known(frame.body).run) for frame in frames]
    price = next(run.usd_per_gpu_hour for run in before if run is not None)
    watcher, ticked = Watcher(WatchOptions(price_usd_per_gpu_hour=price)), frames[0].received / 1e6
    found: dict[str, LiveFinding] = {}
    for frame in frames:
        now = frame.received / 1e6
        if now - ticked >= 1.0:
            changes = watcher.tick(ticked := now)
            told = (*changes.opened, *changes.updated, *changes.closed)
            found |= {each.key: each for each in told}
        watcher.take(unpack_known(frame.body), now, frame.body)
    with closing(sqlite3.connect(store / "state.sqlite")) as database, database:
        for table in ("runs", "findings", "nodes"):
            database.execute(f"DELETE FROM {table}")
    with closing(StateDatabase(store / "state.sqlite")) as state:
        state.save_view(found.values(), watcher.runs(), watcher.nodes(ticked))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--again", action="store_true", help="OUT is a store to judge anew")
    arguments = parser.parse_args()
    out: Path = arguments.out
    if arguments.again:
        return judge_again(out)
    with tempfile.TemporaryDirectory(prefix="computeflow-store-") as name:
        shutil.copy(SCRIPT, name)
        record(Path(name))
        for each in ("store", "runs"):
            pack(Path(name), each, out)


if __name__ == "__main__":
    main()
