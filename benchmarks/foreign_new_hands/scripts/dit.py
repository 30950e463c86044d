"""A diffusion transformer on latents, by hand: an endless loop with an average of the weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="dit_ordinary"),
    Case(name="dit_compiled", wrong="compiled", limit_seconds=80),
    Case(name="dit_written-attention", cause="unfused-attention", wrong="written"),
    Case(name="dit_loss-by-bin", cause="host-sync", wrong="few,bins", right="few"),
    Case(
        name="dit_average-to-disk", cause="checkpoint-stall", wrong="few,disk", right="few", cycle=3
    ),
    Case(
        name="dit_sizes-in-turn",
        cause="memory-pressure",
        wrong="sizes,tight",
        right="sizes",
        cycle=3,
    ),
    Case(name="dit_recomputes", cause="recompute-excess", wrong="again"),
)


def modulate(x, shift, scale):
    return x * (1 + scale[:, None]) + shift[:, None]


class DiTBlock(nn.Module):
    def __init__(self, width, heads, written):
        super().__init__()
        self.heads, self.written = heads, written
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def attention(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.written:
            weights = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
            mixed = weights.softmax(-1).to(v.dtype) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(c).chunk(6, dim=1)
        x = x + gate1[:, None] * self.attention(modulate(self.norm1(x), shift1, scale1))
        return x + gate2[:, None] * self.mlp(modulate(self.norm2(x), shift2, scale2))


class DiT(nn.Module):
    def __init__(self, width, depth, heads, fault):
        super().__init__()
        self.patch = nn.Conv2d(4, width, 2, 2)
        self.place = nn.Parameter(torch.randn(1, 1024, width) * 0.02)
        self.label = nn.Embedding(1001, width)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(
            DiTBlock(width, heads, "written" in fault) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.final = nn.Linear(width, 16)
        self.again = "again" in fault

    def forward(self, latents, time, labels):
        x = self.patch(latents).flatten(2).transpose(1, 2)
        x = x + self.place[:, : x.shape[1]]
        steps = torch.exp(-torch.arange(128, device=x.device) / 14)
        angles = time[:, None] * 1000 * steps
        c = self.time(torch.cat([angles.sin(), angles.cos()], 1)) + self.label(labels)
        for block in self.blocks:
            x = checkpoint(block, x, c, use_reentrant=False) if self.again else block(x, c)
        return self.final(self.norm(x))


def patches(latents):
    return F.pixel_unshuffle(latents, 2).flatten(2).transpose(1, 2)


def latents_of(step, batch, fault):
    side = pick(32, 8)
    if "sizes" in fault:
        side = pick((28, 36, 32), (8, 12, 10))[step % 3]
    return torch.randn(batch, 4, side, side, device=device())


def squeeze(share):
    """As on a card where another job holds the rest."""
    torch.cuda.empty_cache()
    memory = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(
        min(1.0, share * torch.cuda.max_memory_allocated() / memory)
    )


def loss_by_bin(errors, time):
    """The mean loss of ten ranges of time, as a table for the log."""
    table = {}
    for k in range(10):
        inside = (time >= k / 10) & (time < (k + 1) / 10)
        if inside.any():
            table[k] = errors[inside].mean().item()
    return table


def save_average(average, folder):
    torch.save({k: v.cpu() for k, v in average.items()}, folder / "ema.pt")


def errors_of(model, latents, time, labels):
    noise = torch.randn_like(latents)
    at = time[:, None, None, None]
    with torch.autocast(device(), dtype=torch.bfloat16):
        velocity = model((1 - at) * latents + at * noise, time, labels)
    return (velocity.float() - patches(noise - latents)).square().mean((1, 2))


def make(fault):
    depth = pick(6 if "few" in fault else 12, 2)
    model = DiT(pick(768, 32), depth, pick(12, 2), fault).to(device())
    if "compiled" in fault and not is_tiny():
        for block in model.blocks:
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
    return model, optimizer


def train(watch, fault):
    model, optimizer = make(fault)
    average = {k: p.detach().clone() for k, p in model.named_parameters()}
    folder, batch, share, step = Path(tempfile.mkdtemp()), pick(64, 2), 1.04, 0
    while True:
        step += 1
        if "tight" in fault and not is_tiny() and step == 4:
            squeeze(share)
        latents = latents_of(step, batch, fault)
        time = torch.rand(batch, device=device())
        labels = torch.randint(0, 1000, (batch,), device=device())
        try:
            errors = errors_of(model, latents, time, labels)
            errors.mean().backward()
        except torch.OutOfMemoryError:
            optimizer.zero_grad()
            errors, share = None, share + 0.06
            squeeze(share)
            continue
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.values()), list(model.parameters()), 1e-4)
        if "bins" in fault:
            loss_by_bin(errors.detach(), time)
        if "disk" in fault and step % 3 == 0:
            save_average(average, folder)
        if step % 50 == 0:
            print(step, errors.mean().item())
        watch.step()
