"""A recommender with tables of embeddings, after DLRM; a plain script with a feed of its own."""

from __future__ import annotations

import gc
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from benchmarks.foreign_more_styles.common import Case, device, pick, pinned

CASES = (
    Case(name="dlrm_ordinary"),
    Case(name="dlrm_pair-by-pair", cause="launch-bound", wrong="small,pairs", right="small"),
    Case(name="dlrm_from-numpy", cause="pageable-copy", wrong="pageable"),
    Case(name="dlrm_running-auc", cause="host-stall", wrong="auc"),
    Case(name="dlrm_collects", cause="host-stall", wrong="gc", stack=True),
)


def mlp(*widths):
    layers = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers)


class Recommender(nn.Module):
    def __init__(self, tables, rows, dim, hidden, pairwise):
        super().__init__()
        self.pairwise = pairwise
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(tables))
        self.bottom = mlp(13, hidden, dim)
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(mlp(pairs + dim, hidden, hidden, hidden), nn.Linear(hidden, 1))
        one, other = torch.tril_indices(tables + 1, tables + 1, offset=-1, device="cpu")
        self.register_buffer("one", one.clone(), persistent=False)
        self.register_buffer("other", other.clone(), persistent=False)

    def interact(self, vectors):
        if self.pairwise:
            products = []
            for i in range(len(vectors)):
                for j in range(i):
                    products.append((vectors[i] * vectors[j]).sum(dim=1))
            return torch.stack(products, dim=1)
        stacked = torch.stack(vectors, dim=1)
        return torch.bmm(stacked, stacked.transpose(1, 2))[:, self.one, self.other]

    def forward(self, dense, ids):
        x = self.bottom(dense)
        vectors = [x] + [table(ids[t]) for t, table in enumerate(self.tables)]
        return self.top(torch.cat([x, self.interact(vectors)], dim=1)).squeeze(1)


def auc(scores, labels):
    order = np.argsort(scores, kind="mergesort")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    ones = labels.sum()
    zeros = len(labels) - ones
    return (ranks[labels > 0].sum() - ones * (ones + 1) / 2) / max(1, ones * zeros)


def train(watch, fault):
    dev = device()
    small = "small" in fault
    tables, rows, dim, hidden = pick((16, 40_000, 64, 2048), (4, 50, 8, 16))
    batch, hot = pick((1024, 4) if small else (16384, 24), (16, 3))
    rng = np.random.default_rng(0)
    feed = [
        (
            rng.standard_normal((batch, 13), dtype=np.float32),
            rng.integers(0, rows, (tables, batch, hot)),
            rng.integers(0, 2, batch).astype(np.float32),
        )
        for _ in range(4)
    ]
    ready = [[pinned(torch.from_numpy(a)) for a in arrays] for arrays in feed]
    with torch.device(dev):
        model = Recommender(tables, rows, dim, hidden, "pairs" in fault).to(dev)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01, foreach=True)
    criterion = nn.BCEWithLogitsLoss()
    known = [{"user": str(i), "seen": [i, i + 1]} for i in range(100_000)] if "gc" in fault else []
    recent = []
    step = 0
    while True:
        if "pageable" in fault:
            dense, ids, clicked = (torch.from_numpy(a).to(dev) for a in feed[step % 4])
        else:
            dense, ids, clicked = (t.to(dev, non_blocking=True) for t in ready[step % 4])
        with torch.autocast(dev, dtype=torch.bfloat16):
            score = model(dense, ids)
        loss = criterion(score.float(), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "auc" in fault:
            recent = [*recent[-7:], (score.detach().float().cpu().numpy(), feed[step % 4][2])]
            value = auc(*(np.concatenate(part) for part in zip(*recent, strict=True)))
            if step % 50 == 0:
                print(f"auc {value:.4f}")
        if "gc" in fault:
            gc.collect()  # the feed's dicts add up
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} users {len(known)}")
        step += 1
        watch.step()
