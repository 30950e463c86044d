"""Plans to export: the planner's choices, and fixed layouts that it would not choose."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from computeflow.catalog import load_catalog
from computeflow.cluster import find_cluster
from computeflow.planning import plan
from computeflow.planning.exports.config_formats import Setup
from computeflow.prediction.stack import find_stack
from computeflow.workload import Job, Layout, Layouts, refusals
from computeflow.workload.job import OPTIMIZERS, PRECISIONS
from computeflow.workload.layout import CHOICES

FACTS = load_catalog()
MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "gpt3-1.3b",
    "mixtral-8x7b",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan by name. With `layout` it is fixed; without, the planner searches, within `fixed`."""

    name: str
    model: str
    on: str
    batch: int
    seq_len: int
    stack: str = "torchtitan"
    job: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, Any] | None = None

    @property
    def by(self) -> str:
        if self.layout is not None:
            return "fixed layout"
        return "planner" + (f", {', '.join(map(str, self.fixed))} fixed" if self.fixed else "")


CASES = (
    Case(name="dense", model="llama-3.1-8b", on="h100-sxm:64", batch=256, seq_len=8192,
         job={"checkpoint_steps": 500}),
    Case(name="MoE, planned", model="qwen3-30b-a3b", on="h100-sxm:64", batch=512, seq_len=4096),
    Case(name="MoE, experts spread", model="qwen3-30b-a3b", on="h100-sxm:64", batch=512,
         seq_len=4096, layout={"ep": 8, "sharding": "fsdp", "recompute": "full"}),
    Case(name="MoE with a pipeline", model="deepseek-v3", on="h100-sxm:1024", batch=4096,
         seq_len=4096, stack="megatron"),
    Case(name="long context", model="llama-3.1-8b", on="h100-sxm:64", batch=32, seq_len=131072),
    Case(name="long context, FSDP", model="llama-3.1-8b", on="h100-sxm:64", batch=32,
         seq_len=131072, layout={"cp": 8, "sharding": "fsdp", "recompute": "full"}),
    Case(name="FSDP only", model="llama-3.1-8b", on="h100-sxm:64", batch=256, seq_len=8192,
         fixed={"sharding": "fsdp", "tp": 1, "pp": 1, "cp": 1}),
    Case(name="HSDP", model="llama-3.1-70b", on="h100-sxm:128", batch=128, seq_len=8192,
         layout={"sharding": "hsdp", "replicas": 4, "recompute": "full"}),
    Case(name="DDP", model="qwen3-0.6b", on="a100-80-sxm:8", batch=64, seq_len=2048,
         layout={"sharding": "ddp"}),
    Case(name="3D", model="llama-3.1-70b", on="h100-sxm:256", batch=512, seq_len=8192,
         stack="megatron", layout={"tp": 8, "pp": 4, "recompute": "selective"}),
    Case(name="3D, interleaved", model="llama-3.1-70b", on="gb200:288", batch=576, seq_len=8192,
         stack="megatron", layout={"tp": 4, "pp": 4, "vp": 5, "recompute": "full"}),
    Case(name="FSDP with tp", model="llama-3.1-70b", on="h100-sxm:256", batch=512, seq_len=8192,
         layout={"tp": 8, "sharding": "fsdp", "recompute": "full"}),
    Case(name="optimizer on the host", model="llama-3.1-8b", on="h100-sxm:8", batch=64,
         seq_len=8192, fixed={"offload": "optimizer", "cp": 1}),
    Case(name="ZeRO-3, weights on the host", model="llama-3.1-70b", on="h100-sxm:16", batch=64,
         seq_len=4096, layout={"sharding": "zero3", "offload": "parameters", "recompute": "full"}),
    Case(name="ZeRO-2", model="llama-3.1-8b", on="mi300x:8", batch=64, seq_len=4096,
         layout={"sharding": "zero2", "recompute": "full"}),
    Case(name="fp8", model="llama-3.1-70b", on="h100-sxm:256", batch=512, seq_len=8192,
         job={"precision": "fp8"}),
    Case(name="fp8, tensor parallel", model="llama-3.1-70b", on="h100-sxm:256", batch=512,
         seq_len=8192, stack="megatron", job={"precision": "fp8"}, layout={"tp": 4, "pp": 2}),
    Case(name="TPU", model="llama-3.1-8b", on="tpu-v5p:64", batch=256, seq_len=8192, stack="jax"),
    Case(name="TPU, FSDP with tp", model="llama-3.1-70b", on="tpu-v5p:256", batch=512,
         seq_len=8192, stack="jax", layout={"tp": 4, "sharding": "fsdp", "recompute": "full"}),
)  # fmt: skip

