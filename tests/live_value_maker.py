"""Made runs, findings and nodes as a collector knows them, sound ones and hostile ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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
            Evidence(what="hardware slowdown on GPU 3", where="node-00", value=86.0, unit="C"),
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
