"""The ledger of 109 days of a cluster from its accounting, written to benchmarks/reports/accounting.md.

The jobs are those of the public Philly trace (when, how long, how many GPUs, whose team); what it does
not carry is drawn with a fixed seed: states at the published shares, waits with the published median
and mean, users, and nodes of eight GPUs (a job of more takes several), one of which fails twice as many
jobs as the others. Sums are checked with plain Python from the trace, not from the text. That nodes
which are alike are not named is checked by handing the states to other jobs at random. The sweep over
the queue (GPUs that were free while jobs waited) is timed with the nodes listed, on all jobs and on the
first quarter of them.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from computeflow.catalog import load_catalog
from computeflow.telemetry.accounting.accounting_source import AccountingSource, read_jobs
from computeflow.telemetry.accounting.attempts_by_node import pairs_of
from computeflow.telemetry.accounting.jobs import AttemptRows, JobAttempts
from computeflow.telemetry.accounting.queue_idle import split_idle
from computeflow.telemetry.accounting.slurm_text import NodeState
from computeflow.telemetry.accounting.suspect_nodes import find_suspect_nodes
from computeflow.telemetry.source_reports import SourceReport, SourceRequest
from computeflow.views.sources import observed_tables
from computeflow.views.tables import to_text

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "reports" / "accounting.md"
BEGIN = 1_506_816_000
"""Start of the period, 2017-10-01, as the trace counts from zero."""
NODES = 320
BAD = "gpu-0017"
FAILED, CANCELLED = 0.305, 0.09
"""Shares of jobs in the published summary of the trace."""
WAIT_MEDIAN, WAIT_MEAN = 189.0, 3760.6
"""Seconds in the same summary; drawn as a log-normal."""
SHUFFLES = 200
HEADER = "JobID|JobName|User|Account|State|Submit|Start|End|AllocTRES|NodeList"


def jobs(folder: Path) -> Iterator[dict[str, str]]:
    with gzip.open(folder / "cluster" / "philly.csv.gz", "rt", newline="") as file:
        yield from csv.DictReader(file)


def sacct_lines(folder: Path) -> Iterator[str]:
    """Lines as `sacct -a -P` writes them."""
    draw = random.Random(7)
    spread = math.sqrt(2 * math.log(WAIT_MEAN / WAIT_MEDIAN))
    yield HEADER
    for number, row in enumerate(jobs(folder)):
        gpus, start = int(row["num_gpus"]), BEGIN + int(row["submit_time"])
        end = start + int(row["duration"])
        count = max(1, math.ceil(gpus / 8))
        first = draw.randrange(NODES - count)
        nodes = [f"gpu-{first + offset:04d}" for offset in range(count)]
        failing = min(FAILED * (2 if BAD in nodes else 1), 0.95)
        state = draw.random()
        word = (
            "FAILED"
            if state < failing
            else "CANCELLED by 1001"
            if state < failing + CANCELLED
            else "COMPLETED"
        )
        listed = nodes[0] if count == 1 else f"gpu-[{first:04d}-{first + count - 1:04d}]"
        tres = f"billing={4 * gpus},cpu={4 * gpus},gres/gpu={gpus},mem={32 * gpus}G,node={count}"
        submit = start - round(draw.lognormvariate(math.log(WAIT_MEDIAN), spread))
        user = f"{row['user_vc']}-{draw.randrange(8)}"
        yield "|".join(
            [
                str(number + 1),
                f"job{number}",
                user,
                row["user_vc"],
                word,
                _iso(submit),
                _iso(start),
                _iso(end),
                tres,
                listed,
            ]
        )


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def write_sacct(folder: Path, path: Path) -> None:
    with path.open("w") as file:
        file.writelines(f"{line}\n" for line in sacct_lines(folder))


def observe(path: Path) -> tuple[SourceReport, float]:
    """The report, and the CPU-seconds it took."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    (observed,) = AccountingSource().observe([path], SourceRequest(catalog=load_catalog()))
    after = resource.getrusage(resource.RUSAGE_SELF)
    return observed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def named_by_chance(path: Path) -> int:
    """Number of clusters of alike nodes, of `SHUFFLES`, in which a node is named."""
    jobs = read_jobs([path]).jobs
    pairs = pairs_of(jobs, jobs.gpus > 0)
    draw = np.random.default_rng(11)
    return sum(
        bool(find_suspect_nodes(replace(jobs, state_of=draw.permutation(jobs.state_of)), pairs)[0])
        for _ in range(SHUFFLES)
    )


def sweep_seconds(observed: SourceReport, count: int) -> float:
    """CPU-seconds of the sweep over the queue of the first jobs, the least of three."""
    jobs = first_jobs(observed.columns.jobs, count)
    nodes = [NodeState(name=f"gpu-{n:04d}", gpus=8.0, state="IDLE") for n in range(NODES)]
    first, last = float(jobs.start.min()), float(jobs.end.max())
    times = []
    for _ in range(3):
        before = time.process_time()
        split_idle(jobs, nodes, first, last, gpus=8 * NODES, idle=math.inf, placed=True)
        times.append(time.process_time() - before)
    return min(times)


def first_jobs(jobs: JobAttempts, count: int) -> JobAttempts:
    rows = AttemptRows()
    for index in range(min(count, len(jobs))):
        job = jobs.row(index)
        rows.add(
            job.job,
            state=job.state,
            gpus=job.gpus,
            start=float(jobs.start[index]),
            end=float(jobs.end[index]),
            submit=float(jobs.submit[index]),
            nodes=job.nodes,
        )
    return rows.finish()[0]


def main() -> int:
    folder = Path(os.environ.get("COMPUTEFLOW_DATA", ROOT.parent / "shared" / "data"))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "sacct.txt"
        write_sacct(folder, path)
        size = path.stat().st_size
        observed, seconds = observe(path)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        chance = named_by_chance(path)
    ledger = observed.ledger
    assert ledger is not None
    count = observed.facts.attempts
    quarter, whole = (sweep_seconds(observed, some) for some in (count // 4, count))
    off = math.fsum(ledger.accounts.values()) / ledger.gpu_seconds - 1
    used = math.fsum(int(row["num_gpus"]) * int(row["duration"]) for row in jobs(folder))
    booked = math.fsum(s for name, s in ledger.accounts.items() if name != "idle")
    text = "\n\n".join(to_text(table) for table in observed_tables(observed))
    REPORT.write_text(
        f"# Accounting of 109 days\n\n{__doc__.split('.md.', 1)[1].strip()}\n\n"
        "| what | value |\n|---|---|\n"
        f"| attempts | {observed.facts.attempts:,} ({size / 1e6:.1f} MB of `sacct -P`) |\n"
        f"| CPU-seconds, one core | {seconds:.1f} |\n"
        f"| peak memory, MB | {memory:.0f} |\n"
        f"| sweep over the queue, CPU-seconds | {whole:.1f}; the first quarter of the jobs "
        f"{quarter:.1f}, {whole / quarter:.1f} times less |\n"
        f"| ledger closed to | {abs(off):.1g} |\n"
        f"| GPU-seconds of jobs against plain Python | {abs(booked / used - 1):.1g} |\n"
        f"| node with more failures, as drawn | {BAD} |\n"
        f"| of {SHUFFLES} clusters with nodes alike, a node is named in | {chance} |\n"
        f"| nodes named | {', '.join(s.node for s in observed.facts.suspects) or 'none'} |\n\n"
        f"```\n{text}\n```\n"
    )
    print(REPORT.read_text())
    return 0 if abs(off) < 1e-9 and seconds < 20 else 1


if __name__ == "__main__":
    sys.exit(main())
