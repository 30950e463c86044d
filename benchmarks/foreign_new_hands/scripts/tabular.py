"""Rows of a table, a residual network of embeddings and numbers: an estimator with `fit`."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick, pinned

CASES = (
    Case(name="tabular_ordinary"),
    Case(name="tabular_row-by-row", cause="input-stall", wrong="small,rows", right="small"),
    Case(name="tabular_drift-report", cause="host-stall", wrong="drift"),
    Case(
        name="tabular_column-by-column", cause="launch-bound", wrong="small,columns", right="small"
    ),
    Case(name="tabular_own-adamw", cause="unfused-optimizer", wrong="own"),
    Case(name="tabular_early-stopping", cause="evaluation", wrong="stopping", cycle=3),
)
COLUMNS, LEVELS, DIM, NUMBERS = 64, 500, 16, 64


class Embeddings(nn.Module):
    """One table with an offset for each column, or a table for each."""

    def __init__(self, in_turn):
        super().__init__()
        self.in_turn = in_turn
        if in_turn:
            self.tables = nn.ModuleList(nn.Embedding(LEVELS, DIM) for _ in range(COLUMNS))
        else:
            self.table = nn.Embedding(LEVELS * COLUMNS, DIM)
            self.register_buffer("offsets", torch.arange(COLUMNS) * LEVELS)

    def forward(self, levels):
        if self.in_turn:
            return torch.cat([table(levels[:, k]) for k, table in enumerate(self.tables)], 1)
        return self.table(levels + self.offsets).flatten(1)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm1d(width),
            nn.Linear(width, 2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, width),
        )

    def forward(self, x):
        return x + self.body(x)


class OwnAdamW:
    def __init__(self, params, lr):
        self.params, self.lr, self.t = list(params), lr, 0
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.t += 1
        for p, m, v in zip(self.params, self.m, self.v, strict=True):
            m.copy_(0.9 * m + 0.1 * p.grad)
            v.copy_(0.999 * v + 0.001 * p.grad**2)
            right_m, right_v = m / (1 - 0.9**self.t), v / (1 - 0.999**self.t)
            p.copy_(p * (1 - self.lr * 0.01) - self.lr * right_m / (right_v.sqrt() + 1e-8))


def drift_report(numbers, levels, reference):
    """How far the batch's columns lie from those of the whole table."""
    quantiles = np.quantile(numbers.numpy(), (0.1, 0.25, 0.5, 0.75, 0.9), axis=0)
    quantiles += np.quantile(levels.numpy(), (0.1, 0.25, 0.5, 0.75, 0.9), axis=0) / LEVELS
    shares = [np.bincount(column, minlength=LEVELS).max() for column in levels.numpy().T]
    return float(np.abs(quantiles - reference).max()), max(shares)


class TabularRegressor:
    def __init__(self, fault, epochs=10_000):
        self.fault, self.epochs = fault, epochs
        width = pick(512 if "small" in fault else 1536, 16)
        self.batch = pick(4096 if "small" in fault else 16384, 32)
        self.embed = Embeddings("columns" in fault)
        self.body = nn.Sequential(
            nn.Linear(COLUMNS * DIM + NUMBERS, width),
            *(Residual(width) for _ in range(pick(6, 1))),
            nn.Linear(width, 1),
        )
        self.model = nn.ModuleList([self.embed, self.body]).to(device())
        params = self.model.parameters()
        own = "own" in fault
        self.optimizer = (
            OwnAdamW(params, 1e-3) if own else torch.optim.AdamW(params, lr=1e-3, fused=True)
        )

    def predict(self, levels, numbers):
        with torch.autocast(device(), dtype=torch.bfloat16):
            return self.body(torch.cat([self.embed(levels), numbers], 1))[:, 0]

    def batches(self, levels, numbers, wanted):
        if "rows" in self.fault:
            data = TensorDataset(levels, numbers, wanted)
            yield from DataLoader(
                data, batch_size=self.batch, shuffle=True, pin_memory=not is_tiny()
            )
            return
        for start in range(0, len(wanted) - self.batch + 1, self.batch):
            yield tuple(t[start : start + self.batch] for t in (levels, numbers, wanted))

    def partial_fit(self, levels, numbers, wanted):
        levels, numbers, wanted = (
            t.to(device(), non_blocking=True) for t in (levels, numbers, wanted)
        )
        loss = F.mse_loss(self.predict(levels, numbers).float(), wanted)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    @torch.no_grad()
    def score(self, held_out, parts):
        self.model.eval()
        levels, numbers, wanted = held_out
        total = sum(F.mse_loss(self.predict(levels, numbers).float(), wanted) for _ in range(parts))
        self.model.train()
        return total.item() / parts

    def fit(self, levels, numbers, wanted, watch):
        held_out = [t[: self.batch].to(device()) for t in (levels, numbers, wanted)]
        reference = np.zeros((5, NUMBERS))
        best, step = float("inf"), 0
        for _ in range(self.epochs):
            for batch in self.batches(levels, numbers, wanted):
                loss = self.partial_fit(*batch)
                step += 1
                if "drift" in self.fault:
                    drift_report(batch[1], batch[0], reference)
                if "stopping" in self.fault and step % 3 == 0:
                    best = min(best, self.score(held_out, 6))
                if step % 50 == 0:
                    print(step, loss.item(), best)
                watch.step()


def train(watch, fault):
    rows = pick(4 * 16384, 128)
    levels = pinned(torch.randint(0, LEVELS, (rows, COLUMNS)))
    numbers, wanted = pinned(torch.randn(rows, NUMBERS)), pinned(torch.randn(rows))
    TabularRegressor(fault).fit(levels, numbers, wanted, watch)
