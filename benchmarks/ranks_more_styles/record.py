"""Record the cases: one process per rank, the truth from blocks with the fault off and on.

python -m benchmarks.ranks_more_styles.record FOLDER [--only NAME ...] [--missing]
"""

import argparse
import contextlib
import csv
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

from .cases import CASES, JOB, NOTHING, STYLES, Case

# The same numbers as in the harness, which would import torch.
WARM, BLOCKS, LEAD = 4, 6, 2
LIMIT = 150.0
TRIES = 3
COLUMNS = (
    "recording,script,half,framework,ranks,fault,culprit,account,class,annotated,shapes,marked,"
    "step_seconds_with,step_seconds_without,gain_share,gain_low,gain_high,visible,"
    "step_seconds_profiled,schedule,stages,micro_batches,bubble_share,bubble_share_without,"
    "stage_seconds"
).split(",")


def hurry() -> None:
    """Ask for the cores first, where we may (sessions of their own share them by autogroup)."""
    with contextlib.suppress(PermissionError):
        os.setsid()
    try:
        Path("/proc/self/autogroup").write_text("-10")
        os.nice(-10)
    except OSError:
        print("not allowed to raise the priority", flush=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(case: Case, rank: int, port: int, settings: dict[str, Any]) -> dict[str, str]:
    """What torchrun would set, and the case."""
    told = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": case.ranks,
        "LOCAL_WORLD_SIZE": case.ranks,
        "GROUP_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "none",
        "OMP_NUM_THREADS": 1,
        "GLOO_SOCKET_IFNAME": "lo",
        "TOKENIZERS_PARALLELISM": "false",
        "DS_ACCELERATOR": "cpu",
        "RANKS_CASE": json.dumps(settings),
    }
    return {**os.environ, **{key: str(value) for key, value in told.items()}}


def launch(case: Case, traces: Path, scratch: Path) -> bool:
    """Run all ranks; false if one failed or the time ran out."""
    settings = {**case.settings(), "traces": str(traces), "scratch": str(scratch)}
    command = [sys.executable, "-m", f"{__package__}.scripts.{case.script}"]
    port = free_port()
    started = []
    for rank in range(case.ranks):
        with (scratch / f"log{rank}.txt").open("w") as log:
            env = environment(case, rank, port, settings)
            started.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
    return wait(started)


def wait(started: list[subprocess.Popen]) -> bool:
    """Wait for the ranks; if one fails or is late, end those this case started."""
    end = time.monotonic() + LIMIT
    while any(rank.poll() is None for rank in started):
        failed = any(rank.poll() not in (None, 0) for rank in started)
        if failed or time.monotonic() > end:
            time.sleep(2)
            for rank in started:
                if rank.poll() is None:
                    rank.kill()
            break
        time.sleep(0.2)
    return all(rank.wait() == 0 for rank in started)


def block_means(case: Case, clocks: list[dict[str, Any]]) -> list[float]:
    """The mean step of each block, over all ranks; the first of a block is not counted."""
    means = []
    for block in range(BLOCKS):
        first = WARM + block * case.block + case.skip - 1
        last = WARM + (block + 1) * case.block - 1
        spans = [(clock["times"][last] - clock["times"][first]) for clock in clocks]
        means.append(mean(spans) / (last - first))
    return means


def profiled_step(case: Case, clocks: list[dict[str, Any]]) -> float:
    return mean(clock["times"][-1] - clock["profile_from"] for clock in clocks) / case.profiled


def gains(means: list[float]) -> tuple[float, float, float, float, float]:
    """Step with and without, the gain, its least and most over neighbouring blocks."""
    off, on = median(means[0::2]), median(means[1::2])
    pairs = []
    for i in range(BLOCKS - 1):
        without, with_ = (means[i], means[i + 1]) if i % 2 == 0 else (means[i + 1], means[i])
        pairs.append(1 - without / with_)
    return on, off, 1 - off / on, min(pairs), max(pairs)


def pipeline(case: Case) -> dict[str, Any]:
    """The columns of a pipeline; empty for the others."""
    if "stages" not in case.extra:
        return {}
    times, micro = list(case.extra["stages"]), case.extra["micro"]
    devices = case.ranks if case.script != "pipe_data" else len(times)
    virtual = len(times) // devices
    share = (devices - 1) / (virtual * micro + devices - 1)
    factor = 4 if case.extra.get("recompute") else 3
    if case.fault in ("stage", "slow") and case.script != "pipe_data":
        for stage in range(len(times)):
            if case.extra.get("slow_stage", stage) == stage and stage % devices in case.culprits:
                times[stage] *= 1 + case.size
    clean = case.fault in NOTHING
    return {
        "schedule": case.extra["schedule"],
        "stages": len(times),
        "micro_batches": micro,
        "bubble_share": f"{share:.4f}" if clean else "",
        "bubble_share_without": "" if clean else f"{share:.4f}",
        "stage_seconds": " ".join(f"{factor * seconds:.4f}" for seconds in times),
    }