_SMALL: Any = {"model": "llama-3.2-1b", "on": "h100-sxm:2", "batch": 8, "seq_len": 128}
TRAINED = (
    Case(name="FSDP", layout={"sharding": "fsdp"}, **_SMALL),
    Case(name="FSDP, recomputed", layout={"sharding": "fsdp", "recompute": "full"}, **_SMALL),
    Case(name="DDP", layout={"sharding": "ddp"}, **_SMALL),
    Case(name="ZeRO-1", layout={"sharding": "zero1"}, **_SMALL),
    Case(name="ZeRO-2", layout={"sharding": "zero2"}, **_SMALL),
    Case(name="ZeRO-3", layout={"sharding": "zero3"}, **_SMALL),
    Case(name="ZeRO-2, optimizer on the host",
         layout={"sharding": "zero2", "offload": "optimizer"}, **_SMALL),
    Case(name="ZeRO-3, weights on the host",
         layout={"sharding": "zero3", "offload": "parameters"}, **_SMALL),
)  # fmt: skip
"""Plans of two ranks that are trained."""


def setup(case: Case) -> Setup:
    cluster, stack = find_cluster(case.on, FACTS), find_stack(case.stack)
    job = Job(
        model=FACTS.models[case.model], global_batch=case.batch, seq_len=case.seq_len, **case.job
    )
    if case.layout is not None:
        layout = Layout(gpus=cluster.gpus, **case.layout)
    else:
        answer = plan(job, cluster, stack, fixed=case.fixed, top=1)
        if not answer.plans:
            raise RuntimeError(f"{case.name}: no layout fits {case.on}")
        layout = answer.plans[0].layout
    return Setup(job=job, cluster=cluster, layout=layout, stack=stack, tokens=1e11)


def sweep(count: int, seed: int = 0) -> list[Setup]:
    """Random layouts, without impossible ones."""
    return list(islice(_drawn(random.Random(seed)), count))


def _drawn(draw: random.Random) -> Iterator[Setup]:
    while True:
        sizes: dict[str, Any] = {
            name: draw.choice((1, 1, 1, 2, 4, 8))
            for name in ("tp", "pp", "cp", "ep", "micro_batch")
        }
        sizes["gpus"] = sizes["tp"] * sizes["pp"] * sizes["cp"] * draw.choice((1, 2, 8, 16))
        sizes["vp"] = draw.choice((1, 2, 3)) if sizes["pp"] > 1 else 1
        sizes["etp"] = draw.choice((1, sizes["tp"]))
        chosen: dict[str, Any] = {name: draw.choice(names) for name, names in CHOICES.items()}
        if sizes["vp"] > 1 or sizes["pp"] == 1:
            chosen["schedule"] = "1f1b"
        sizes["replicas"] = draw.choice((2, 4)) if chosen["sharding"] == "hsdp" else 1
        model = FACTS.models[draw.choice(MODELS)]
        if not any(block.experts for block in model.blocks):
            sizes["ep"] = sizes["etp"] = 1
        job = Job(
            model=model,
            global_batch=draw.choice((64, 256, 768)),
            seq_len=draw.choice((2048, 8192)),
            precision=draw.choice(PRECISIONS),
            optimizer=draw.choice(OPTIMIZERS),
            checkpoint_steps=draw.choice((None, 500)),
        )
        layout = Layout(**sizes, **chosen)
        copies = layout.gpus // (layout.tp * layout.pp * layout.cp)
        if refusals(job, Layouts.of([layout])) or (
            layout.sharding == "hsdp" and copies <= layout.replicas
        ):
            continue
        yield Setup(
            job=job,
            cluster=find_cluster(f"h100-sxm:{layout.gpus}", FACTS),
            layout=layout,
            stack=find_stack("megatron"),
            tokens=draw.choice((None, 1e11)),
        )
