"""Record the cases of `cases` on this machine's cores, every rank a process, over gloo.

    python -m benchmarks.ranks.record FOLDER [--half fit|judge] [--only NAME ...] [--missing]

Each case has a folder of traces, one per rank, under FOLDER/fit or FOLDER/judge; `truth.csv` beside
them has a row for each. The truth is measured in the same run without a profiler: blocks of steps with
the fault on and off by turns. A fault that does not stand out from its spread is run again for longer.
"""

from __future__ import annotations

import argparse
import csv
import gc
import itertools
import json
import os
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.ranks.cases import CASES, CLASSES, Case
from benchmarks.ranks.faults import UNEVEN, Fault
from benchmarks.ranks.meter import PAIRS, WARM_STEPS, Meter

SCRIPTS = {
    "ddp": "data_parallel",
    "fsdp2": "sharded",
    "hsdp": "sharded",
    "deepspeed": "sharded",
    "accelerate": "frameworks",
    "lightning": "frameworks",
    "pipeline": "pipelines",
    "tensor": "tensor_parallel",
}
LIBRARIES = {"deepspeed", "accelerate", "lightning"}
CASE_SECONDS, ATTEMPTS, MAX_FAILURES = 150.0, 3, 2
MAX_NOISE, MAX_PROFILED = 0.1, 1.25
"""Run again where blocks without a fault differ by more, or where profiled steps are as much longer."""
FIELDS = (
    "recording script half framework ranks fault culprit account class annotated shapes marked "
    "step_seconds_with step_seconds_without gain_share gain_low gain_high visible "
    "step_seconds_profiled schedule stages micro_batches bubble_share bubble_share_without "
    "stage_seconds"
).split()


def script_module(script: str) -> str:
    return f"benchmarks.ranks.{SCRIPTS[script.split('_')[0]]}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def run_rank(case: Case, rank: int, port: int, work: Path, block_steps: int) -> None:
    """One rank, in a process of its own, with the environment that torchrun gives."""
    rank_name, count = str(rank), str(case.ranks)
    os.environ.update(
        RANK=rank_name,
        LOCAL_RANK=rank_name,
        WORLD_SIZE=count,
        LOCAL_WORLD_SIZE=count,
        GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_RUN_ID="none",
        GLOO_SOCKET_IFNAME="lo",
    )
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    fault = Fault(case, rank, work)
    meter = Meter(case, fault, work / "traces", block_steps)
    getattr(import_module(script_module(case.script)), case.script)(case, fault, meter)
    meter.write(work / f"times-{rank}.json")


def start_rank(case: Case, rank: int, port: int, work: Path, block_steps: int) -> int:
    child = os.fork()
    if child:
        return child
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    log = os.open(work / f"log-{rank}.txt", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        run_rank(case, rank, port, work, block_steps)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def run_ranks(case: Case, work: Path, block_steps: int) -> str:
    """Run every rank; empty where all ended well, else why not."""
    port = free_port()
    (work / "traces").mkdir()
    running = {start_rank(case, rank, port, work, block_steps): rank for rank in range(case.ranks)}
    deadline = time.monotonic() + CASE_SECONDS * max(1, block_steps / case.block_steps)
    try:
        return wait_for(running, work, deadline)
    finally:
        for child in running:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def wait_for(running: dict[int, int], work: Path, deadline: float) -> str:
    """Wait until all ranks have ended, or one has failed, or it is too late."""
    while running:
        time.sleep(0.1)
        for child, rank in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                del running[child]
                if status:
                    return f"rank {rank} failed: " + _tail(work / f"log-{rank}.txt")
        if time.monotonic() > deadline:
            return "too long; rank 0: " + _tail(work / "log-0.txt")
    return ""


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-1500:] if path.exists() else ""


def block_seconds(ends: list[float], block_steps: int) -> list[float]:
    """Seconds per step of each block, on and off by turns, without its first step."""
    seconds = []
    for block in range(2 * PAIRS):
        first = WARM_STEPS + block * (block_steps + 1)
        seconds.append((ends[first + block_steps] - ends[first]) / block_steps)
    return seconds


