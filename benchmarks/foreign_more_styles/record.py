"""Record the scripts: traces with the mistake, times without a profiler with and without it.

    python -m benchmarks.foreign_more_styles.record OUT [--seconds 540] [--only nano_own-adam] [--tiny]

OUT gets `truth.csv` and archives of traces (xz inside tar). A case that fails says so and is left out.
Where time ends, what is left is listed. `--tiny` only proves that all scripts run, without a device.
Other packages of scripts are recorded by `main` with a `Collection` of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gc
import io
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.foreign.loops import Profiling
from benchmarks.foreign.record import FIELDS, archive, in_a_process, pack, times
from benchmarks.foreign_more_styles.common import (
    Case,
    CyclicWatch,
    HostWatch,
    be_tiny,
    is_tiny,
    watched,
)


@dataclass(frozen=True, kw_only=True)
class Collection:
    """The scripts of one package."""

    package: str
    archive: str
    scripts: dict[str, tuple[str, str]]
    """Each script: how its loop is written and what it trains."""
    models: str
    """Models of transformers to import before the first fork."""
    fitted: frozenset[str] = field(default_factory=frozenset)
    """Scripts to whose recordings something may be fitted; all others judge."""
    together: int = 60_000_000
    """Bytes of all traces in one folder."""

    def script(self, name: str) -> Any:
        return import_module(f"{self.package}.scripts.{name}")

    def half(self, script: str) -> str:
        return "fit" if script in self.fitted else "judge"


MORE_STYLES = Collection(
    package="benchmarks.foreign_more_styles",
    archive="more-styles",
    scripts={
        "nano": ("plain", "decoder"),
        "gemma": ("trainer", "decoder"),
        "dlrm": ("plain", "recommender"),
        "diffusion": ("plain, fp16 scaler", "diffusion"),
        "swin": ("lightning", "vision"),
        "moe": ("plain", "experts"),
        "opt": ("accelerate", "decoder"),
        "gan": ("lightning by hand", "gan"),
        "distil": ("trainer", "encoder"),
        "clip": ("plain class", "contrastive"),
        "vae": ("torch.func", "autoencoder"),
        "whisper": ("accelerate", "speech"),
        "lstm": ("plain", "speech"),
        "segment": ("plain", "segmentation"),
        "neox": ("plain, graphs", "decoder"),
    },
    models="Gemma OPT DistilBert Swin CLIP Whisper GPTNeoX",
)
_ENDING_SECONDS = 25
"""The last traces are packed and archived in this time."""
_LARGEST = 4_500_000


def in_order(cases: list[tuple[str, Case]]) -> list[tuple[str, Case]]:
    """The cause recorded least so far comes next, of the script recorded least so far.

    The compiled ones, which take long, stand between.
    """
    left, ordered = [c for c in cases if c[1].limit_seconds <= 60], []
    causes: Counter[str] = Counter()
    scripts: Counter[str] = Counter()
    while left:
        chosen = min(
            left,
            key=lambda c: (causes[c[1].cause] // (4 if c[1].cause == "none" else 1), scripts[c[0]]),
        )
        left.remove(chosen)
        ordered.append(chosen)
        causes[chosen[1].cause] += 1
        scripts[chosen[0]] += 1
    for number, slow in enumerate(c for c in cases if c[1].limit_seconds > 60):
        ordered.insert(15 * (number + 1), slow)
    return ordered


def record(
    collection: Collection, script: str, case: Case, folder: Path, shapes: bool
) -> dict[str, object]:
    train = collection.script(script).train
    watch = HostWatch if is_tiny() else CyclicWatch
    profiling = Profiling(shapes=shapes, stack=case.stack, steps=max(3, case.cycle))
    right: list[float] = []
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        if case.cause != "none":  # first: no profiler has run yet
            right = watched(train, case.right, watch(None, case.cycle, profiling)).seconds
            _free()
        trace = str(folder / f"{case.name}.json")
        seen = watched(train, case.wrong, watch(trace, case.cycle, profiling))
    loop, kind = collection.scripts[script]
    return dict(
        recording=case.name,
        job=script,
        loop=loop,
        kind=kind,
        half=collection.half(script),
        mistake=case.name.partition("_")[2],
        cause=case.cause,
        shapes=shapes,
        step_seconds_profiled=seen.profiled_seconds,
        **times("step_seconds_unprofiled", "step_seconds_low", "step_seconds_high", seen.seconds),
        **times("step_seconds_fixed", "fixed_low", "fixed_high", right),
    )


def _free() -> None:
    gc.collect()
    if not is_tiny():
        torch.cuda.empty_cache()


def load(collection: Collection) -> dict[str, Any]:
    """Import libraries and scripts before the first fork; the device is touched in children alone."""
    for name in ("accelerate", "pytorch_lightning", "torchvision.models.segmentation"):
        try:
            import_module(name)
        except Exception as error:
            print(f"{name} is not there: {error}"[:300], flush=True)
    transformers = import_module("transformers")
    for name in ("Trainer", *(f"{model}Model" for model in collection.models.split())):
        getattr(transformers, name)
    return {name: collection.script(name) for name in collection.scripts}


def kept(packed: list[Path], rows: list[dict[str, Any]], together: int) -> list[Path]:
    """Traces small enough to keep, the largest left out until all fit together."""
    fit = sorted(
        (path for path in packed if path.stat().st_size <= _LARGEST),
        key=lambda path: path.stat().st_size,
    )
    while sum(path.stat().st_size for path in fit) > together:
        fit.pop()
    for path in packed:
        if path not in fit:
            print(f"too large: {path.name} {path.stat().st_size}", flush=True)
    names = {path.name.partition(".")[0] for path in fit}
    rows[:] = [row for row in rows if row["recording"] in names]
    return [path for path in packed if path in fit]


def say(number: int, row: dict[str, Any], seconds: float) -> None:
    print(
        f"{number} {row['recording']} ({row['cause']}): {row['step_seconds_unprofiled']} "
        f"profiled {row['step_seconds_profiled']:.5f} fixed {row['step_seconds_fixed']} "
        f"({seconds:.1f} s)",
        flush=True,
    )


def record_all(
    collection: Collection,
    cases: list[tuple[str, Case]],
    until: float,
    work: Path,
    pool: ProcessPoolExecutor,
) -> tuple[list[dict[str, Any]], list[Future[Path]]]:
    rows: list[dict[str, Any]] = []
    packing: list[Future[Path]] = []
    for number, (script, case) in enumerate(cases):
        start = time.monotonic()
        if until - start < 8:
            print("no time for", [case.name for _, case in cases[number:]], flush=True)
            break
        make_row = partial(record, collection, script, case, work, number % 2 == 0)
        limit = min(case.limit_seconds, until - start)
        row = in_a_process(case.name, make_row, work, limit)
        if row is None:
            continue
        rows.append(row)
        packing.append(pool.submit(pack, work / f"{case.name}.json"))
        say(number, row, time.monotonic() - start)
    return rows, packing


def chosen_cases(collection: Collection, arguments: argparse.Namespace) -> list[tuple[str, Case]]:
    cases = [
        (name, case)
        for name, module in load(collection).items()
        for case in module.CASES
        if arguments.half in ("both", collection.half(name))
    ]
    if arguments.only:
        cases = [c for c in cases if {c[0], c[1].name} & set(arguments.only)]
    return [c for c in in_order(cases) if not {c[0], c[1].name} & set(arguments.skip)]


def write_truth(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)


def main(collection: Collection = MORE_STYLES) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--half", choices=("fit", "judge", "both"), default="both")
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--only", nargs="*", default=[], help="recordings or scripts")
    parser.add_argument("--skip", nargs="*", default=[], help="recordings or scripts")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds - _ENDING_SECONDS
    if arguments.tiny:
        be_tiny()
        torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    arguments.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp())
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(abs, range(4)))  # its processes, before the libraries
        cases = chosen_cases(collection, arguments)
        gc.collect()
        gc.freeze()  # a collection in a script looks at what the script made
        rows, packing = record_all(collection, cases, until, work, pool)
        packed = kept([future.result() for future in packing], rows, collection.together)
    ending = "" if arguments.half == "both" else f"-{arguments.half}"
    archive(packed, arguments.out, collection.archive + ending)
    write_truth(arguments.out / f"truth{ending}.csv", rows)
    print(torch.__version__, len(rows), "recorded of", len(cases), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
