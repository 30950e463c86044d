"""A state-space language model by hand: chunks as matrix products, states handed on."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.foreign_more_styles.common import Case, device, pick, pinned

CASES = (
    Case(name="ssm_ordinary"),
    Case(name="ssm_token-by-token", cause="launch-bound", wrong="brief,tokens", right="brief"),
    Case(name="ssm_every-block-again", cause="recompute-excess", wrong="again"),
    Case(name="ssm_own-lion", cause="unfused-optimizer", wrong="by-parameter"),
    Case(name="ssm_saves", cause="checkpoint-stall", wrong="saves", cycle=3),
    Case(name="ssm_collects", cause="host-stall", wrong="collects"),
)
CHUNK = 32


def scan_tokens(decay, entering):
    """One state after another."""
    state, states = torch.zeros_like(entering[:, 0]), []
    for t in range(entering.shape[1]):
        state = decay[:, t, :, None, None] * state + entering[:, t]
        states.append(state)
    return torch.stack(states, 1)


def mix_by_token(x, keys, queries, log_decay):
    entering = torch.einsum("blhp,bln->blhpn", x, keys)
    return torch.einsum("blhpn,bln->blhp", scan_tokens(log_decay.exp(), entering), queries)


def mix_by_chunk(x, keys, queries, log_decay):
    b, length, heads, p = x.shape
    chunks = length // CHUNK
    x, keys, queries = (t.unflatten(1, (chunks, CHUNK)) for t in (x, keys, queries))
    total = log_decay.unflatten(1, (chunks, CHUNK)).float().cumsum(2)
    between = total[:, :, :, None] - total[:, :, None]
    causal = torch.ones(CHUNK, CHUNK, device=x.device, dtype=torch.bool).tril()
    weights = between.masked_fill(~causal[None, None, :, :, None], float("-inf")).exp().to(x.dtype)
    scores = torch.einsum("bcin,bcjn->bcij", queries, keys)
    within = torch.einsum("bcijh,bcjhp->bcihp", weights * scores[..., None], x)
    to_end = (total[:, :, -1:] - total).exp().to(x.dtype)
    adds = torch.einsum("bcjn,bcjhp->bchpn", keys, x * to_end[..., None])
    state, before = torch.zeros_like(adds[:, 0]), []
    ends = total[:, :, -1].exp().to(x.dtype)
    for chunk in range(chunks):
        before.append(state)
        state = ends[:, chunk, :, None, None] * state + adds[:, chunk]
    carried = torch.einsum("bcin,bchpn->bcihp", queries, torch.stack(before, 1))
    return (within + carried * total.exp().to(x.dtype)[..., None]).reshape(b, length, heads, p)


class Block(nn.Module):
    def __init__(self, width, heads, states, by_token):
        super().__init__()
        self.heads, self.states = heads, states
        self.norm = nn.RMSNorm(width)
        self.enter = nn.Linear(width, 2 * width + 2 * states + heads)
        self.leave = nn.Linear(width, width)
        self.mix = mix_by_token if by_token else mix_by_chunk

    def forward(self, h):
        width = h.shape[-1]
        parts = self.enter(self.norm(h)).split(
            [width, width, self.states, self.states, self.heads], -1
        )
        x, gate, keys, queries, decay = parts
        x = x.unflatten(-1, (self.heads, -1))
        mixed = self.mix(x, keys, queries, -F.softplus(decay))
        return h + self.leave(mixed.flatten(2).to(gate.dtype) * F.silu(gate))


class Model(nn.Module):
    def __init__(self, vocabulary, width, heads, layers, fault):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, pick(64, 4), "tokens" in fault) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.again = "again" in fault

    def forward(self, ids):
        h = self.embed(ids)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.again else block(h)
        return self.head(self.norm(h))


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.1, together=True):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.together = together

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                if not self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            momenta = [self.state[p]["momentum"] for p in params]
            grads = [p.grad for p in params]
            (self.at_once if self.together else self.one_by_one)(params, grads, momenta, group)

    def one_by_one(self, params, grads, momenta, group):
        lr, (first, second) = group["lr"], group["betas"]
        for p, grad, momentum in zip(params, grads, momenta, strict=True):
            p.data = p.data * (1 - lr * group["weight_decay"])
            update = torch.sign(momentum * first + grad * (1 - first))
            p.data = p.data - lr * update
            momentum.copy_(momentum * second + grad * (1 - second))

    def at_once(self, params, grads, momenta, group):
        lr, (first, second) = group["lr"], group["betas"]
        torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        update = torch._foreach_lerp(grads, momenta, first)
        torch._foreach_sign_(update)
        torch._foreach_add_(params, update, alpha=-lr)
        torch._foreach_lerp_(momenta, grads, 1 - second)


class Run:
    def __init__(self, fault):
        self.fault = fault
        self.vocabulary = pick(32000, 100)
        self.model = Model(
            self.vocabulary,
            pick(1024, 32),
            pick(16, 2),
            pick(4 if "brief" in fault else 6, 2),
            fault,
        ).to(device())
        self.optimizer = Lion(self.model.parameters(), together="by-parameter" not in fault)
        self.file = Path(tempfile.mkdtemp()) / "last.pt"
        self.merges = []
        if "collects" in fault:  # a tokenizer's table
            self.merges = [(i, [str(i)], {"rank": i}) for i in range(pick(150_000, 100))]

    def batch(self):
        size, length = pick(16, 2), pick(96 if "brief" in self.fault else 512, CHUNK)
        return pinned(torch.randint(0, self.vocabulary, (size, length))).to(
            device(), non_blocking=True
        )

    def save(self):
        with self.file.open("wb") as file:
            torch.save({"model": self.model.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())

    def step(self, number):
        ids = self.batch()
        with torch.autocast(device(), dtype=torch.bfloat16):
            logits = self.model(ids)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if "saves" in self.fault and number % 3 == 0:
            self.save()
        if "collects" in self.fault:
            gc.collect()
        return loss.detach()


def train(watch, fault):
    run, losses = Run(fault), []
    for number in range(10**9):
        losses.append(run.step(number))
        if len(losses) == 30:
            print("mean", torch.stack(losses).mean().item())
            losses.clear()
        watch.step()