def measure(case: Case, work: Path) -> dict[str, Any]:
    """Times over the blocks: medians, and the gains between neighbouring blocks."""
    times = [json.loads((work / f"times-{rank}.json").read_text()) for rank in range(case.ranks)]
    block_steps = times[0]["block_steps"]
    of_ranks = [block_seconds(rank["ends"], block_steps) for rank in times]
    blocks = [statistics.median(values) for values in zip(*of_ranks, strict=True)]
    on, off = statistics.median(blocks[::2]), statistics.median(blocks[1::2])
    pairs = list(itertools.pairwise(blocks))
    gains = [1 - b / a if n % 2 == 0 else 1 - a / b for n, (a, b) in enumerate(pairs)]
    gain, low, high = 1 - off / on, min(gains), max(gains)
    quiet = max(-low, high) < MAX_NOISE if case.fault == "none" else low > 0 and gain > high - low
    ends = times[0]["ends"]
    profiled = (ends[-1] - ends[-case.profiled_steps]) / (case.profiled_steps - 1)
    return {
        "step_seconds_with": round(on, 5),
        "step_seconds_without": round(off, 5),
        "gain_share": round(gain, 4) if case.fault != "none" else 0.0,
        "gain_low": round(low, 4),
        "gain_high": round(high, 4),
        "visible": quiet and profiled < MAX_PROFILED * on,
        "step_seconds_profiled": round(profiled, 5),
    }


def pipeline_columns(case: Case) -> dict[str, Any]:
    if not case.is_pipeline:
        return {}
    schedule = {
        "pipeline_interleaved": "interleaved 1F1B",
        "pipeline_gpipe": "GPipe",
        "pipeline_blocking": "GPipe",
    }.get(case.script, "1F1B")
    stages = case.ranks * case.stages_per_rank
    seconds = []
    for rank in range(case.ranks):
        layers = case.layers
        if case.fault == "uneven-stages" and case.culprit is not None:
            layers = UNEVEN[case.ranks][(rank - case.culprit - 1) % case.ranks]
        slower = case.amount if case.fault == "stage" and rank == case.culprit else 0.0
        seconds.append(3 * layers * case.layer_seconds * (1 + slower))
    idle, count = case.ranks - 1, case.fixed_micro_batches or case.micro_batches
    return {
        "schedule": schedule,
        "stages": stages,
        "micro_batches": case.micro_batches,
        "bubble_share": round(case.bubble_share(), 4),
        "bubble_share_without": round(idle / (case.stages_per_rank * count + idle), 4),
        "stage_seconds": ";".join(f"{value:.4f}" for value in seconds),
    }


def row_of(case: Case, measured: dict[str, Any]) -> dict[str, Any]:
    account, cause = CLASSES[case.fault]
    return {
        "recording": case.name,
        "script": case.script,
        "half": case.half,
        "framework": case.framework,
        "ranks": case.ranks,
        "fault": case.fault,
        "culprit": "" if case.culprit is None else case.culprit,
        "account": account,
        "class": cause,
        "annotated": case.annotated,
        "shapes": case.shapes,
        "marked": case.marked,
        **measured,
        **pipeline_columns(case),
    }


def record(case: Case, out: Path, *, quick: bool = False) -> dict[str, Any] | None:
    """Run a case until its fault stands out, at most `ATTEMPTS` times."""
    row, failures = None, 0
    for attempt in range(1 if quick else ATTEMPTS):
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            failure = run_ranks(case, work, 1 if quick else case.block_steps * 2**attempt)
            if failure:
                print(f"FAILED {case.name}: {failure}", flush=True)
                failures += 1
                if failures == MAX_FAILURES:
                    break
                continue
            row = row_of(case, measure(case, work))
            kept = out / case.half / case.name
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(work / "traces", kept)
        if row["visible"]:
            break
    return row


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {row["recording"]: row for row in csv.DictReader(file)}


def write_row(path: Path, row: dict[str, Any]) -> None:
    """Put one row in, in the order of the cases, the others as they were."""
    rows = {**read_rows(path), row["recording"]: row}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows[name] for name in CASES if name in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--half", choices=("fit", "judge"))
    parser.add_argument("--only", nargs="*", default=[], help="names of cases or of scripts")
    parser.add_argument("--missing", action="store_true", help="only what truth.csv does not have")
    parser.add_argument(
        "--quick", action="store_true", help="one step per block: no truth, a trial"
    )
    arguments = parser.parse_args()
    os.environ["DS_ACCELERATOR"] = "cpu"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the ranks are ended on the way out
    cases = [
        case
        for case in CASES.values()
        if arguments.half in (None, case.half)
        and (not arguments.only or {case.name, case.script} & set(arguments.only))
    ]
    for module in sorted({script_module(case.script) for case in cases}):
        import_module(module)  # once, before the ranks are forked
    gc.freeze()  # what the libraries made is none of the ranks' garbage
    failed = 0
    for case in cases:
        truth = arguments.out / case.half / "truth.csv"
        if arguments.missing and read_rows(truth).get(case.name, {}).get("visible") == "True":
            continue
        began = time.monotonic()
        row = record(case, arguments.out, quick=arguments.quick)
        failed += row is None or not row["visible"]
        if row is not None:
            write_row(truth, row)
            shown = [row[key] for key in FIELDS[12:19]]
            print(case.name, *shown, f"{time.monotonic() - began:.0f} s", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
