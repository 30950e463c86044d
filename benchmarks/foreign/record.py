"""Record the corpus: traces with the mistake, times without a profiler with and without it.

    python -m benchmarks.foreign.record OUT [--half fit|judge] [--seconds 560] [--only gpt2]

OUT gets `truth-HALF.csv` and archives of traces (xz inside tar, at most 15 MB each). A case that fails
says so and is left out. Where time ends, what is left is listed.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import lzma
import os
import signal
import statistics
import sys
import tarfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.foreign.jobs import JOBS
from benchmarks.foreign.loops import Profiling, Watch, run
from benchmarks.foreign.mistakes import CASES, MISTAKES

FIELDS = (
    "recording job loop kind half mistake cause shapes step_seconds_profiled step_seconds_unprofiled "
    "step_seconds_low step_seconds_high step_seconds_fixed fixed_low fixed_high"
).split()
_ARCHIVE_BYTES = 15_000_000
_CASE_SECONDS = 60


def record(name: str, mistake: str, folder: Path, number: int) -> dict[str, object]:
    job = JOBS[name]
    cause, wrong, right = MISTAKES[mistake]
    recording = f"{name}_{mistake}"
    shapes = number % 2 == 0
    seen = Watch(str(folder / f"{recording}.json"), profiling=Profiling(shapes=shapes))
    run(job, wrong(), seen)
    _free()
    fixed = Watch(None)
    if mistake != "none":
        run(job, right(), fixed)
        _free()
    return dict(
        recording=recording,
        job=name,
        loop=job.loop,
        kind=job.kind,
        half="judge" if job.judged else "fit",
        mistake=mistake,
        cause=cause,
        shapes=shapes,
        step_seconds_profiled=seen.profiled_seconds,
        **times("step_seconds_unprofiled", "step_seconds_low", "step_seconds_high", seen.seconds),
        **times("step_seconds_fixed", "fixed_low", "fixed_high", fixed.seconds),
    )


def times(middle: str, low: str, high: str, seconds: list[float]) -> dict[str, object]:
    if not seconds:
        return {middle: "", low: "", high: ""}
    return {
        middle: round(statistics.median(seconds), 6),
        low: round(min(seconds), 6),
        high: round(max(seconds), 6),
    }


def in_a_process(
    name: str, make_row: Callable[[], dict[str, object]], work: Path, limit_seconds: float
) -> dict[str, Any] | None:
    """Forked for every case: what one leaves behind in the process is not the next one's."""
    kept = work / "row.json"
    kept.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        try:
            kept.write_text(json.dumps(make_row()))
        except BaseException:
            print(f"FAILED {name}\n{traceback.format_exc()[-1200:]}", flush=True)
        os._exit(0)
    deadline = time.monotonic() + limit_seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            print(f"FAILED {name}: more than {limit_seconds:g} s", flush=True)
            return None
        time.sleep(0.02)
    if not kept.exists():
        if os.WIFSIGNALED(ended[1]):
            print(f"FAILED {name}: ended by signal {os.WTERMSIG(ended[1])}", flush=True)
        return None
    row: dict[str, Any] = json.loads(kept.read_text())
    return row


def load(classes: Iterable[str]) -> None:
    """Import the libraries before the first fork; the device is touched in the children alone."""
    for name in ("accelerate", "pytorch_lightning", "torchvision.models"):
        import_module(name)
    transformers = import_module("transformers")
    assert transformers.Trainer
    for name in classes:
        try:
            getattr(transformers, name)
        except Exception as error:
            print(f"{name} is not there: {error}"[:300], flush=True)


def _free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def pack(trace: Path) -> Path:
    """Shorter: numbers and names as they are, spaces and repeated metadata's layout gone."""
    packed = trace.with_suffix(".json.xz")
    text = json.dumps(json.loads(trace.read_text()), separators=(",", ":"))
    packed.write_bytes(lzma.compress(text.encode(), preset=6))
    trace.unlink()
    return packed


def archive(packed: list[Path], out: Path, half: str) -> None:
    groups: list[list[Path]] = [[]]
    size = 0
    for path in packed:
        if size + path.stat().st_size > _ARCHIVE_BYTES and groups[-1]:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += path.stat().st_size
    for number, group in enumerate(groups):
        with tarfile.open(out / f"{half}-{number}.tar", "w") as tar:
            for path in group:
                tar.add(path, path.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--half", choices=("fit", "judge", "both"), default="both")
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--mistakes", nargs="*", default=[])
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    began = time.monotonic()
    work = Path("/tmp/foreign")
    work.mkdir(exist_ok=True)
    cases = [
        (name, mistake)
        for name, mistakes in CASES.items()
        for mistake in mistakes
        if arguments.half in ("both", "judge" if JOBS[name].judged else "fit")
        and (not arguments.only or name in arguments.only)
        and (not arguments.mistakes or mistake in arguments.mistakes)
    ]
    rows, packing = [], []
    with ProcessPoolExecutor(6) as pool:
        list(pool.map(abs, range(6)))  # its processes, before the libraries
        load(f"{name}Model" for name in "Bert GPT2 Llama Mixtral Qwen2 T5 ViT".split())
        for number, (name, mistake) in enumerate(cases):
            if number < arguments.first:
                continue
            if time.monotonic() - began > arguments.seconds:
                print("no time for", cases[number:], flush=True)
                break
            start = time.monotonic()
            make_row = partial(record, name, mistake, work, number)
            row = in_a_process(f"{name} {mistake}", make_row, work, _CASE_SECONDS)
            if row is None:
                continue
            rows.append(row)
            packing.append(pool.submit(pack, work / f"{row['recording']}.json"))
            print(
                f"{number} {row['recording']}: {row['step_seconds_unprofiled']} profiled "
                f"{row['step_seconds_profiled']:.5f} fixed {row['step_seconds_fixed']} "
                f"({time.monotonic() - start:.1f} s)",
                flush=True,
            )
        packed = [future.result() for future in packing]
    archive(packed, arguments.out, arguments.half)
    with (arguments.out / f"truth-{arguments.half}-{arguments.first}.csv").open(
        "w", newline=""
    ) as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    print(torch.__version__, len(rows), "recorded", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
