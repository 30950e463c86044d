"""Experts written by hand: the first of each token's choice, with a fixed room in each expert."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.foreign_more_styles.common import Case, device, pick

CASES = (
    Case(name="moe_ordinary"),
    Case(name="moe_expert-by-expert", cause="launch-bound", wrong="small,loop", right="small"),
    Case(name="moe_load-check", cause="host-sync", wrong="half,load", right="half"),
)


class Experts(nn.Module):
    """All experts in one product, or one expert after the other."""

    def __init__(self, count, dim, hidden, loop):
        super().__init__()
        self.loop = loop
        self.up = nn.Parameter(torch.randn(count, dim, hidden) * dim**-0.5)
        self.down = nn.Parameter(torch.randn(count, hidden, dim) * hidden**-0.5)

    def forward(self, x):
        if not self.loop:
            return torch.bmm(F.gelu(torch.bmm(x, self.up)), self.down)
        ups, downs, xs = self.up.unbind(), self.down.unbind(), x.unbind()
        return torch.stack(
            [F.gelu(one @ up) @ down for one, up, down in zip(xs, ups, downs, strict=True)]
        )


class MoELayer(nn.Module):
    def __init__(self, count, dim, hidden, fault):
        super().__init__()
        self.count, self.fault = count, fault
        self.router = nn.Linear(dim, count, bias=False)
        self.experts = Experts(count, dim, hidden, "loop" in fault)
        self.history = []

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        room = len(flat) // self.count * 5 // 4
        gate, choice = F.softmax(self.router(flat).float(), -1).max(-1)
        mine = F.one_hot(choice, self.count)
        place = (mine.cumsum(0) * mine).sum(-1) - 1
        kept = place < room
        slot = torch.where(kept, choice * room + place, self.count * room)
        boxes = flat.new_zeros(self.count * room + 1, flat.shape[-1]).index_copy(0, slot, flat)
        out = self.experts(boxes[:-1].view(self.count, room, -1)).flatten(0, 1)
        out = torch.cat([out, out.new_zeros(1, out.shape[-1])])[slot]
        if "load" in self.fault:
            load = mine.sum(0)
            self.history.append(load.tolist())
            if load.max() > 2 * load.float().mean() and not kept.all():
                self.history[-1].append("overflow")
        return (out * gate[:, None].to(out.dtype)).view(x.shape)


class Layer(nn.Module):
    def __init__(self, dim, heads, count, hidden, fault):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.moe = MoELayer(count, dim, hidden, fault)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, n, d))
        return x + self.moe(self.norm2(x))


def train(watch, fault):
    dev = device()
    small = "small" in fault
    vocab, dim, heads, layers, hidden = pick((32000, 1024, 16, 6, 4096), (64, 16, 2, 2, 32))
    if small:
        vocab, dim, heads, layers, hidden = pick((8000, 512, 8, 6, 1024), (64, 16, 2, 2, 32))
    rows = 6 if "half" in fault else 16
    batch, length, count = pick((4, 256, 16) if small else (rows, 1024, 8), (2, 16, 4))
    with torch.device(dev):
        embed = nn.Embedding(vocab, dim)
        body = nn.Sequential(*(Layer(dim, heads, count, hidden, fault) for _ in range(layers)))
        model = nn.Sequential(embed, body, nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-4, total_steps=20_000)
    corpus = torch.randint(0, vocab, (64, length + 1), device=dev)
    total = torch.zeros((), device=dev)
    step = 0
    while True:
        rows = corpus[torch.randint(0, 64, (batch,), device=dev)]
        with torch.autocast(dev, dtype=torch.bfloat16):
            logits = model(rows[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        total += loss.detach()
        if step % 100 == 99:
            print(f"{step + 1} {total.item() / 100:.4f}")
            total.zero_()
        step += 1
        watch.step()
