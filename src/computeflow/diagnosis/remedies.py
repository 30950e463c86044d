"""`command(what, framework)`: the change in the syntax of the user's framework.

Flags are those of the releases whose parsers prove the exports (docs/exports.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from computeflow.telemetry.traces.rank_measurements import RankMeasurement

_COMMANDS: dict[str, dict[str, str]] = {
    "workers": {
        "torch": "DataLoader(..., num_workers=8, prefetch_factor=4, persistent_workers=True)",
        "megatron": "--num-workers 8",
        "trainer": "dataloader_num_workers=8, dataloader_prefetch_factor=4",
        "torchtitan": "training.dataloader.num_workers = 8",
    },
    "pin": {
        "torch": "DataLoader(..., pin_memory=True); batch.to(device, non_blocking=True)",
        "trainer": "dataloader_pin_memory=True",
    },
    "compile": {
        "torch": "model = torch.compile(model)",
        "trainer": "torch_compile=True",
        "torchtitan": "compile.enable = true",
        "megatron": "--cuda-graph-impl local",
    },
    "sync": {"torch": "keep values on the device (.detach()), and read them every N steps: no .item(), "
             "float() or print() of tensors in each"},
    "gc": {
        "torch": "gc.disable() after start-up; gc.collect(1) every N steps on all ranks at once",
        "megatron": "--manual-gc --manual-gc-interval 100",
        "torchtitan": "training.gc_freq = 50",
    },
    "allocator": {"torch": "no torch.cuda.empty_cache() in the loop; "
                  "PYTORCH_ALLOC_CONF=expandable_segments:True"},
    "attention": {
        "torch": "torch.nn.functional.scaled_dot_product_attention(q, k, v); in Transformers "
        "attn_implementation='sdpa'",
        "megatron": "--use-flash-attn",
        "trainer": "attn_implementation='sdpa' in from_pretrained",
        "deepspeed": "attn_implementation='sdpa' in from_pretrained",
    },
    "precision": {
        "torch": "with torch.autocast('cuda', torch.bfloat16): ..., or model.to(torch.bfloat16)",
        "megatron": "--bf16",
        "trainer": "bf16=True",
        "deepspeed": '"bf16": {"enabled": true}',
        "torchtitan": "training.mixed_precision_param = 'bfloat16'",
    },
    "optimizer": {
        "torch": "torch.optim.AdamW(..., fused=True)",
        "trainer": "optim='adamw_torch_fused'",
        "torchtitan": "optimizer.implementation = 'fused'",
    },
    "recompute": {
        "torch": "remove torch.utils.checkpoint around the blocks",
        "megatron": "remove --recompute-granularity",
        "trainer": "gradient_checkpointing=False",
        "torchtitan": "activation_checkpoint.mode = 'none'",
    },
    "checkpoint": {
        "torch": "torch.distributed.checkpoint.async_save(...)",
        "megatron": "--async-save",
        "torchtitan": "checkpoint.async_mode = 'async'",
    },
    "no-sync": {
        "torch": "with model.no_sync(): for all micro-batches but the last; FSDP2: "
        "model.set_requires_gradient_sync(is_last); Accelerate: with accelerator.accumulate(model)",
    },
    "packing": {"torch": "pack sequences to one length, or sample by length so that ranks get equal "
                "numbers of tokens"},
}  # fmt: skip
_GROUPS = (("megatron", "_PARALLEL_GROUP"), ("torchtitan", "dp_shard"), ("deepspeed", "deepspeed"))


def command(what: str, framework: str) -> str:
    """The framework's command, or PyTorch's where it has none."""
    known = _COMMANDS[what]
    return known.get(framework, known["torch"])


def framework_of(ranks: Sequence[RankMeasurement]) -> str:
    """The framework, by names of process groups and kernels; else plain PyTorch."""
    names = " ".join((*ranks[0].groups, *(row.name for row in ranks[0].kernels)))
    return next((name for name, mark in _GROUPS if mark in names), "torch")
