"""Errors of predicted memory, source by source: `python -m benchmarks.memory_report`.

What each source measures decides what is compared:

- our H200 runs: the allocator's peak (`torch.cuda.max_memory_allocated`), GB of 1e9 bytes;
- BigScience: the first or last node's maximum, whole "GB", taken for GiB of `nvidia-smi` (its notes
  use that tool, and call 77 the most of an 80 GB device): reserve and context, fullest stage;
- torchtitan: the allocator's reserved peak (components/metrics.py), GiB, fullest rank;
- nanotron: `max_memory_allocated` of world rank 0 (helpers.py), GiB: the first pipeline stage. The
  sweep does not say how tensor parallelism was run; rows with tp = 1 do not depend on it.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from computeflow.catalog import load_catalog
from computeflow.catalog.parameters import count_parameters
from computeflow.errors import ComputeFlowError
from computeflow.prediction.memory import RESERVE, PredictedMemory, memory, stage_memory
from computeflow.prediction.published_runs import PACKAGED, MeasuredRun, case_of
from computeflow.prediction.step_inputs import StepInputs, of_job
from computeflow.workload import Layouts

ROOT = Path(__file__).parents[1]
FACTS = load_catalog()
GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    row_id: str
    group: str
    measured_bytes: float
    predicted_bytes: float

    @property
    def error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryErrors:
    """Relative errors of predicted against measured bytes."""

    n: int
    mape: float
    median: float
    bias: float
    """Median of the signed errors."""
    worst: float
    worst_row: str


def memory_errors(rows: Iterable[Row]) -> dict[str, MemoryErrors]:
    """Errors by group, in order of appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return {name: _summarise(group) for name, group in groups.items()}


def _summarise(rows: list[Row]) -> MemoryErrors:
    signed = np.array([row.error for row in rows])
    size = np.abs(signed)
    return MemoryErrors(
        n=len(rows),
        mape=float(size.mean()),
        median=float(np.median(size)),
        bias=float(np.median(signed)),
        worst=float(size.max()),
        worst_row=rows[int(size.argmax())].row_id,
    )


def own_rows() -> list[Row]:
    rows = []
    for name in ("steps", "fresh"):
        path = ROOT / "benchmarks" / "data" / "h200" / f"{name}.csv"
        for row, case in _cases(path.read_text()):
            held = memory(_batch(case))
            group = "H200, fresh" if name == "fresh" else "H200"
            group = "H200, held out" if row["held_out"] == "1" else group
            rows.append(_row(row, group, 1e9, float(held.allocated[0])))
    return rows


def published_rows() -> list[Row]:
    rows = []
    for row, case in _cases(PACKAGED.read_text()):
        batch = _batch(case)
        if case.stack.name == "nanotron":
            rows.append(_row(row, row["source"], GIB, float(_first_stage(batch).allocated[0])))
            continue
        held = memory(batch)
        reserved = float(held.allocated[0]) * RESERVE[case.layout.recompute]
        if row["source"] == "bigscience-bloom":
            reserved += float(held.by_owner["overhead"][0])
        rows.append(_row(row, row["source"], GIB, reserved))
    return rows


def sweep_rows(path: Path) -> list[Row]:
    """Rows of nanotron's layouts, with the sequence split (reduce-scatter) and without (all-reduce)."""
    rows = []
    for row, case in _cases(gzip.decompress(path.read_bytes()).decode()):
        split, whole = (
            float(
                _first_stage(replace(_batch(case), sequence_parallel=np.full(1, on))).allocated[0]
            )
            for on in (1.0, 0.0)
        )
        measured = GIB * float(row["memory_gb"])
        nearer = min((split, whole), key=lambda value: abs(value - measured))
        if case.layout.tp == 1:
            rows.append(_row(row, "nanotron sweep, tp = 1", GIB, split))
        rows.append(_row(row, "nanotron sweep, reduce-scatter assumed", GIB, split))
        rows.append(_row(row, "nanotron sweep, all-reduce assumed", GIB, whole))
        rows.append(_row(row, "nanotron sweep, the nearer of the two", GIB, nearer))
    return rows


def _cases(text: str) -> Iterable[tuple[Mapping[str, str], MeasuredRun]]:
    for row in csv.DictReader(io.StringIO(text)):
        if not (row.get("memory_gb") and row.get("micro_batch")):
            continue
        try:
            case = case_of(row, FACTS)
        except ComputeFlowError:
            continue
        yield row, _tied(row, case)


def _tied(row: Mapping[str, str], case: MeasuredRun) -> MeasuredRun:
    """Whether embedding and head are tied, by the parameter count where the source states it."""
    model = replace(case.job.model, tied=True)
    stated = float(row.get("params_b") or 0)
    sizes = {
        tied: count_parameters(replace(model, tied=tied)).total / 1e9 for tied in (False, True)
    }
    tied = bool(stated) and abs(sizes[True] - stated) < abs(sizes[False] - stated)
    return replace(case, job=replace(case.job, model=replace(model, tied=tied)))


def _batch(case: MeasuredRun) -> StepInputs:
    return of_job(case.job, case.cluster, Layouts.of([case.layout]), case.stack)


def _first_stage(batch: StepInputs) -> PredictedMemory:
    return stage_memory(batch, np.zeros(len(batch)))


def _row(row: Mapping[str, str], group: str, unit: float, predicted: float) -> Row:
    return Row(
        row_id=row["row_id"],
        group=group,
        measured_bytes=unit * float(row["memory_gb"]),
        predicted_bytes=predicted,
    )


def all_rows() -> list[Row]:
    rows = [*own_rows(), *published_rows()]
    data = Path(os.environ.get("COMPUTEFLOW_DATA", "../shared/data"))
    path = data / "throughput_layout_sweep.csv.gz"
    return [*rows, *sweep_rows(path)] if path.is_file() else rows


def markdown(errors: Mapping[str, MemoryErrors]) -> str:
    lines = ["| runs | n | MAPE | median | bias | worst |", "|---|---:|---:|---:|---:|---:|"]
    for name, e in errors.items():
        lines.append(
            f"| {name} | {e.n} | {100 * e.mape:.1f} % | {100 * e.median:.1f} % | "
            f"{100 * e.bias:+.1f} % | {100 * e.worst:.0f} % ({e.worst_row}) |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(memory_errors(all_rows())))
    sys.exit(0)
