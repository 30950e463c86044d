"""Record what the torch profiler costs: steps without a profiler, and a trace of a few with it.

    python -m benchmarks.foreign.record_overhead OUT [--seconds 480] [--first 0] [--only opt lstm]

OUT gets `truth-overhead.csv`, rewritten after every case, and archives of traces (xz inside tar, at
most 15 MB each). Traces are packed after the last case, so that nothing else runs beside a measured
step. A case that fails says so and is left out; where time ends, what is left is listed.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.foreign.loops import Profiling, Watch, run
from benchmarks.foreign.mistakes import Variant
from benchmarks.foreign.models import MODELS
from benchmarks.foreign.record import archive, in_a_process, load, pack, times

FIELDS = (
    "recording job loop size batch length precision optimizer compiled loss_read shapes stack memory "
    "profiled_steps repeats step_seconds_profiled step_seconds_unprofiled step_seconds_low "
    "step_seconds_high trace_xz_bytes archived torch gpu cpu"
).split()
REPEATS = 5
REPEAT_SECONDS = 0.4
_CASE_SECONDS = 40.0
_TRACE_BYTES = 3_000_000
"""A packed trace above this is left out of the archives."""
_PRECISIONS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "weights": {"autocast": False, "bf16_weights": True},
    "fp32": {"autocast": False},
}
_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "fused": {},
    "foreach": {"fused": False, "foreach": True},
    "sgd": {"sgd": True},
}

CASES = """
opt small plain bf16 fused shapes
mobilenet small plain bf16 fused
roberta small plain bf16 fused shapes
lstm small plain fp32 fused
bloom middle plain bf16 fused shapes
efficientnet small lightning bf16 fused
whisper small plain bf16 foreach shapes
perceptron small plain fp32 sgd
gpt-neox small plain weights fused shapes stack
falcon middle accelerate bf16 fused
swin small plain bf16 fused shapes
albert small trainer bf16 fused
densenet middle plain bf16 sgd shapes
phi small plain bf16 fused memory
wav2vec small plain bf16 fused shapes
encoder small plain bf16 foreach
distilbert small accelerate bf16 fused shapes item
gemma middle plain bf16 fused
recommender small plain fp32 foreach shapes
electra small plain bf16 fused stack
clip small plain bf16 fused shapes
regnet middle plain bf16 fused
deberta small plain bf16 fused shapes
bart small trainer bf16 fused
opt large plain bf16 fused shapes
mamba small plain bf16 fused
shufflenet small plain fp32 sgd shapes memory
stablelm small plain weights fused
dinov2 middle plain bf16 fused shapes
starcoder small lightning bf16 fused
swin-library small plain bf16 foreach shapes stack
roberta middle trainer bf16 fused
gptj small plain fp32 fused shapes
mobilenet middle plain bf16 fused item
efficientnet large plain bf16 fused shapes
bloom small plain bf16 fused
falcon small plain weights foreach shapes
gemma small accelerate bf16 fused stack
densenet small plain bf16 fused
regnet small lightning bf16 sgd shapes
opt middle plain bf16 fused
whisper middle plain bf16 fused shapes
electra middle plain bf16 foreach
lstm middle plain bf16 fused shapes
swin middle plain bf16 fused
gpt-neox middle plain weights fused shapes memory
dinov2 small plain bf16 fused
encoder middle plain fp32 fused shapes
wav2vec middle plain bf16 fused
clip middle plain bf16 fused shapes
roberta large plain bf16 fused
distilbert small plain bf16 fused shapes stack
phi middle plain bf16 sgd item
perceptron middle plain bf16 fused shapes
mobilenet small plain bf16 fused stack
lstm small plain bf16 fused shapes stack
encoder small accelerate bf16 fused memory
opt small trainer bf16 fused shapes stack
bart middle plain bf16 fused
swin large plain bf16 fused shapes
perceptron small plain bf16 fused compiled
encoder small plain bf16 fused shapes compiled
distilbert small plain bf16 fused compiled
"""
"""Model, size, loop, precision, optimizer and what is switched on: the most diverse first."""


@dataclass(frozen=True, kw_only=True)
class Case:
    model: str
    size: str
    loop: str
    precision: str
    optimizer: str
    switches: frozenset[str]

    @property
    def recording(self) -> str:
        parts = [self.model, self.size, self.loop, self.precision, self.optimizer]
        return "_".join(parts + sorted(self.switches))

    @property
    def profiling(self) -> Profiling:
        """Stacks make a trace several times as large: two steps of them."""
        return Profiling(
            shapes="shapes" in self.switches,
            stack="stack" in self.switches,
            memory="memory" in self.switches,
            steps=2 if "stack" in self.switches else 3,
        )

    @property
    def variant(self) -> Variant:
        return Variant(
            log_every_step="item" in self.switches,
            **_PRECISIONS[self.precision],
            **_OPTIMIZERS[self.optimizer],
        )


def read_case(line: str) -> Case:
    model, size, loop, precision, optimizer, *switches = line.split()
    return Case(
        model=model,
        size=size,
        loop=loop,
        precision=precision,
        optimizer=optimizer,
        switches=frozenset(switches),
    )


def record(case: Case, folder: Path) -> dict[str, object]:
    job = MODELS[case.model].job(case.model, case.size, case.loop, "compiled" in case.switches)
    watch = Watch(
        str(folder / f"{case.recording}.json"),
        repeats=REPEATS,
        repeat_seconds=REPEAT_SECONDS,
        profiling=case.profiling,
    )
    run(job, case.variant, watch)
    return dict(
        recording=case.recording,
        job=case.model,
        loop=case.loop,
        size=case.size,
        batch=job.batch,
        length=MODELS[case.model].sizes[case.size][1],
        precision=case.precision,
        optimizer=case.optimizer,
        compiled=job.compiled,
        loss_read="item" in case.switches,
        shapes=case.profiling.shapes,
        stack=case.profiling.stack,
        memory=case.profiling.memory,
        profiled_steps=case.profiling.steps,
        repeats=len(watch.seconds),
        step_seconds_profiled=round(watch.profiled_seconds or 0.0, 6),
        **times("step_seconds_unprofiled", "step_seconds_low", "step_seconds_high", watch.seconds),
        torch=torch.__version__,
        gpu=torch.cuda.get_device_name(),
        cpu=cpu_name(),
    )


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, name = line.partition(":")
        if key.strip() == "model name":
            return name.strip()
    return "unknown"


def record_all(cases: list[Case], work: Path, out: Path, ends: float) -> list[dict[str, Any]]:
    """Rows of the cases that time allows; `ends` is on the monotonic clock."""
    rows: list[dict[str, Any]] = []
    for number, case in enumerate(cases):
        start = time.monotonic()
        if start > ends:
            print("no time for", *(left.recording for left in cases[number:]), flush=True)
            break
        row = in_a_process(case.recording, partial(record, case, work), work, _CASE_SECONDS)
        if row is None:
            continue
        rows.append(row)
        write_rows(rows, out)
        print(
            f"{number} {case.recording}: {row['step_seconds_unprofiled']} profiled "
            f"{row['step_seconds_profiled']} ({time.monotonic() - start:.1f} s)",
            flush=True,
        )
    return rows


def write_rows(rows: list[dict[str, Any]], out: Path) -> None:
    with (out / "truth-overhead.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)


def keep_traces(
    rows: list[dict[str, Any]], work: Path, out: Path, pool: ProcessPoolExecutor
) -> None:
    """Pack all traces, archive those that are small enough, and note in the rows which are."""
    packed = list(pool.map(pack, [work / f"{row['recording']}.json" for row in rows]))
    for row, path in zip(rows, packed, strict=True):
        row["trace_xz_bytes"] = path.stat().st_size
        row["archived"] = row["trace_xz_bytes"] <= _TRACE_BYTES
        if not row["archived"]:
            print(f"{path.name} is left out: {row['trace_xz_bytes']} bytes", flush=True)
    archive(
        [path for row, path in zip(rows, packed, strict=True) if row["archived"]], out, "overhead"
    )
    write_rows(rows, out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # weights are random, nothing is looked up
    ends = time.monotonic() + arguments.seconds
    work = Path("/tmp/overhead")
    work.mkdir(exist_ok=True)
    cases = [read_case(line) for line in CASES.strip().splitlines()][arguments.first :]
    cases = [case for case in cases if not arguments.only or case.model in arguments.only]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(abs, range(64)))  # its processes, before the libraries
        print(cpu_name(), torch.__version__, len(cases), "cases", flush=True)
        load(model.library_class for model in MODELS.values() if model.library_class)
        rows = record_all(cases, work, arguments.out, ends)
        keep_traces(rows, work, arguments.out, pool)
    print(len(rows), "of", len(cases), "recorded", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
