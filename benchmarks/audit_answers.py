"""Whether `audit` is right, for prove_audit: beside HTA, on a Ray cluster, beside the trainer's
clock, and on ranks of which one is slow.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import computeflow as cf
from benchmarks.audit_traces import CLOCK, SLOWER, Recording, write_slow_rank
from computeflow import codec
from computeflow.catalog import load_catalog
from computeflow.engines import Engine, each
from computeflow.telemetry.trace_audit import audit
from computeflow.telemetry.traces.job_ledgers import TracedJob
from computeflow.telemetry.traces.rank_measurements import TraceOptions

ROOT = Path(__file__).parents[1]
OWN = ROOT / "tests" / "data" / "h200_traces"
SHARED = Path(os.environ.get("COMPUTEFLOW_DATA", ROOT.parent / "shared" / "data"))
TRACES = SHARED / "recordings" / "kineto"
FACTS = load_catalog()
SLOW = 5
"""The slow one of eight ranks."""
FIGURES = {
    "idle_time(us)": "idle_time",
    "compute_time(us)": "compute_time",
    "non_compute_time(us)": "non_compute_time",
    "kernel_time(us)": "kernel_time",
    "comp_comm_overlap_pctg": "overlap_percent",
}
"""HTA's names and ours."""


class Judge:
    """Targets and results. Only a wrong answer is a failure, a slow one is not."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failed = False

    def say(self, what: str, aim: str, result: str, reached: bool, *, must: bool = False) -> None:
        print(f"{what}: {result} (aim: {aim})", flush=True)
        self.lines.append(f"| {what} | {aim} | {result} | {'yes' if reached else '**no**'} |")
        self.failed |= must and not reached


def differences(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> list[float]:
    """Absolute difference of every figure of every rank."""
    known = {int(row["rank"]): row for row in theirs}
    if sorted(known) != [row["rank"] for row in ours]:
        return [float("inf")]
    return [abs(row[name] - known[row["rank"]][name]) for row in ours for name in FIGURES]


def equality(judge: Judge) -> list[str]:
    """Compare with the stored figures of HTA, on every set of recordings."""
    lines = [
        "| recording | rank | "
        + " | ".join(f"{name} (HTA)" for name in FIGURES.values())
        + " | largest difference |",
        "|---|--:|" + "--:|" * 6,
    ]
    every = []
    for name, known in json.loads((SHARED / "reference" / "hta_reference.json").read_text())[
        "sets"
    ].items():
        overlap = known["results"]["comm_comp_overlap"]
        theirs = [
            {**row, **next(o for o in overlap if o["rank"] == row["rank"])}
            for row in known["results"]["temporal_breakdown"]
        ]
        audited = audit([TRACES / name], FACTS, options=TraceOptions(window="hta"), cache=False)
        for row in theirs:
            rank = next(rank for rank in audited.ranks if rank.rank == row["rank"])
            mine = {key: getattr(rank.hta, value) for key, value in FIGURES.items()}
            apart = differences([{"rank": rank.rank, **mine}], [row])
            every += apart
            cells = " | ".join(f"{row[key]:,.10g}" for key in FIGURES)
            lines.append(f"| {name} | {row['rank']} | {cells} | {max(apart):g} |")
    judge.say(
        "figures of HTA's own, reproduced",
        "all equal",
        f"{sum(a == 0 for a in every)} of {len(every)} equal",
        not any(every),
        must=True,
    )
    return lines


def node_of(_: int) -> str:
    import ray

    time.sleep(0.5)  # long enough that one node alone is not done with all of them
    return str(ray.get_runtime_context().get_node_id())


def on_ray(judge: Judge, eight: Path) -> list[str]:
    try:
        import ray
        from ray.cluster_utils import Cluster
    except ImportError:
        return ["Ray is not installed: not run."]
    paths = [*sorted(OWN.glob("*.json.gz")), eight]
    here = [printed(path, "local") for path in paths]
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        nodes = set(map(str, each(node_of, range(9), "ray")))
        there = [printed(path, "ray") for path in paths]
    finally:
        ray.shutdown()
        cluster.shutdown()
    same = sum(a == b for a, b in zip(here, there, strict=True))
    size = sum(map(len, here))
    judge.say(
        "`audit -o json`, Ray and local",
        "the same bytes",
        f"{same} of {len(paths)} the same",
        same == len(paths),
        must=True,
    )
    return [
        f"Ray {ray.__version__}, a cluster of 3 nodes of one processor each, of which {len(nodes)} "
        f"took work. {len(paths)} audits ({len(paths) - 1} of one rank, one of eight), "
        f"{size:,} bytes of JSON: {same} of {len(paths)} are the same, byte for byte."
    ]


def printed(path: Path, engine: Engine) -> bytes:
    answer = cf.audit(str(path), no_cache=True, engine=engine)
    return codec.to_json(answer.to_dict()).encode()


def trainer(judge: Judge) -> list[str]:
    """The ledger's MFU beside the one by the trainer's own clock, and the unexplained share."""
    lines = [
        "| trace | unexplained | a step, apart by | MFU | MFU by the trainer | apart by |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    left: dict[str, float] = {}
    apart: dict[str, float] = {}
    clocks: dict[str, float] = {}
    sums: dict[str, float] = {}
    for name, record in sorted(json.loads((OWN / "index.json").read_text()).items()):
        audited = audit([OWN / f"{name}.json.gz"], FACTS, cache=False)
        ledger, rank = audited.job.ledger, audited.ranks[0]
        summary = record["summary"]
        steps = summary["steps"][1:3]  # the profiled ones
        seconds = sum(step["seconds"] for step in steps)
        flops = summary["flops_per_token"] * sum(step["tokens"] for step in steps)
        clocks[name] = max(
            abs(a - b["seconds"]) for a, b in zip(rank.step_seconds, steps, strict=True)
        )
        sums[name] = sum(rank.step_seconds) - seconds
        left[name] = ledger.booked("unexplained") / ledger.gpu_seconds
        if ledger.mfu is None or ledger.peak is None:
            lines.append(f"| {name} | {left[name]:.2%} | {1e6 * clocks[name]:.1f} µs | none | | |")
            apart[name] = float("inf")
            continue
        theirs = flops / seconds / ledger.peak.flops
        apart[name] = ledger.mfu / theirs - 1
        lines.append(
            f"| {name} | {left[name]:.2%} | {1e6 * clocks[name]:.1f} µs | {ledger.mfu:.2%} | "
            f"{theirs:.2%} | {apart[name]:+.4%} |"
        )
    for what, values, most, aim, unit, scale in (
        ("unexplained", left, 0.02, "at most 2 %", " %", 1e2),
        ("MFU, apart from the trainer's", apart, 0.03, "within 3 %", " %", 1e2),
        ("each step, apart from the trainer's", clocks, 1e-4, "within 0.1 ms", " ms", 1e3),
        ("both steps, apart from the trainer's", sums, 1e-4, "within 0.1 ms", " ms", 1e3),
    ):
        sizes = {name: abs(value) for name, value in values.items()}
        reached = [name for name, size in sizes.items() if size <= most]
        worst = max(sizes, key=lambda name: sizes[name])
        judge.say(
            f"own traces: {what}",
            f"{aim}, all",
            f"{len(reached)} of {len(sizes)}; median {scale * median(sizes.values()):.3g}{unit}, "
            f"worst {scale * sizes[worst]:.3g}{unit} ({worst})",
            len(reached) == len(sizes),
        )
    return lines


def stragglers(judge: Judge, folder: Path, recording: Recording) -> list[str]:
    same = audit([folder / "eight"], FACTS, cache=False)
    share = same.job.ledger.booked("straggler") / same.job.ledger.gpu_seconds
    judge.say(
        "eight identical ranks: straggler", "under 0.1 %", f"{share:.3%}", share < 1e-3, must=True
    )
    built = write_slow_rank(recording, folder / "slow", 8, SLOW)
    audited = audit([built.folder], FACTS, cache=False)
    entries = [e for e in audited.job.ledger.entries if e.account in ("straggler", "imbalance")]
    named = [(e.account, e.cause and (e.cause.rank, e.cause.account)) for e in entries]
    waited, expected = sum(e.gpu_seconds for e in entries), 7 * built.waited_seconds
    judge.say(
        "a slow rank among eight",
        f"rank {SLOW} named, account straggler, cause compute",
        "; ".join(f"{e.account}: {e.cause}" for e in entries) or "nobody",
        named == [("straggler", (SLOW, "compute"))],
        must=True,
    )
    judge.say(
        "a slow rank among eight: seconds that the others waited",
        f"{expected:.4f}",
        f"{waited:.4f}",
        abs(waited / expected - 1) < 0.01,
        must=True,
    )
    return [
        f"Eight ranks that are the same file: {same.job.shared_collectives:,} collectives matched, "
        f"`straggler` {share:.3%}.",
        "",
        f"The same eight, but kernels of rank {SLOW} take {SLOWER:g} times as long, its collectives "
        f"begin later for that and end with the others', and every clock is {CLOCK / 1e3:g} ms ahead "
        f"of the one before. Built in: {expected:.4f} s that the seven others wait. Found: "
        f"{waited:.4f} s, {waited_share(audited, waited)}.",
    ]


def waited_share(job: TracedJob, waited: float) -> str:
    last = max(job.job.ranks, key=lambda rank: rank.waited_for_seconds)
    offsets = job.job.clock_offsets_seconds
    return (
        f"{waited / job.job.ledger.gpu_seconds:.1%} of the job's time; rank {last.rank} came last "
        f"in {last.came_last or 0:.0%} of the collectives, and the clocks were found "
        f"{1e3 * (offsets[-1] - offsets[0]) / (len(offsets) - 1):.3f} ms apart"
    )
