"""Made runs, findings and nodes as a collector knows them, sound ones and hostile ones."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.collection.online.live_values import (
    LiveFinding,
    LiveNode,
    LiveRank,
    LiveRun,
    finding_key,
)
from computeflow.ledger import Evidence, Remedy

NOW = 1_790_000_000.0
HOSTILE = 'x"\n\\\x1b[31mred\x1b[0m{}<!channel>*`${IFS}` %s \ud800 ' + "y" * 400
"""A name as a careless or a bad tool would send it."""
SHARES = {"compute": 0.62, "optimizer": 0.05, "input": 0.1, "straggler": 0.2, "idle": 0.03}


@dataclass(frozen=True, kw_only=True)
class MadeChanges:
    opened: tuple[LiveFinding, ...] = ()
    updated: tuple[LiveFinding, ...] = ()
    closed: tuple[LiveFinding, ...] = ()


def live_finding(**fields: Any) -> LiveFinding:
    made = LiveFinding(
        key="",
        run="7b-20261118",
        rule="straggler-rank",
        title="255 ranks wait for rank 3, 210 ms a step",
        account="straggler",
        ranks=(3,),
        nodes=("node-00",),
        share=0.2,
        gpu_seconds=5_120.0,
        usd_per_hour=128.0,
        usd=3.56,
        confidence=0.97,
        evidence=(
            Evidence(
                what="rank 3 arrives last",
                where="steps 900 to 960",
                value=0.21,
                unit="s",
                expected=0.004,
            ),
            Evidence(what="hardware slowdown on GPU 3", where="node-00", value=86.0, unit="°C"),
        ),
        remedy=Remedy(
            change="drain node-00 and let the job restart without it",
            command="scontrol update nodename=node-00 state=drain reason=computeflow",
        ),
        onset=NOW - 120,
        opened=NOW - 110,
        seen=NOW - 1,
    )
    made = replace(made, **fields)
    if made.key:
        return made
    key = finding_key(made.run, made.rule, made.account, made.ranks, made.onset)
    return replace(made, key=key)


def live_run(**fields: Any) -> LiveRun:
    made = LiveRun(
        run="7b-20261118",
        name="llama-7b",
        command="torchrun train.py",
        state="running",
        world=256,
        ranks=256,
        nodes=tuple(f"node-{n:02d}" for n in range(32)),
        device="cuda",
        gpu="NVIDIA H100 80GB HBM3",
        started=NOW - 7200,
        updated=NOW - 1,
        attempt=0,
        step=6_120,
        step_seconds=1.12,
        tokens_per_second=3.4e6,
        mfu=0.412,
        accounts=dict(SHARES),
        window_seconds=60.0,
        booked={"startup": 25_600.0, **{name: 1.6e6 * share for name, share in SHARES.items()}},
        kept_steps=6_100,
        goodput=0.88,
        usd_per_gpu_hour=2.5,
        slowest=tuple(
            LiveRank(
                rank=rank,
                node=f"node-{rank // 8:02d}",
                step=6_120,
                step_seconds=1.12,
                own_seconds=own,
                late_seconds=late,
                last_seen=NOW - 1,
            )
            for rank, own, late in ((3, 1.1, 0.21), (17, 0.91, 0.012), (140, 0.9, 0.009))
        ),
    )
    return replace(made, **fields)


def live_node(**fields: Any) -> LiveNode:
    made = LiveNode(
        node="node-00",
        agent="agent-00",
        last_seen=NOW - 2,
        gpus=8,
        readings={"DCGM_FI_DEV_POWER_USAGE": 690.5, "DCGM_FI_DEV_GPU_TEMP": 86.0},
        missing={"infiniband": "no device below /sys/class/infiniband"},
        signals=("Xid 63 on GPU 3: row remapping",),
    )
    return replace(made, **fields)


def hostile_values() -> tuple[list[LiveRun], list[LiveFinding], list[LiveNode]]:
    run = live_run(run=HOSTILE, name=HOSTILE, command=HOSTILE, gpu=HOSTILE, device=HOSTILE)
    slow = tuple(replace(rank, node=HOSTILE) for rank in run.slowest) * 20
    finding = live_finding(
        run=HOSTILE,
        title=HOSTILE,
        nodes=(HOSTILE,) * 9,
        ranks=tuple(range(0, 4000, 2)),
        evidence=(Evidence(what=HOSTILE, where=HOSTILE),),
        remedy=Remedy(change=HOSTILE, command=HOSTILE, risk=HOSTILE),
        key="0123456789ab",
    )
    node = live_node(
        node=HOSTILE,
        agent=HOSTILE,
        readings={HOSTILE: 1.0, "computeflow_step_seconds": 2.0, "a b": 3.0, "ok_reading": 4.0},
        missing={HOSTILE: HOSTILE},
        signals=(HOSTILE,) * 8,
    )
    return [replace(run, slowest=slow)], [finding], [node]


def write_store(
    folder: Path,
    runs: Sequence[LiveRun] = (),
    findings: Sequence[LiveFinding] = (),
    nodes: Sequence[LiveNode] = (),
) -> Path:
    """A collector's `state.sqlite` as its store writes it; what is in it already is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(folder / "state.sqlite")) as database, database:
        database.execute("PRAGMA journal_mode=WAL")
        for statement in (
            "runs (run TEXT PRIMARY KEY, data TEXT, updated REAL)",
            "nodes (node TEXT PRIMARY KEY, data TEXT, updated REAL)",
            "findings (key TEXT PRIMARY KEY, run TEXT, rule TEXT, opened REAL, closed REAL, data TEXT)",
        ):
            database.execute(f"CREATE TABLE IF NOT EXISTS {statement}")
        for table in ("runs", "nodes", "findings"):
            database.execute(f"DELETE FROM {table}")
        for number, run in enumerate(runs):
            row = (f"{number}", _text(run), run.updated)
            database.execute("INSERT INTO runs VALUES (?, ?, ?)", row)
        for number, node in enumerate(nodes):
            row = (f"{number}", _text(node), node.last_seen)
            database.execute("INSERT INTO nodes VALUES (?, ?, ?)", row)
        for f in findings:
            values = (f.key, "", f.rule, f.opened, f.closed, _text(f))
            database.execute("INSERT INTO findings VALUES (?, ?, ?, ?, ?, ?)", values)
    return folder


