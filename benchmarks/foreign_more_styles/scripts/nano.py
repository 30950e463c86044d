"""A small GPT written by hand in one file, trained by a plain script on a flat array of tokens."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from benchmarks.foreign_more_styles.common import Case, device, pick, pinned

CASES = (
    Case(name="nano_ordinary"),
    Case(name="nano_written-softmax", cause="unfused-attention", wrong="softmax"),
    Case(name="nano_own-adam", cause="unfused-optimizer", wrong="own-adam", right="adam"),
    Case(name="nano_head-in-fp32", cause="matmul-precision", wrong="fp32-head"),
    Case(name="nano_two-by-two", cause="small-micro-batch", wrong="short,micro", right="short"),
    Case(name="nano_compiled", wrong="compile", limit_seconds=100),
)


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, block, flash):
        super().__init__()
        self.heads, self.flash = heads, flash
        self.c_attn = nn.Linear(dim, 3 * dim, bias=False)
        self.c_proj = nn.Linear(dim, dim, bias=False)
        if not flash:
            mask = torch.tril(torch.ones(block, block)).view(1, 1, block, block)
            self.register_buffer("bias", mask)

    def forward(self, x):
        B, T, C = x.shape  # noqa: N806
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, dim, heads, block, flash):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(dim, bias=False), nn.LayerNorm(dim, bias=False)
        self.attn = SelfAttention(dim, heads, block, flash)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim, bias=False), nn.GELU(), nn.Linear(4 * dim, dim, bias=False)
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab, dim, heads, layers, block, flash=True, fp32_head=False):
        super().__init__()
        self.fp32_head = fp32_head
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(block, dim)
        self.h = nn.ModuleList(Block(dim, heads, block, flash) for _ in range(layers))
        self.ln_f = nn.LayerNorm(dim, bias=False)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.apply(self._init)

    @staticmethod
    def _init(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        if self.fp32_head:  # "for stability"
            with torch.autocast(idx.device.type, enabled=False):
                logits = self.lm_head(x.float())
        else:
            logits = self.lm_head(x)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class MyAdam:
    """Adam after the paper."""

    def __init__(self, params, lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1):
        self.params = list(params)
        self.lr, self.betas, self.eps, self.wd, self.t = lr, betas, eps, weight_decay, 0
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        for i, p in enumerate(self.params):
            self.m[i] = b1 * self.m[i] + (1 - b1) * p.grad
            self.v[i] = b2 * self.v[i] + (1 - b2) * p.grad**2
            m_hat = self.m[i] / (1 - b1**self.t)
            v_hat = self.v[i] / (1 - b2**self.t)
            p -= self.lr * (m_hat / (v_hat.sqrt() + self.eps) + self.wd * p)

    def zero_grad(self):
        for p in self.params:
            p.grad = None


def train(watch, fault):
    dev = device()
    short = "short" in fault
    vocab, dim, heads, layers = pick((50304, 1024, 16, 8), (128, 32, 2, 2))
    block = pick(512 if short else 1024, 16)
    batch_size = pick(16 if short else 8 if "adam" in fault else 12, 4)
    micro = pick(2, 1) if "micro" in fault else batch_size
    accumulate = batch_size // micro
    if short or "compile" in fault:
        layers = pick(5, 2)
    data = np.random.default_rng(0).integers(0, vocab, 400_000).astype(np.uint16)

    def get_batch():
        ix = np.random.randint(0, len(data) - block - 1, micro)
        x = torch.stack([torch.from_numpy(data[i : i + block].astype(np.int64)) for i in ix])
        y = torch.stack(
            [torch.from_numpy(data[i + 1 : i + 1 + block].astype(np.int64)) for i in ix]
        )
        return (pinned(t).to(dev, non_blocking=True) for t in (x, y))

    with torch.device(dev):
        model = GPT(vocab, dim, heads, layers, block, "softmax" not in fault, "fp32-head" in fault)
    if "own-adam" in fault:
        optimizer = MyAdam(model.parameters(), 3e-4)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), 3e-4, (0.9, 0.95), fused=True)
    forward = torch.compile(model) if "compile" in fault and dev == "cuda" else model
    it = 0
    X, Y = get_batch()  # noqa: N806
    while True:
        lr = 3e-4 * 0.5 * (1 + math.cos(math.pi * min(it, 5000) / 5000))
        if isinstance(optimizer, MyAdam):
            optimizer.lr = lr
        else:
            for group in optimizer.param_groups:
                group["lr"] = lr
        for _ in range(accumulate):
            with torch.autocast(dev, dtype=torch.bfloat16):
                loss = forward(X, Y) / accumulate
            X, Y = get_batch()  # noqa: N806
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if it % 10 == 0:
            print(f"iter {it}: loss {loss.item() * accumulate:.4f}, lr {lr:.2e}")
        it += 1
        watch.step()
