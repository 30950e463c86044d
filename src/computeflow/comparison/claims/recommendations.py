"""Recommendations that people repeat: what each is worth against its alternatives."""

from __future__ import annotations

from dataclasses import replace

from computeflow.catalog import PublishedCollective, find_model
from computeflow.catalog.parameters import count_parameters
from computeflow.cluster.machine import usual_cluster
from computeflow.comparison.claims.claim import (
    Bench,
    Outcome,
    check,
    percent,
    verdict_of_facts,
)
from computeflow.planning import plan
from computeflow.planning.quick_spaces import quick_space
from computeflow.planning.space import Space
from computeflow.prediction import find_stack
from computeflow.workload import Job

_TIE = 0.05
"""Share of a step by which two ways may differ and still count as equal."""
_STATE_BYTES = 14.0
"""Bytes of a checkpoint per parameter: weights in bf16, weights and moments of Adam in fp32."""
_LUSTRE_TIB = 100.0
"""Size of a file system whose bandwidth is sold by the TiB, as an example."""


def _job(bench: Bench) -> Job:
    return Job(model=find_model(bench.catalog, "llama-3.1-70b"), global_batch=1024, seq_len=8192)


@check("use-pytorch")
def pytorch(bench: Bench) -> Outcome:
    job, cluster = _job(bench), usual_cluster("h100-sxm", 512, bench.catalog)
    speeds = {}
    for name in ("torchtitan", "megatron", "jax"):
        plans = plan(job, cluster, find_stack(name), top=1, space=quick_space(job, 512)).plans
        speeds[name] = plans[0].prediction.tokens_per_second_per_gpu
    best = max(speeds.values())
    behind = {name: 1 - speed / best for name, speed in speeds.items()}
    listed = ", ".join(f"{name} {speed:,.0f}" for name, speed in speeds.items())
    return Outcome(
        verdict=verdict_of_facts(
            min(behind["torchtitan"], behind["megatron"]) <= _TIE, behind["jax"] > _TIE
        ),
        ours=f"{listed} tokens/s per GPU",
        why="Predicted, Llama-3.1-70B on 512 H100, the best plan of each stack; torchtitan and "
        "Megatron are both PyTorch, so that the library says less than what is built on it. TPUs "
        "are trained with JAX, Trainium with Neuron.",
        numbers=speeds,
    )


@check("use-zero3")
def zero3(bench: Bench) -> Outcome:
    """Fully sharded data parallelism alone against the best layout of any kind."""
    job, behind, fits = _job(bench), {}, {}
    for gpus in (64, 512, 1024):
        cluster = usual_cluster("h100-sxm", gpus, bench.catalog)
        best = bench.best("llama-3.1-70b", "h100-sxm", gpus, global_batch=1024, seq_len=8192)
        alone = plan(job, cluster, top=1, space=_sharded(quick_space(job, gpus))).plans
        fits[gpus] = bool(alone)
        behind[gpus] = alone[0].prediction.step_seconds / best.step_seconds - 1 if alone else 1.0
    listed = ", ".join(
        f"{gpus} GPUs {100 * behind[gpus]:+.0f} %" if fits[gpus] else f"{gpus} GPUs: does not fit"
        for gpus in behind
    )
    return Outcome(
        verdict=verdict_of_facts(*(lost <= _TIE for lost in behind.values())),
        ours=f"step against the best layout: {listed}",
        why="Predicted, Llama-3.1-70B with 1,024 sequences of 8,192 on H100: ZeRO-3 (FSDP) alone "
        "against the best of all layouts, which adds tensor or pipeline parallelism. It is the "
        "simplest layout that fits, and changes no model code; that is what it is recommended for.",
        numbers={str(gpus): lost for gpus, lost in behind.items()},
    )


def _sharded(space: Space) -> Space:
    """The same space with fully sharded data parallelism alone; `fsdp` is the last of its kinds."""
    alone = {"tp": [1], "pp": [1], "cp": [1], "vp": [1], "sharding": space.values["sharding"][-1:]}
    return replace(space, values={**space.values, **alone})


