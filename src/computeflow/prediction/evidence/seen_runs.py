"""Measured runs as evidence: what kind each was, and by how much the formulas missed it.

`seen_runs.csv` beside this file is made by `python -m benchmarks.collect_cases --evidence` from the
packaged tables of published runs and our own H200's; rows that are doubtful, or do not state their
precision or software, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from computeflow.catalog import Accelerator
from computeflow.files.parsing import parse_csv
from computeflow.files.reading import read_text
from computeflow.prediction.stack import Stack
from computeflow.prediction.step_inputs import LOW_PRECISIONS, generation_of
from computeflow.workload import Job

PACKAGED = Path(__file__).with_name("seen_runs.csv")
LONG = 16384
"""Tokens in a sequence from which a context is long."""
YOUNG = 1.5
"""Years from a device's launch in which its kernels are still being written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What runs have in common: runs alike in a trait miss the formulas alike."""

    device: str
    generation: str
    """Devices that share kernels: a vendor's architecture."""
    stack: str
    family: str
    """Stacks that share kernels and habits."""
    kind: str
    young: bool
    """Whether the device was new when the stack was released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRun:
    row_id: str
    source: str
    traits: Traits
    gpus: int
    log_ratio: float
    """ln of measured over predicted time, from formulas alone."""


def traits_of(job: Job, device: Accelerator, stack: Stack) -> Traits:
    return Traits(
        device=device.name,
        generation=device_family(device),
        stack=stack.name,
        family=stack.family,
        kind=range_kind(job),
        young=stack.year - device.launch_year < YOUNG,
    )


def range_kind(job: Job) -> str:
    """The kind that a job's range belongs to; what is harder to predict comes first."""
    if any(block.experts for block in job.model.blocks):
        return "experts"
    if job.training != "full":
        return "low-rank"
    if job.precision in LOW_PRECISIONS:
        return "low precision"
    return "long context" if job.seq_len >= LONG else "dense"


def device_family(device: Accelerator) -> str:
    generation = generation_of(device.name)
    return f"{device.vendor} {generation}" if generation != "other" else device.vendor


@cache
def seen_runs(path: Path = PACKAGED) -> tuple[SeenRun, ...]:
    names = {field.name for field in fields(Traits)} - {"young"}
    return tuple(
        SeenRun(
            row_id=row["row_id"],
            source=row["source"],
            traits=Traits(
                **{name: row[name] for name in names},
                young=row["young"] == "1",
            ),
            gpus=int(row["gpus"]),
            log_ratio=float(row["log_ratio"]),
        )
        for _, row in parse_csv(read_text(path), str(path))
    )
