"""Predicted time of collectives against published nccl-tests runs, written to
benchmarks/reports/collectives.md.

About half of the rows (systems with the role `choose`) were used when the form of the formulas and the
constants of `cluster/collectives.py` that are not NCCL's were chosen; the others (role `judge`) only
judge, and so do the rows of the catalog that are of other systems.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from computeflow.catalog import load_catalog
from computeflow.cluster.collectives import (
    Group,
    Links,
    all_reduce_seconds,
    all_to_all_seconds,
    gather_seconds,
)
from computeflow.cluster.machine import usual_cluster
from computeflow.prediction.parameters import load_parameters

ROOT = Path(__file__).parents[1]
DATA = ROOT / "benchmarks" / "data" / "collectives.csv"
REPORT = ROOT / "benchmarks" / "reports" / "collectives.md"
GOAL = 0.25
"""Largest median error of the judging systems."""
CLASSES = ((2, 8), (9, 32), (33, 128), (129, 1024))
SWITCHES = ("h1", "h2", "b2", "gb", "gh")
"""First letters of accelerators whose switches reduce (NVLink SHARP)."""
CHOSEN_ON = ("h200",)
"""Accelerators of the catalog's rows that repeat systems of the role `choose`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    system: str
    role: str
    operation: str
    ranks: int
    domain: int
    link_bytes_per_second: float
    network_bytes_per_second: float
    year: float
    device: str
    ring_only: bool
    payload_bytes: float
    seconds: float

    @property
    def links(self) -> Links:
        p = load_parameters()
        exchange = self.operation == "all-to-all"
        return Links(
            devices=np.array([[self.domain, 1e6, np.inf, np.inf]]),
            bytes_per_second=np.array(
                [[self.link_bytes_per_second, self.network_bytes_per_second, np.inf, np.inf]]
            ),
            scale_up_efficiency=p["link_efficiency"],
            network_efficiency=p["exchange_efficiency" if exchange else "nic_efficiency"],
            year=np.full(1, 2018.0 if self.ring_only else self.year),
            switch_reduces=np.full(1, self.device.startswith(SWITCHES)),
            torus=np.zeros(1, bool),
            link_hop_seconds=p["link_hop"],
            network_hop_seconds=p["network_hop"],
        )


def predicted(row: Measured) -> float:
    ranks, size, ones = np.full(1, float(row.ranks)), np.full(1, row.payload_bytes), np.ones(1)
    if row.operation == "all-to-all":
        return float(
            all_to_all_seconds(
                row.links,
                size,
                ranks,
                ones,
                copies=ones,
                once_per_node=np.zeros(1, bool),
                latency_seconds=load_parameters()["ep_latency"],
            )[0]
        )
    group = Group.of(row.links, ranks, ones)
    run = all_reduce_seconds if row.operation == "all-reduce" else gather_seconds
    return float(run(group, size)[0])


def formerly(row: Measured) -> float:
    """The formula before: a ring at 0.75 and 0.70 of the links, 4 us for every rank of an all-reduce
    (or, from 2026 on, 40 us for every doubling), 16 us times the root of the ranks of a gather.
    """
    n, inside = row.ranks, min(row.ranks, row.domain)
    speeds = [0.75 * row.link_bytes_per_second] if inside > 1 else []
    speeds += [0.70 * inside * row.network_bytes_per_second] if n > row.domain else []
    share = (n - 1) / n * row.payload_bytes / min(speeds)
    if row.operation == "all-to-all":
        return predicted(row)
    if row.operation != "all-reduce":
        return share + 16e-6 * float(np.sqrt(n))
    ring = 4e-6 * (n - 1)
    tree = 40e-6 * float(np.log2(n))
    return 2 * share + (min(ring, tree) if row.year >= 2026 else ring)


def read_rows() -> list[Measured]:
    with DATA.open() as file:
        rows = list(csv.DictReader(file))
    return [
        Measured(
            system=row["system"],
            role=row["role"],
            operation=row["operation"],
            ranks=int(row["ranks"]),
            domain=int(row["domain"]),
            link_bytes_per_second=1e9 * float(row["link_gbs"]),
            network_bytes_per_second=1e9 * float(row["network_gbs"]),
            year=float(row["year"]),
            device=row["device"],
            ring_only=row["algorithm"] == "ring",
            payload_bytes=float(row["payload_bytes"]),
            seconds=1e-6 * float(row["time_us"]),
        )
        for row in rows
    ]


def catalog_rows() -> list[Measured]:
    """The catalog's rows of 1 MB and more with a time, over the links that it has for them."""
    facts, found = load_catalog(), []
    for row in facts.collectives:
        size, seconds = row.payload_bytes, row.seconds
        if size is None or seconds is None or size < 1e6 or row.accelerator.startswith(CHOSEN_ON):
            continue
        per_node = row.ranks // row.nodes
        cluster = usual_cluster(row.accelerator, per_node, facts, node_devices=per_node)
        found.append(
            Measured(
                system=f"{row.accelerator}, {row.fabric}",
                role="catalog",
                operation=row.operation,
                ranks=row.ranks,
                domain=per_node,
                link_bytes_per_second=cluster.tiers[0].bytes_per_second,
                network_bytes_per_second=facts.fabrics[row.fabric].bytes_per_second or 50e9,
                year=2025.0,
                device=row.accelerator,
                ring_only="NVLS off" in (row.note or "") or "ring" in row.name,
                payload_bytes=size,
                seconds=seconds,
            )
        )
    return found


