"""What the words of a published run say of its software: stack, precision, recomputation, offload.

The words are the projects' own names and the options that their users write down; `run_stack` is where
to start. A name that is not known is plain PyTorch of its year, and counts as missing.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

from computeflow.prediction.stack import GENERIC, STACKS, Stack
from computeflow.prediction.table_cells import Row, number, words
from computeflow.workload.layout import Offload, Recompute, Schedule

_FRAMEWORKS = tuple(  # first match
    (re.compile(rf"\b(?:{names})"), stack)
    for names, stack in (
        ("neuron", "neuron"),
        ("habana|gaudi|synapse|optimum-habana", "gaudi"),
        ("maxtext|levanter|jax|pax|t5x|flax|torch_?xla|pytorch/xla|xla", "jax"),
        ("primus", "primus"),
        ("megatron.?bridge|mindspeed", "megatron"),
        ("megatron.*deepspeed|deepspeed.*megatron|gpt-neox", "megatron-deepspeed"),
        ("automodel", "huggingface"),
        ("nemo", "nemo"),
        ("megatron", "megatron"),
        ("internevo|internlm", "internevo"),
        ("composer|llm-foundry|mosaic", "composer"),
        ("torchtitan", "torchtitan"),
        ("nanotron", "nanotron"),
        (r"computeflow\.lab", "lab"),
        ("torchtune", "torchtune"),
        ("lit-?gpt", "litgpt"),
        ("deepspeed", "deepspeed"),
        ("unsloth|axolotl|trl|llama-?factory|ms-swift|verl|openrlhf", "huggingface"),
        ("accelerate", "accelerate"),
        (r"hf\b|hugging ?face|transformers", "huggingface"),
        ("lightning|fabric", "lightning"),
        (r"llm\.c\b", "llm.c"),
        ("pytorch|torch|fsdp|ddp|vescale|colossal|fairseq|nanochat|nanogpt|modded", "torch"),
    )
)
_DATED = {  # the last year of a stack, and what stood in its place until then
    "megatron": ((2023, "megatron-2021"), (2024, "nemo-2023")),
    "nemo": ((2024, "nemo-2023"),),
}
_PLAIN = ("torch", "lightning", "litgpt", "torchtune", "huggingface", "accelerate", "deepspeed")
"""Stacks whose attention is whatever PyTorch or Transformers had in that year."""
_LOW = (  # first match
    ("nvfp4|fp4", "nvfp4"),
    ("mxfp8|fp8-mx|mx-fp8", "mxfp8"),
    ("rowwise|row-wise", "fp8-rowwise"),
    ("block", "fp8-block"),
    ("fp8|float8|tensorwise|e4m3", "fp8"),
    ("int8|aqt|w8a8", "int8"),
    ("bf16|bfloat16", "bf16"),
    ("tf32", "tf32"),
    ("fp16|float16|half", "fp16"),
    ("fp32|float32|single", "fp32"),
)
_RECIPES: tuple[tuple[str, dict[str, Any]], ...] = (  # all that match, in order
    (r"dispatcher=alltoall", {"dispatcher": "alltoall"}),
    (r"deepep|hybrid-?ep\b", {"dispatcher": "deduplicating"}),
    (r"a2a_overlap=y|moe[-_ ]overlap|ep[-_ ]overlap", {"ep_overlap": True}),
    (r"cuda[- ]?graphs?\b(?!=)|cuda_graph=(attn|full|y)|token_drop=y", {"graphs": "blocks"}),
    (
        r"cuda[-_ ]?graphs?=full_iteration|(whole|full)[- ](step|iteration) graph",
        {"graphs": "step"},
    ),
    (r"async[-_ ]?tp\b|tp_overlap=y|tp[-_ ]comm[-_ ]overlap", {"tp_overlap": True}),
    (r"tp_overlap=n", {"tp_overlap": False}),
    (
        r"(no|without) overlap|overlap_grad_reduce=(n|false)|\boverlap=(n|false)",
        {"dp_overlap": False},
    ),
    (r"bf16[- ]?(grad|reduc)|reduce=bf16", {"grad_bytes": 2.0}),
    (r"fp32[- ]?(grad|reduc)|reduce=fp32", {"grad_bytes": 4.0}),
)
_ATTENTION = (  # first match
    (
        r"no[- ]flash|attention=unfused|unfused[- ]attention|eager[- ]attention|attn=eager"
        r"|attn_implementation=eager|math attention",
        "unfused",
    ),
    (r"\bfa-?[34]\b|flash[-_ ]?(attn|attention)?[-_ ]?v?[34]\b|cudnn", "latest"),
    (r"\bfa-?2\b|flash[-_ ]?(attn|attention)?[-_ ]?v?2\b", "flash2"),
    (r"sdpa", "sdpa"),
    (r"\bfa-?1\b|flash[-_ ]?(attn|attention)?[-_ ]?v?1\b|triton attention", "flash1"),
)
_SEQUENCE = re.compile(r"\bseq(?:uence)?[-_ ]?par(?:allel(?:ism)?)?\b\s*(?:=\s*(\w+))?")
_COMPILED = re.compile(
    r"compile=(?:y|yes|true|1|on|block|whole|full)|torch\.?compile(?!\s*=)|\bcompiled?\b(?!\s*[=:])"
    r"|inductor|thunder|nanochat|nanogpt"
)
_EAGER = re.compile(
    r"compile\s*[=:]\s*(?:n|no|none|false|0|off)\b|(?:no|not|without) (?:torch\.)?compiled?\b"
)
_FUSED = re.compile(
    r"liger|unsloth|colossal|transformer[- ]engine|\bte\b|\bapex\b"
    r"|(?<!un)fused (?:kernels|mlp|norm|rms|layer|swiglu|rope|rotary)"
)
_NO = ("n", "no", "none", "false", "0", "off")
_RECOMPUTES: tuple[tuple[str, Recompute], ...] = (  # first match
    (r"^(?:n|no|none|false|0|off|disabled)\b", "none"),
    (r"^(?:full|block|uniform|all)\b|nothing", "full"),
    (r"selective|minimal|save_|dots|\bop\b|per-op|every|core|attn|attention|qkv", "selective"),
    (r"^(?:y|yes|true|1|on)\b|checkpoint|ckpt|full", "full"),
)
_CHECKPOINTING = re.compile(
    r"(?:\bac|recompute|(?:activation|gradient|act)[-_ ]?(?:checkpoint|ckpt|recomp)\w*)"
    r"\s*(?:[=:]\s*([\w -]+))?"
)
_SHARE = re.compile(r"(\d+) (?:of|/) (\d+) layers")
_SCHEDULES: tuple[tuple[str, Schedule | None], ...] = (  # first match; None: no such schedule here
    (r"v-half|v-min", None),
    (r"dualpipe", "dualpipe"),
    (r"zb-?v|zbv", "zbv"),
    (r"zero[- ]?bubble|zb-?h1|\bzbb\b", "zero-bubble"),
)


def run_stack(row: Row) -> tuple[Stack, bool]:
    """The stack of a row with what its words change, and whether its name is known."""
    name, known = stack_name(row)
    year = number(row, "year", STACKS[name].year)
    text = words(row, "flags", "framework")
    changes: dict[str, Any] = {"year": year}
    changes |= _kernels(name, text) | _attention(STACKS[name], text, year)
    changes |= _kept_bytes(STACKS[name], words(row, "precision"))
    for pattern, capability in _RECIPES:
        if re.search(pattern, text):
            changes |= capability
    if found := _SEQUENCE.search(words(row, "flags", "recompute")):
        changes["sequence_parallel"] = found[1] not in _NO
    return replace(STACKS[name], **changes), known


def stack_name(row: Row) -> tuple[str, bool]:
    """Name of the stack that a row's framework is or was in its year, and whether it is known."""
    framework = words(row, "framework")
    name = next((stack for names, stack in _FRAMEWORKS if names.search(framework)), None)
    if name is None:
        return GENERIC, False
    year = number(row, "year", STACKS[name].year)
    older = (stack for until, stack in _DATED.get(name, ()) if year < until)
    dated = "bridge" not in framework
    return next(older, name) if dated else name, True