@check("use-kubernetes-ray")
def kubernetes(bench: Bench) -> Outcome:
    return Outcome(
        verdict="cannot be checked",
        ours="0 % of a step by the scheduler itself",
        why="No published measurement of one job on the same nodes under Slurm and under Kubernetes "
        "with Ray. Both start processes and stay out of the step; what differs is placement (see "
        "less-traffic), the network's plugin, and how fast a failed node is replaced. Such a pair of "
        "runs, or restart times of both, would settle it.",
        basis="none",
        numbers={"step": 0.0},
    )


@check("use-infiniband")
def infiniband(bench: Bench) -> Outcome:
    """Published all-reduces over 16 B200 at 400 Gb/s a GPU, InfiniBand against RoCE."""
    rows = {
        (row.fabric, row.payload_bytes): row.bus_bytes_per_second
        for row in bench.catalog.collectives
        if _compared(row)
    }
    sizes = [
        size for fabric, size in rows if fabric == "roce-400" and ("infiniband-ndr", size) in rows
    ]
    ratios = {
        size: (rows["roce-400", size] or 0.0) / (rows["infiniband-ndr", size] or 1.0)
        for size in sorted(sizes, key=lambda size: size or 0.0)
    }
    slow = _tcp_share(bench)
    listed = ", ".join(
        f"{(size or 0) / 2**20:,.0f} MiB {percent(ratio, 0)}" for size, ratio in ratios.items()
    )
    least, most = min(ratios.values()), max(ratios.values())
    return Outcome(
        verdict=verdict_of_facts(least < 1 - _TIE, slow < 0.5, most < 1 - _TIE),
        ours=f"RoCE gives {percent(least, 0)} to {percent(most, 0)} of InfiniBand at equal width",
        why=f"Published all-reduces of 16 B200 at 400 Gb/s a GPU, RoCE over InfiniBand: {listed}. What "
        f"costs is TCP: GPUDirect-TCPX gives {percent(slow, 0)} of TCPXO on the same H100s. Width and "
        "RDMA matter (network-by-scale), the name of the network hardly does.",
        numbers={"least": least, "most": most, "tcp": slow},
    )


def _compared(row: PublishedCollective) -> bool:
    return (row.operation, row.accelerator, row.ranks) == ("all-reduce", "b200-sxm", 16)


def _tcp_share(bench: Bench) -> float:
    best = {
        fabric: max(
            row.bus_bytes_per_second or 0.0
            for row in bench.catalog.collectives
            if row.fabric == fabric
        )
        for fabric in ("gpudirect-tcpx", "gpudirect-tcpxo")
    }
    return best["gpudirect-tcpx"] / best["gpudirect-tcpxo"]


@check("use-parallel-fs")
def parallel_fs(bench: Bench) -> Outcome:
    """Reading text and loading a checkpoint of Llama-3.1-70B on 64 nodes, from each kind of storage."""
    best = bench.best("llama-3.1-70b", "h100-sxm", 512, global_batch=1024, seq_len=8192)
    text = 4.0 * best.tokens_per_second_per_gpu * 512
    size = _STATE_BYTES * count_parameters(find_model(bench.catalog, "llama-3.1-70b")).total
    shared = {"nfs-tcp": 1.0, "lustre-shared": _LUSTRE_TIB, "s3-node": 64.0, "nvme-gen4": 64.0}
    rates = {
        name: count * (bench.catalog.storage[name].read_bytes_per_second or 0.0)
        for name, count in shared.items()
    }
    loads = {name: size / rate for name, rate in rates.items()}
    listed = ", ".join(f"{name} {seconds:,.0f} s" for name, seconds in loads.items())
    return Outcome(
        verdict=verdict_of_facts(
            text > rates["nfs-tcp"], loads["nfs-tcp"] > 10 * loads["lustre-shared"]
        ),
        ours=f"text needs {text / 1e6:.1f} MB/s; loading {size / 1e12:.1f} TB: {listed}",
        why=f"Llama-3.1-70B on 512 H100 reads {text / 1e6:.1f} MB/s of token numbers: any storage "
        f"keeps up. A checkpoint of {size / 1e12:.1f} TB is what needs it: one NFS server, a Lustre of "
        f"{_LUSTRE_TIB:.0f} TiB, object storage at a node's rate and one NVMe drive in each of 64 "
        "nodes, at the catalog's rates. Local drives or an object store serve as well where saving is "
        "asynchronous; images and video need bandwidth at reading, too (hard-drives).",
        numbers=loads | {"text": text},
    )
