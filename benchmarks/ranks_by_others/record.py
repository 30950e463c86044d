"""Record the cases: `python -m benchmarks.ranks_by_others.record FOLDER [--only NAME ...] [--missing]`.

FOLDER/judge holds one folder of traces per recording and truth.csv. FOLDER/rows holds the row of
each recording with the number of runs it took, so that a part can be recorded again.
"""

import argparse
import contextlib
import ctypes
import json
import os
import pickle
import platform
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.ranks_by_others.cases import CASES
from benchmarks.ranks_by_others.drill import Case
from benchmarks.ranks_by_others.truth import measure, read_ends, schedule_seconds, write_truth

SYS_SCHED_SETATTR = 314
MAX_RUNS = 3
MAX_PROFILED_RATIO = 1.25
MAX_NOISE_SHARE = 0.1
MAX_SCHEDULE_RATIO = 1.2


def raise_priority() -> None:
    """Ask for more of the shared cores, where that is allowed."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    ask_for_short_slices()
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("-10")


def ask_for_short_slices() -> None:
    """Ask Linux for slices of 0.1 ms, so that a rank that wakes need not wait for other work."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return
    size, normal, nice, nanoseconds = 56, 0, -10, 100_000
    attributes = struct.pack("IIQiIQQQII", size, normal, 0, nice, 0, nanoseconds, 0, 0, 0, 0)
    ctypes.CDLL(None).syscall(SYS_SCHED_SETATTR, 0, attributes, 0)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run(case: Case, work: Path) -> dict[str, str] | None:
    """Run a case once; return its row, or nothing if it failed."""
    (work / "case.pickle").write_bytes(pickle.dumps(case))
    command = [sys.executable, "-m", "benchmarks.ranks_by_others.launch", str(work)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (work / "log").open("w") as log:
        done = subprocess.run(
            [*command, str(free_port())],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    if done.returncode:
        return None
    return measure(case, read_ends(case, work))


def stands_out(case: Case, row: dict[str, str]) -> bool:
    """Whether the fault shows above the noise and nothing else stretched the profiled steps."""
    if row["bubble_share"]:
        profiled = float(row["step_seconds_profiled"])
        if profiled > MAX_SCHEDULE_RATIO * schedule_seconds(case):
            return False
    ratio = float(row["step_seconds_profiled"]) / float(row["step_seconds_with"])
    if row["fault"] == "none":
        noise = max(abs(float(row["gain_low"])), abs(float(row["gain_high"])))
        return noise < MAX_NOISE_SHARE and ratio <= MAX_PROFILED_RATIO
    return row["visible"] == "True" and ratio <= MAX_PROFILED_RATIO


def lengthen(case: Case, attempt: int) -> Case:
    """Return the case with blocks half as long again at the second attempt, double at the third."""
    period = max(case.period, case.every)
    return replace(case, counted=-(-case.counted * (attempt + 1) // (2 * period)) * period)


def record(case: Case, folder: Path) -> None:
    """Record a case, again with longer blocks until it stands out, and keep the last run."""
    for attempt in range(1, MAX_RUNS + 1):
        longer = lengthen(case, attempt)
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            row = run(longer, work)
            if row is None:
                print(case.recording, "failed", (work / "log").read_text()[-800:], flush=True)
                continue
            keep(row, attempt, work / "traces", folder)
        print(
            case.recording,
            attempt,
            *(row[key] for key in ("step_seconds_with", "gain_share", "gain_low", "gain_high")),
            row["visible"],
            row["step_seconds_profiled"],
            row["bubble_share"],
            flush=True,
        )
        if stands_out(case, row):
            return


def keep(row: dict[str, str], runs: int, traces: Path, folder: Path) -> None:
    """Move the traces into the folder and note the row."""
    target = folder / "judge" / row["recording"]
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(traces, target)
    path = folder / "rows" / f"{row['recording']}.json"
    earlier = json.loads(path.read_text())["runs"] if path.exists() else 0
    path.write_text(json.dumps({"runs": max(runs, earlier + 1), "row": row}))


def main() -> None:
    """Record what was asked for and write truth.csv."""
    parser = argparse.ArgumentParser(description="Record training scripts with planted faults.")
    parser.add_argument("folder", type=Path, help="Folder to write to.")
    parser.add_argument("--only", nargs="+", default=[], help="Recordings or scripts to record.")
    parser.add_argument("--missing", action="store_true", help="Record only what is not there.")
    options = parser.parse_args()
    folder: Path = options.folder
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    (folder / "judge").mkdir(exist_ok=True)
    raise_priority()
    for case in CASES:
        if options.only and not {case.recording, case.script} & set(options.only):
            continue
        if options.missing and (folder / "rows" / f"{case.recording}.json").exists():
            continue
        record(case, folder)
        rows = [json.loads(path.read_text())["row"] for path in (folder / "rows").iterdir()]
        write_truth(rows, folder / "judge" / "truth.csv")


if __name__ == "__main__":
    main()