def _kernels(name: str, text: str) -> dict[str, str]:
    if STACKS[name].kernels == "graph":
        return {}
    if _EAGER.search(text):
        return {"kernels": "eager"}
    if _COMPILED.search(text):
        return {"kernels": "compiled"}
    if _FUSED.search(text):
        return {"kernels": "fused"}
    return {"kernels": "eager"} if name == "torchtitan" else {}


def _attention(stack: Stack, text: str, year: float) -> dict[str, str]:
    for pattern, kind in _ATTENTION:
        if re.search(pattern, text):
            return {"attention": kind}
    if "flash" in text:
        fused = "flash1" if year < 2024 else "flash2"
        return {"attention": fused} if stack.attention == "unfused" or stack.name in _PLAIN else {}
    return {"attention": _of_year(stack, year)} if stack.name in _PLAIN else {}


def _of_year(stack: Stack, year: float) -> str:
    """PyTorch has had FlashAttention since 2.0 (March 2023), its second version since 2.2 (January
    2024); Transformers calls it since 4.36 (December 2023).
    """
    by_hand = stack.family in ("huggingface", "deepspeed")
    if year < 2023 or (by_hand and year < 2024):
        return "unfused"
    return "flash1" if year < 2024 else "sdpa" if year < 2026 else stack.attention


