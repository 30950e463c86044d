"""A collector's store of a made fleet: 16,384 GPUs on 2,048 nodes, for what shows all of them at once.

    python -m benchmarks.made_fleet FOLDER [--gpus 16384]

Every value is drawn from a seed; faults are as rare as on a sound cluster. It writes what a collector
keeps of it (`state.sqlite`) by the collector's own code, and a Slurm topology of 32 nodes a switch.
"""

from __future__ import annotations

import argparse
import random
import time
from contextlib import closing
from pathlib import Path

from computeflow.collection.online.live_values import (
    LiveFinding,
    LiveGpu,
    LiveNode,
    LiveRank,
    LiveRun,
)
from computeflow.collection.store.state_database import (
    JournalSummary,
    RankPosition,
    StateDatabase,
)

NODE_GPUS = 8
SWITCH_NODES = 32
RUNS = (("405b-pretrain", 0.5, 0.41), ("70b-sft", 0.25, 0.37), ("moe-ablation", 0.15, 0.29))
"""Name, share of the nodes, MFU; the rest of the nodes is free."""


def write_fleet(folder: Path, gpus: int = 16_384, seed: int = 0, now: float | None = None) -> Path:
    """The store; `topology.conf` lies beside its database."""
    rng, now = random.Random(seed), time.time() if now is None else now
    names = [f"node-{number:04d}" for number in range(gpus // NODE_GPUS)]
    folder.mkdir(parents=True, exist_ok=True)
    runs, first, summary = [], 0, JournalSummary()
    for name, share, mfu in RUNS:
        mine = names[first : first + round(share * len(names))]
        first += len(mine)
        runs.append(_run(name, mine, mfu, rng, now))
        for rank in range(len(mine) * NODE_GPUS):
            summary.positions[name, rank, 0] = RankPosition(
                next=1, node=mine[rank // NODE_GPUS], seen=int(now * 1e6)
            )
    late = runs[0].slowest[0]
    opened = LiveFinding(
        key="made",
        run=runs[0].run,
        rule="straggler-rank",
        title=f"ranks wait for rank {late.rank}, {1e3 * (late.late_seconds or 0):.0f} ms a step",
        account="straggler",
        ranks=(late.rank,),
        nodes=(late.node,),
        share=0.04,
        gpu_seconds=5_000.0,
        usd_per_hour=0.04 * 2.5 * runs[0].world,
        usd=12.0,
        confidence=0.95,
        evidence=(),
        remedy=None,
        onset=now - 60,
        opened=now - 50,
        seen=now,
    )
    with closing(StateDatabase(folder / "state.sqlite")) as state:
        state.add_journal(1, summary, ())
        state.save_view([opened], runs, [_node(name, rng, now) for name in names])
    (folder / "topology.conf").write_text(_topology(names))
    return folder


def _run(name: str, nodes: list[str], mfu: float, rng: random.Random, now: float) -> LiveRun:
    world = len(nodes) * NODE_GPUS
    slow = sorted(rng.sample(range(world), 16))
    return LiveRun(
        run=name,
        name=name,
        command="torchrun train.py",
        state="running",
        world=world,
        ranks=world,
        nodes=tuple(nodes),
        device="cuda",
        gpu="NVIDIA H100 80GB HBM3",
        started=now - 90_000,
        updated=now + 1e6,  # as nodes are: or it were silent by the time that it is looked at
        attempt=0,
        step=6_120,
        step_seconds=4.1,
        tokens_per_second=world * 420.0,
        mfu=mfu,
        accounts={"compute": 0.8, "straggler": 0.05, "idle": 0.15},
        goodput=0.91,
        usd_per_gpu_hour=2.5,
        slowest=tuple(
            LiveRank(
                rank=rank,
                node=nodes[rank // NODE_GPUS],
                step=6_120,
                step_seconds=4.1,
                own_seconds=3.9,
                late_seconds=0.31 / (place + 1),
                last_seen=now,
            )
            for place, rank in enumerate(slow)
        ),
    )


def _node(name: str, rng: random.Random, now: float) -> LiveNode:
    power, heat = rng.gauss(645, 15), rng.gauss(62, 4)
    gpus = [
        {
            "DCGM_FI_DEV_POWER_USAGE": rng.gauss(power, 12),
            "DCGM_FI_DEV_GPU_TEMP": rng.gauss(heat, 2),
        }
        for _ in range(NODE_GPUS)
    ]
    return LiveNode(
        node=name,
        agent=f"agent-{name}",
        last_seen=now + 1e6 if rng.random() > 0.002 else now - 300,
        gpus=NODE_GPUS,
        readings={name: max(each[name] for each in gpus) for name in gpus[0]},
        by_gpu=tuple(LiveGpu(gpu=number, readings=each) for number, each in enumerate(gpus)),
        signals=("Xid 63 on GPU 3: row remapping",) if rng.random() < 0.004 else (),
    )


def _topology(names: list[str]) -> str:
    leaves = [names[at : at + SWITCH_NODES] for at in range(0, len(names), SWITCH_NODES)]
    lines = [f"SwitchName=leaf{n:02d} Nodes={','.join(part)}" for n, part in enumerate(leaves)]
    spines = [range(at, min(at + 16, len(leaves))) for at in range(0, len(leaves), 16)]
    for number, below in enumerate(spines):
        lines.append(f"SwitchName=pod{number} Switches={','.join(f'leaf{n:02d}' for n in below)}")
    pods = ",".join(f"pod{number}" for number in range(len(spines)))
    return "\n".join([*lines, f"SwitchName=core Switches={pods}"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpus", type=int, default=16_384)
    given = parser.parse_args()
    write_fleet(given.folder, given.gpus)


if __name__ == "__main__":
    main()
