"""Scripts with sharded states: FSDP2, HSDP and DeepSpeed's ZeRO."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader

from benchmarks.ranks.cases import Case
from benchmarks.ranks.data_parallel import BATCH, WIDTH, Samples, TextModel, timed_layers
from benchmarks.ranks.faults import Fault
from benchmarks.ranks.meter import Meter


def _train_layers(case: Case, fault: Fault, meter: Meter, **sharding: Any) -> None:
    model = timed_layers(case, fault)
    for layer in model:
        fully_shard(layer, **sharding)
    fully_shard(model, **sharding)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for x in DataLoader(Samples(fault), batch_size=BATCH):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        fault.after_step(model)
        meter.end_step()
        if meter.done:
            break
    dist.destroy_process_group()


def fsdp2_loop(case: Case, fault: Fault, meter: Meter) -> None:
    dist.init_process_group("gloo")
    _train_layers(case, fault, meter)


def hsdp_loop(case: Case, fault: Fault, meter: Meter) -> None:
    """Sharded over pairs of ranks, replicated over the pairs."""
    dist.init_process_group("gloo")
    shape = (case.ranks // 2, 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    _train_layers(case, fault, meter, mesh=mesh)


def _train_text(case: Case, fault: Fault, meter: Meter, **sharding: Any) -> None:
    model = TextModel(case, fault)
    for block in model.blocks:
        fully_shard(block, **sharding)
    fully_shard(model, **sharding)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    while not meter.done:
        fault.load()
        ids = torch.randint(0, 512, (4, 33))
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        fault.after_step(model)
        meter.end_step()
    dist.destroy_process_group()


def fsdp2_blocks(case: Case, fault: Fault, meter: Meter) -> None:
    dist.init_process_group("gloo")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    _train_text(case, fault, meter, mp_policy=policy, reshard_after_forward=False)


def hsdp_blocks(case: Case, fault: Fault, meter: Meter) -> None:
    """Replicas of half the ranks each."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, case.ranks // 2), mesh_dim_names=("dp", "fsdp"))
    _train_text(case, fault, meter, mesh=mesh)


def _train_zero(case: Case, fault: Fault, meter: Meter, stage: int) -> None:
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = (
        False  # compiled at first use, by every rank
    )
    deepspeed.init_distributed(dist_backend="gloo")
    model = timed_layers(case, fault)
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {"stage": stage, "overlap_comm": False},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "wall_clock_breakdown": False,
        "steps_per_print": 100_000,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for x in DataLoader(Samples(fault, WIDTH), batch_size=BATCH):
        loss = engine(x).square().mean()
        engine.backward(loss)
        engine.step()
        fault.after_step(model)
        meter.end_step()
        if meter.done:
            break
    dist.destroy_process_group()


def deepspeed_zero1(case: Case, fault: Fault, meter: Meter) -> None:
    _train_zero(case, fault, meter, stage=1)


def deepspeed_zero2(case: Case, fault: Fault, meter: Meter) -> None:
    _train_zero(case, fault, meter, stage=2)
