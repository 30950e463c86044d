"""Record jobs of two ranks over gloo: a slow rank, unequal sequences, and healthy ones.

`python -m benchmarks.record_jobs FOLDER [PART]` starts both ranks and writes a folder for every job,
with a trace of each rank, and `index.json` as `record_traces` does. Every job is run three times and
the one of the median time is kept. Needs torch only, and a quiet machine. Ranks have one thread each;
the recordings of slow ranks in the repository were made with four (`threads` in their index).
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.record_traces import trim
from computeflow.lab.trainer import TrainerSettings

Knobs = dict[str, Any]
BASE: Knobs = {
    "device": "cpu", "precision": "fp32", "sharding": "ddp", "layers": 4, "hidden": 256, "heads": 8,
    "vocab": 4096, "seq_len": 256, "micro_batch": 4, "steps": 12, "warmup": 6, "profile_steps": 3,
    "quiet": True,
}  # fmt: skip
DEEP: Knobs = {"layers": 8, "hidden": 192, "heads": 6}
SHARDED: Knobs = {"sharding": "fsdp"}
LONG: Knobs = {"seq_len": 512, "micro_batch": 2}
BIG: Knobs = {"seq_len": 512, "micro_batch": 2, "steps": 8, "warmup": 3}
"""Steps whose time follows the tokens; in smaller ones the fixed cost dominates."""
JOBS: dict[str, tuple[str, Knobs]] = {
    "unequal-lengths-0.5": ("unequal-lengths", {**BIG, "seed": 2, "fault": ("unequal-lengths:0.5",)}),
    "unequal-lengths-0.8": ("unequal-lengths", {**BIG, "seed": 2, "fault": ("unequal-lengths:0.8",)}),
    "unequal-lengths-other": ("unequal-lengths", {**BIG, "seed": 4,
                                                  "fault": ("unequal-lengths:0.8",)}),
    "unequal-lengths-fsdp": ("unequal-lengths", {**BIG, **SHARDED, "seed": 0,
                                                 "fault": ("unequal-lengths:0.8",)}),
    "healthy-ddp": ("healthy", {}),
    "healthy-fsdp": ("healthy", SHARDED),
    "healthy-deep": ("healthy", DEEP),
    "healthy-long": ("healthy", LONG),
    "slow-rank-0.05": ("slow-rank", {"fault": ("slow-rank:0.05:rank=1",)}),
    "slow-rank-0.1": ("slow-rank", {"fault": ("slow-rank:0.1:rank=0",)}),
    "slow-rank-0.3": ("slow-rank", {"fault": ("slow-rank:0.3:rank=1",)}),
    "slow-rank-fsdp": ("slow-rank", {**SHARDED, "fault": ("slow-rank:0.15:rank=1",)}),
    "slow-rank-deep": ("slow-rank", {**DEEP, "fault": ("slow-rank:0.08:rank=0",)}),
}  # fmt: skip
REPEATS, RANKS, FIRST_PORT = 3, 2, 29600
_RANK = int(os.environ.get("RANK", "-1"))


def run(folder: Path, knobs: Knobs) -> list[dict[str, Any]]:
    """Run one job on this rank; the summaries of all ranks are exchanged through files."""
    from computeflow.lab.trainer.training_loop import train

    folder.mkdir(parents=True, exist_ok=True)
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)  # a store for every run
    summary = train(TrainerSettings(**(BASE | knobs), trace_folder=str(folder))).to_data()
    for key in ("trace_folder", "checkpoint_folder", "output", "flight_folder"):
        summary["settings"].pop(key, None)
    mine = folder / f"summary_{_RANK}.part"
    mine.write_text(json.dumps(summary))
    mine.rename(folder / f"summary_{_RANK}.json")
    files = [folder / f"summary_{rank}.json" for rank in range(RANKS)]
    while not all(file.exists() for file in files):
        time.sleep(0.01)
    return [json.loads(file.read_text()) for file in files]


def profiled(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Seconds of the steps in the trace, after the one in which the profiler warms up."""
    return list(summary["steps"][1 : 1 + BASE["profile_steps"]])


def profiled_seconds(summaries: list[dict[str, Any]]) -> float:
    return statistics.fmean(sum(s["seconds"] for s in profiled(summary)) for summary in summaries)


def without(knobs: Knobs) -> list[Knobs]:
    """Runs without the fault that together do the same work: unequal lengths are removed by giving
    all ranks those of the first, and then those of the second.
    """
    if knobs["fault"][0].startswith("unequal-lengths"):
        return [knobs | {"lengths_of": rank} for rank in range(RANKS)]
    return [{name: value for name, value in knobs.items() if name != "fault"}]


def median_of(folder: Path, name: str, knobs: Knobs) -> tuple[Path, list[Any], list[float]]:
    """Folder of the run with the median time, its summaries, and all times."""
    runs = []
    for number in range(REPEATS):
        run_folder = folder / "all" / f"{name}.{number}"
        summaries = run(run_folder, knobs)
        runs.append((profiled_seconds(summaries), run_folder, summaries))
    runs.sort(key=lambda result: (result[0], str(result[1])))
    _, run_folder, summaries = runs[REPEATS // 2]
    return run_folder, summaries, [seconds for seconds, _, _ in runs]


def start(folder: Path, *part: str) -> int:
    """Start both ranks, which run all jobs; if one fails, the other is ended."""
    folder.mkdir(parents=True, exist_ok=True)
    common = {
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": str(FIRST_PORT),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.record_jobs", str(folder), *part],
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(RANKS)
    ]
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):
            for rank in ranks:
                rank.terminate()
        time.sleep(0.2)
    return int(max(abs(rank.returncode) for rank in ranks))


def main(folder: Path, part: str = "") -> int:
    index: dict[str, Any] = {}
    chosen = {name: job for name, job in JOBS.items() if part in name}
    for name, (label, knobs) in chosen.items():
        run_folder, summaries, taken = median_of(folder, name, knobs)
        index[name] = {
            "label": label,
            "planted": knobs,
            "threads": 1,
            "profiled_seconds": taken,
            "summaries": summaries,
        }
        if label != "healthy":
            rest = without(knobs)
            times = [
                median_of(folder, f"{name}-removed-{number}", each)[2]
                for number, each in enumerate(rest)
            ]
            index[name] |= {
                "removed": rest,
                "removed_all": times,
                "removed_seconds": statistics.fmean(each[REPEATS // 2] for each in times),
            }
        if _RANK:
            continue
        (folder / name).mkdir(exist_ok=True)
        for trace in run_folder.glob("*.json.gz"):
            shutil.copy(trace, folder / name)
            trim(folder / name / trace.name)
        (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")
        gone = 1000 * index[name].get("removed_seconds", 0)
        print(f"{name}: {1000 * taken[REPEATS // 2]:.1f} ms, without {gone:.1f} ms", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit((start if _RANK < 0 else main)(Path(sys.argv[1]), *sys.argv[2:3]))