def _kept_bytes(stack: Stack, precision: str) -> dict[str, float]:
    """Bytes of weights, gradients and state where the precision says how they are kept."""
    if stack.family in ("torch", "huggingface", "lab") or precision == "amp":
        if re.search(r"pure|true", precision):
            return {"param_bytes": 2.0, "grad_bytes": 2.0, "state_bytes": 4.0}
        if re.search(r"\bamp|mixed|autocast", precision):  # fp32 weights under autocast
            return {"param_bytes": 4.0, "grad_bytes": 4.0, "state_bytes": 8.0}
    return {}


def run_precision(text: str) -> str:
    lowered = text.lower()
    return next((name for pattern, name in _LOW if re.search(pattern, lowered)), "bf16")


def run_recompute(row: Row, stack: Stack) -> tuple[Recompute, bool]:
    """The recomputation, and whether it is stated."""
    text = words(row, "recompute").strip()
    if not text and (found := _CHECKPOINTING.search(words(row, "flags"))):
        text = found[1] or "checkpointing"
    if not text:
        return stack.usual_recompute, False
    if share := _SHARE.search(text):  # some of the layers, in full: the nearer of all and none
        return ("full" if 2 * int(share[1]) >= int(share[2]) else "none"), True
    text = re.sub(r"^(?:ac|mode|recompute)\s*[=:]\s*", "", text)
    kind = next((kind for pattern, kind in _RECOMPUTES if re.search(pattern, text)), None)
    return kind or "none", kind is not None


def run_offload(row: Row, *, sharded: bool) -> tuple[Offload, bool]:
    """What a run keeps on the host or on disk, and whether it is stated that it does."""
    text = words(row, "zero_fsdp", "flags", "framework")
    text = re.sub(r"\S*offload\S*\s*[=:]\s*(?:false|none|no|n|0|off)\b", "", text)
    text = re.sub(r"(?:no|without) (?:\w+ )?offload\w*", "", text)
    activations = r"activ\w*[-_ /]*(?:cpu[-_ ]*)?offload|act_offload|offload\w*[-_ ]activ"
    if re.search(activations, words(row, "recompute")):
        return "activations", True
    some_layers = "offload_layers" in text  # so many that the copies hide behind the others
    if some_layers or ("offload" not in text and "zero-infinity" not in text):
        return "none", True
    certain = not re.search(r"\([^)]*offload[^)]*\)|(?:where|if|when) needed|optional", text)
    if "nvme" in text or "disk" in text:
        return "nvme", certain
    if re.search(r"param\w*[-_ ]?offload|offload\w*[-_ ]param", text):
        return "parameters", certain
    if re.search(r"optim\w*[-_ ](?:state[-_ ])?(?:cpu[-_ ])?offload|offload\w*[-_ ]optim", text):
        return "optimizer", certain
    if re.search(activations, text):
        return "activations", certain
    return ("parameters" if sharded else "optimizer"), certain


def run_schedule(row: Row) -> tuple[Schedule, bool]:
    """The pipeline schedule, and whether it is one that is known."""
    text = words(row, "flags")
    for pattern, schedule in _SCHEDULES:
        if re.search(pattern, text):
            return schedule or "1f1b", schedule is not None
    return "1f1b", True


def run_context(row: Row) -> Literal["ring", "all-to-all"]:
    """How context-parallel ranks attend to each other."""
    exchange = r"ulysses|cp_comm_type=a2a\b|all-?to-?all (?:attention|sequence|context)"
    return "all-to-all" if re.search(exchange, words(row, "flags", "framework")) else "ring"