def errors(rows: Sequence[Measured], of: Callable[[Measured], float] = predicted) -> list[float]:
    return [of(row) / row.seconds - 1 for row in rows]


def summary(title: str, rows: Sequence[Measured]) -> str:
    now, before = errors(rows), errors(rows, formerly)
    return (
        f"| {title} | {len(rows)} | {median(now):.0%} | {np.median(now):+.0%} | {median(before):.0%} |"
        f" {np.median(before):+.0%} |"
    )


def median(values: Sequence[float]) -> float:
    return float(np.median(np.abs(values)))


def tables(rows: Sequence[Measured]) -> list[str]:
    head = [
        "| rows | n | median error | bias | with the ring before | bias |",
        "|---|---|---|---|---|---|",
    ]
    lines = ["## Errors", "", *head]
    for role in ("choose", "judge", "catalog"):
        ours = [row for row in rows if row.role == role]
        lines.append(summary(f"{role}: all", ours))
        for operation in sorted({row.operation for row in ours}):
            lines.append(
                summary(f"{role}: {operation}", [r for r in ours if r.operation == operation])
            )
        for low, high in CLASSES:
            if some := [row for row in ours if low <= row.ranks <= high]:
                lines.append(summary(f"{role}: {low} to {high:,} ranks", some))
    lines += ["", "## By system", "", *head]
    for key in sorted({(r.role, r.system, r.operation, r.ranks) for r in rows}):
        some = [r for r in rows if (r.role, r.system, r.operation, r.ranks) == key]
        lines.append(summary(f"{key[1]}, {key[2]}, {key[3]:,} ranks ({key[0]})", some))
    return lines


def beyond() -> list[str]:
    """What no measurement shows: the shape up to 65,536 ranks."""
    lines = [
        "## Beyond what is measured",
        "",
        "H100 nodes of 8, 400 Gb/s for each. Milliseconds for 100 buckets of 25 MB, all-reduced one",
        "after another, and for one all-gather of 400 MB.",
        "",
        "| ranks | 100 x 25 MB, trees | the same, ring alone | with the ring before | gather 400 MB |",
        "|---|---|---|---|---|",
    ]
    for ranks in (8, 64, 512, 1024, 4096, 16384, 65536):
        shown = []
        for ring_only in (False, True):
            row = Measured(
                system="",
                role="",
                operation="all-reduce",
                ranks=ranks,
                domain=8,
                link_bytes_per_second=450e9,
                network_bytes_per_second=50e9,
                year=2025.0,
                device="h100",
                ring_only=ring_only,
                payload_bytes=25e6,
                seconds=1.0,
            )
            group = Group.of(row.links, np.full(1, float(ranks)), np.ones(1))
            shown.append(all_reduce_seconds(group, np.full(1, 25e6), 100.0)[0])
        gather = gather_seconds(group, np.full(1, 400e6))[0]
        cells = [*shown, 100 * formerly(row), gather]
        lines.append(f"| {ranks:,} | " + " | ".join(f"{1e3 * x:,.1f}" for x in cells) + " |")
    return lines


def listing(rows: Sequence[Measured]) -> list[str]:
    lines = [
        "## Rows",
        "",
        "| system | operation | ranks | MB | measured ms | predicted ms | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ours = predicted(row)
        lines.append(
            f"| {row.system} | {row.operation} | {row.ranks:,} | {row.payload_bytes / 1e6:,.0f} |"
            f" {1e3 * row.seconds:,.3f} | {1e3 * ours:,.3f} | {ours / row.seconds - 1:+.0%} |"
        )
    return lines


def main() -> int:
    rows = [*read_rows(), *catalog_rows()]
    judges = [row for row in rows if row.role == "judge"]
    judging, most = median(errors(judges)), max(row.ranks for row in judges)
    lines = [
        "# Collectives",
        "",
        "Made by `make proofs` (`benchmarks/prove_collectives.py`) from the rows and sources in",
        "benchmarks/data/collectives.csv, and the catalog. `choose`: systems that constants were",
        "chosen on; `judge` and `catalog`: systems that were not.",
        "",
        f"Median error of the judging systems: {judging:.0%}, with up to {most:,} ranks; the group of",
        "1,024 ranks showed how latency and transfer of a ring add up, and does not judge.",
        "",
        *tables(rows),
        "",
        *beyond(),
        "",
        *listing(rows),
    ]
    REPORT.write_text("\n".join(lines) + "\n")
    print(f"{REPORT.relative_to(ROOT)}: median error {judging:.0%} on the judging systems")
    return 0 if judging < GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