def truth(case: Case, clocks: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of truth.csv."""
    style = STYLES[case.script]
    means = block_means(case, clocks)
    with_, without, gain, low, high = gains(means)
    visible = low > 0 and gain > high - low
    if case.fault in NOTHING:
        with_ = without = median(means)
        gain, visible = 0.0, False
    return {
        "recording": case.name,
        "script": case.script,
        "half": "judge",
        "framework": style.framework,
        "ranks": case.ranks,
        "fault": case.fault,
        "culprit": ";".join(map(str, case.culprits)) if case.fault not in JOB else "",
        "account": case.account,
        "class": case.kind,
        "annotated": style.annotated,
        "shapes": style.shapes,
        "marked": style.marked,
        "step_seconds_with": f"{with_:.5f}",
        "step_seconds_without": f"{without:.5f}",
        "gain_share": f"{gain:.4f}",
        "gain_low": f"{low:.4f}",
        "gain_high": f"{high:.4f}",
        "visible": visible,
        "step_seconds_profiled": f"{profiled_step(case, clocks):.5f}",
        **pipeline(case),
    }


def complaint(case: Case, row: dict[str, Any], means: list[float]) -> str:
    """Why a run should be made again; empty if it need not."""
    calm = means if case.fault in NOTHING else means[0::2]
    if max(calm) / min(calm) > 1.1:
        return "clean blocks differ by more than a tenth"
    if case.fault not in NOTHING and not row["visible"]:
        return "the fault does not stand out"
    if float(row["step_seconds_profiled"]) > 1.25 * float(row["step_seconds_with"]):
        return "profiled steps are over a quarter longer"
    return ""


def attempt(case: Case, traces: Path) -> tuple[dict[str, Any] | None, str]:
    """Run a case once; its row (if it ran through) and what is wrong with it."""
    shutil.rmtree(traces, ignore_errors=True)
    traces.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if not launch(case, traces, scratch):
            logs = [path.read_text()[-1500:] for path in sorted(scratch.glob("log*.txt"))]
            print("\n---\n".join(logs), flush=True)
            return None, "a rank failed or the time ran out"
        files = [scratch / f"times{rank}.json" for rank in range(case.ranks)]
        clocks = [json.loads(path.read_text()) for path in files]
    row = truth(case, clocks)
    size = sum(path.stat().st_size for path in traces.iterdir())
    print(f"  {size / 1e6:.1f} MB in {len(list(traces.iterdir()))} files", flush=True)
    return row, complaint(case, row, block_means(case, clocks))


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    with path.open() as file:
        return {row["recording"]: row for row in csv.DictReader(file)}


def write_rows(path: Path, rows: dict[str, dict[str, Any]]) -> None:
    """All rows, in the order of the cases."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[case.name] for case in CASES if case.name in rows)


def record(case: Case, folder: Path, tries: int) -> None:
    """Run a case, again if it has to be; keep the last that ran through."""
    traces, table = folder / "judge" / case.name, folder / "truth.csv"
    for count in range(1, tries + 1):
        began = time.monotonic()
        row, wrong = attempt(case, traces)
        if row is not None:
            write_rows(table, {**read_rows(table), case.name: row})
        with (folder / "runs.csv").open("a") as file:
            csv.writer(file).writerow([case.name, count, wrong])
        told = row and [row[key] for key in COLUMNS[12:19]]
        print(case.name, count, f"{time.monotonic() - began:.0f}s", told, wrong, flush=True)
        if not wrong:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=[], help="recordings or scripts")
    parser.add_argument("--missing", action="store_true", help="those without a row of truth")
    parser.add_argument("--tries", type=int, default=TRIES)
    args = parser.parse_args()
    hurry()
    args.folder.mkdir(parents=True, exist_ok=True)
    done = read_rows(args.folder / "truth.csv") if args.missing else {}
    for case in CASES:
        wanted = not args.only or case.name in args.only or case.script in args.only
        if wanted and case.name not in done:
            record(case, args.folder, args.tries)


if __name__ == "__main__":
    main()
