"""A Llama-style transformer: RMSNorm, rotary positions, grouped-query attention, gated MLP."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from computeflow.lab.trainer.fp8 import Fp8Linear
from computeflow.lab.trainer.trainer_settings import TrainerSettings


class SelfAttention(nn.Module):
    def __init__(self, settings: TrainerSettings) -> None:
        super().__init__()
        self.heads, self.groups = settings.heads, settings.groups
        self.head_dim, self.fused = settings.head_dim, settings.attention == "fused"
        width = self.head_dim * (self.heads + 2 * self.groups)
        self.qkv = _linear(settings, settings.hidden, width)
        self.out = _linear(settings, settings.hidden, settings.hidden)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        batch, length, _ = x.shape
        sizes = [self.heads, self.groups, self.groups]
        heads = self.qkv(x).view(batch, length, sum(sizes), self.head_dim)
        q, k, v = heads.split(sizes, dim=2)
        q, k = _rotate(q, rotation), _rotate(k, rotation)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.fused:
            mixed = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=self.heads != self.groups
            )
        else:
            mixed = self._unfused(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))

    def _unfused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        repeat = self.heads // self.groups
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
        length = q.shape[-2]
        mask = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        return scores.masked_fill(mask, float("-inf")).softmax(-1, dtype=torch.float32).to(v) @ v


class Mlp(nn.Module):
    def __init__(self, settings: TrainerSettings) -> None:
        super().__init__()
        self.gate_up = _linear(settings, settings.hidden, 2 * settings.ffn_width)
        self.down = _linear(settings, settings.ffn_width, settings.hidden)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        down: Tensor = self.down(F.silu(gate) * up)
        return down


class TransformerBlock(nn.Module):
    def __init__(self, settings: TrainerSettings) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(settings.hidden, eps=1e-5)
        self.attention = SelfAttention(settings)
        self.mlp_norm = nn.RMSNorm(settings.hidden, eps=1e-5)
        self.mlp = Mlp(settings)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        mixed: Tensor = x + self.mlp(self.mlp_norm(x))
        return mixed


class RecomputedBlock(nn.Module):
    """A block whose activations are computed again in the backward pass.

    The recomputation is inside the module, so that compiling the block sees what may be kept:
    around a compiled block, selective recomputation would repeat all of it.
    """

    def __init__(self, settings: TrainerSettings) -> None:
        super().__init__()
        self.block = TransformerBlock(settings)
        self.selective = settings.recompute == "selective"

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.block(x, rotation)
        from torch.utils.checkpoint import checkpoint

        options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        if self.selective:
            options["context_fn"] = _keep_products
        return checkpoint(self.block, x, rotation, **options)


class Transformer(nn.Module):
    """A language model that takes tokens and returns the mean cross-entropy of the next token."""

    def __init__(self, settings: TrainerSettings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(settings.vocab, settings.hidden)
        kind = TransformerBlock if settings.recompute == "none" else RecomputedBlock
        self.blocks = nn.ModuleList(kind(settings) for _ in range(settings.layers))
        self.norm = nn.RMSNorm(settings.hidden, eps=1e-5)
        self.head = nn.Linear(settings.hidden, settings.vocab, bias=False)
        self.register_buffer(
            "rotation", rotations(settings.seq_len, settings.head_dim), persistent=False
        )
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        rotation = self.get_buffer("rotation")[: tokens.shape[1]].to(x.dtype)
        for block in self.blocks:
            x = block(x, rotation)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def _keep_products() -> Any:
    """The policy of selective recomputation: matmul and attention outputs stay, the rest is
    computed again.
    """
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    ops = torch.ops.aten
    return create_selective_checkpoint_contexts(
        [
            ops.mm.default,
            ops.addmm.default,
            ops.bmm.default,
            ops._scaled_dot_product_flash_attention.default,
            ops._scaled_dot_product_cudnn_attention.default,
            ops._scaled_dot_product_efficient_attention.default,
            ops._scaled_dot_product_flash_attention_for_cpu.default,
            ops._scaled_mm.default,
        ]
    )


def _linear(settings: TrainerSettings, inputs: int, outputs: int) -> nn.Linear:
    kind = Fp8Linear if settings.precision == "fp8" else nn.Linear
    return kind(inputs, outputs, bias=False)


def rotations(length: int, head_dim: int, base: float = 500_000.0) -> Tensor:
    """Cosines and sines of rotary positions (arXiv:2104.09864), shape (length, 2, head_dim / 2)."""
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    cos, sin = rotation[None, :, None, 0], rotation[None, :, None, 1]
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
