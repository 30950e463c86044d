"""A path of configurations from an untuned to a tuned Llama-3.1-70B, each step predicted: `mfu_path`.

From torchtitan's preset (tensor parallelism of 8, fp32 states, full recomputation, no compiling) to
the recipe that LambdaLabsML/torchtitan publishes for eight B200 (configs/llama3_70b-8xb200-8k.toml
@0768f5d), and on to the selective recomputation of its two-node recipe. Beside each step, the gain
that somebody published for it, on whatever model they had.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from computeflow.catalog import Catalog, find_model
from computeflow.cluster.machine import usual_cluster
from computeflow.comparison.claims.claim import mfu_range
from computeflow.prediction import find_stack, predict
from computeflow.prediction.stack import Stack
from computeflow.workload import Job, Layout

MODEL = "llama-3.1-70b"
SEQ_LEN = 8192
GPUS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStep:
    name: str
    mfu: tuple[float, float, float]
    """Low, predicted, high."""
    gain: float | None
    """Gain of throughput over the step before; None for the first."""
    fits: bool
    published: str
    """A published measurement of such a step; "none" where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Config:
    name: str
    stack: Stack
    layout: Layout
    precision: str = "bf16"
    published: str = "none"


def mfu_path(catalog: Catalog) -> list[PathStep]:
    cluster = usual_cluster("b200-sxm", GPUS, catalog)
    steps: list[PathStep] = []
    before: float | None = None
    for config in _configs():
        layout = config.layout
        group = layout.tp * layout.pp * layout.cp
        job = Job(
            model=find_model(catalog, MODEL),
            global_batch=layout.micro_batch * GPUS // group,
            seq_len=SEQ_LEN,
            precision=config.precision,
        )
        one = predict(job, cluster, layout, config.stack)
        speed = one.tokens_per_second_per_gpu
        steps.append(
            PathStep(
                name=config.name,
                mfu=mfu_range(one),
                gain=None if before is None else speed / before - 1,
                fits=one.fits,
                published=config.published,
            )
        )
        before = speed
    return steps


def _configs() -> list[_Config]:
    first = replace(
        find_stack("torchtitan"),
        kernels="eager",
        compiled_loss=False,
        param_bytes=4.0,
        state_bytes=8.0,
        grad_bytes=4.0,
    )
    compiled = replace(first, kernels="compiled", compiled_loss=True)
    bf16 = replace(compiled, param_bytes=2.0, state_bytes=4.0)
    reduced = replace(bf16, grad_bytes=2.0)
    tp8 = Layout(gpus=GPUS, tp=8, micro_batch=8, recompute="full", sharding="fsdp")
    fsdp = Layout(gpus=GPUS, micro_batch=1, recompute="full", sharding="fsdp")
    return [
        _Config(
            name="torchtitan's preset: tp 8, fp32 states, full recomputation, eager",
            stack=first,
            layout=tp8,
        ),
        _Config(
            name="compile",
            stack=compiled,
            layout=tp8,
            published="+15.7 % (8B, 8 H100, torchtitan 2024-12); -6 % (8B, B200, stas00 744d01e)",
        ),
        _Config(
            name="weights and optimizer in bf16",
            stack=bf16,
            layout=tp8,
            published="none; it frees memory and changes numerics",
        ),
        _Config(
            name="tp 8 to tp 1, fsdp over 8",
            stack=bf16,
            layout=fsdp,
            published="none; the largest change of the recipe",
        ),
        _Config(
            name="gradients reduced in bf16",
            stack=reduced,
            layout=fsdp,
            published="about +2 % (1 point of MFU, LambdaLabsML/torchtitan 25079f1)",
        ),
        _Config(
            name="micro-batch 6",
            stack=reduced,
            layout=replace(fsdp, micro_batch=6),
            published="+10 % for 2 to 8 (70B, A100, llm-foundry)",
        ),
        _Config(
            name="selective instead of full recomputation, micro-batch 1",
            stack=reduced,
            layout=replace(fsdp, recompute="selective"),
            published="full recomputation costs 8 to 13 % (7B, H100, llm-foundry), 20 to 25 % "
            "(rule, stas00)",
        ),
        _Config(
            name="float8 matmuls (MFU against the fp8 peak)",
            stack=reduced,
            precision="fp8",
            layout=replace(fsdp, recompute="selective"),
            published="+28 % (8B, 8 H100, torchtitan 2024-12); mxfp8 +22 to 28 % (70B, B200, "
            "PyTorch 2025-09)",
        ),
    ]
