"""What a published run trains: all weights or low-rank updates, with which optimizer and loss."""

from __future__ import annotations

import re
from typing import Any

from computeflow.errors import InputError
from computeflow.files.names import shown
from computeflow.prediction.table_cells import Row, words

_SEVERAL = re.compile(r"^(?:dpo|ppo|grpo|rlhf|orpo|kto)\b")
_RANK = re.compile(r"(?:rank|lora_r|\br)\s*[=:]?\s*(\d+)")
_ATTENTION_ONLY = re.compile(r"on attention|attention only|attn only|\bqkv\b|\bq,? ?v\b|q_proj")
_ALL_LINEAR = re.compile(r"all[-_ ]linear|mlp|gate_proj|feed-?forward")
_OPTIMIZERS = (  # first match
    (r"8-?bit (?:adam|optim)|8-?bit/|adamw?[-_ ]?8-?bit|paged_adamw_8bit|\bbnb\b", "adam8bit"),
    (r"muon", "muon"),
    (r"\bsgd\b", "sgd"),
)
_CHUNKED = re.compile(r"loss_chunks\s*=\s*(\d+)|chunked|liger|cut[- ]cross|fused linear c")
_USUAL_CHUNKS = 8
"""Parts of a chunked loss where none are stated: torchtune's default (num_output_chunks)."""


def run_training(row: Row) -> dict[str, Any]:
    """Fields of a `Job` that say how it trains."""
    kind, flags = words(row, "kind"), words(row, "flags")
    if _SEVERAL.search(kind):
        raise InputError(f"kind '{shown(kind, 40)}': several models in a step are not predicted")
    fields: dict[str, Any] = {"training": _training(kind, flags)}
    if fields["training"] != "full":
        if rank := _RANK.search(flags):
            fields["lora_rank"] = int(rank[1])
        if _ATTENTION_ONLY.search(flags) and not _ALL_LINEAR.search(flags):
            fields["lora_targets"] = "attention"
    optimizer = next((name for pattern, name in _OPTIMIZERS if re.search(pattern, flags)), None)
    if optimizer:
        fields["optimizer"] = optimizer
    if chunks := _CHUNKED.search(flags):
        fields["loss_chunks"] = int(chunks[1] or _USUAL_CHUNKS)
    return fields


def _training(kind: str, flags: str) -> str:
    if kind.startswith("pretrain"):
        return "full"
    if re.search(r"qlora|\bnf4\b|4-?bit", kind + flags):
        return "qlora"
    return "lora" if "lora" in kind or re.search(r"\blora\b", flags) else "full"