def _text(value: Any) -> str:
    """JSON as the store has it: a half surrogate is no UTF-8 and never gets there."""
    return json.dumps(codec.encode(value)).replace("\\ud800", "")


def busy_fleet(now: float = NOW) -> tuple[list[LiveRun], list[LiveFinding], list[LiveNode]]:
    """Three runs with four open findings and one that closed."""
    late = now - NOW
    runs = [
        live_run(updated=now - 1, started=now - 7200),
        live_run(
            run="70b-a",
            name="llama-70b-sft",
            state="stuck",
            world=1024,
            ranks=1023,
            step=812,
            step_seconds=14.2,
            mfu=None,
            goodput=0.71,
            accounts={"compute": 0.3, "idle": 0.65, "host": 0.05},
            slowest=(),
            updated=now - 1,
        ),
        live_run(
            run="eval-1",
            name="ablation-41",
            world=8,
            ranks=8,
            step=120_044,
            step_seconds=0.184,
            mfu=0.236,
            accounts={
                "compute.model": 0.236,
                "compute.kernel": 0.41,
                "input": 0.3,
                "comm.dp": 0.054,
            },
            slowest=live_run().slowest[:1],
            updated=now - 1,
        ),
    ]
    shift = {"onset": NOW - 120 + late, "opened": NOW - 110 + late, "seen": now - 1}
    findings = [
        live_finding(**shift),
        live_finding(
            run="70b-a",
            rule="hang",
            account="idle",
            title="rank 511 did not arrive at all_reduce 90,211 of group dp",
            ranks=(511,),
            nodes=("node-63",),
            share=0.65,
            usd_per_hour=1_664.0,
            usd=42.1,
            **shift,
        ),
        live_finding(
            run="eval-1",
            rule="input-stall",
            account="input",
            title="each rank waits 55 ms per step for data",
            ranks=tuple(range(8)),
            share=0.3,
            usd_per_hour=6.0,
            usd=0.2,
            **(shift | {"onset": now - 5_000}),
        ),
        live_finding(
            rule="clock-throttle",
            account="compute.clock",
            title="GPU 3 of node-00 runs at 1,260 MHz, its peers at 1,755",
            share=0.02,
            usd_per_hour=12.8,
            silenced_until=now + 1800,
            **shift,
        ),
        live_finding(rule="gc-pause", account="host", closed=now - 30, **shift),
    ]
    return (
        runs,
        findings,
        [live_node(last_seen=now - 2), live_node(node="node-63", last_seen=now - 90)],
    )
