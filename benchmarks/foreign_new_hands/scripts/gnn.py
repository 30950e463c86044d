"""A relational graph network over sampled neighbourhoods, messages gathered and added by index."""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick, pinned

CASES = (
    Case(name="gnn_ordinary"),
    Case(name="gnn_loss-each-step", wrong="each"),
    Case(name="gnn_python-sampler", cause="input-stall", wrong="small,python", right="small"),
    Case(name="gnn_relation-loop", cause="launch-bound", wrong="small,in-turn", right="small"),
    Case(name="gnn_largest-index", cause="host-sync", wrong="small,largest", right="small"),
    Case(
        name="gnn_features-on-host",
        cause="pageable-copy",
        wrong="small,host,unpinned",
        right="small,host",
    ),
    Case(name="gnn_empties", cause="memory-pressure", wrong="empties"),
)
RELATIONS = 64
FANOUT = 8
DEGREE = 32


class Neighbourhoods(IterableDataset):
    """Two hops around some nodes: the nodes, the edges by relation, and the first nodes' labels."""

    def __init__(self, nodes, seeds, slow):
        rng = np.random.default_rng(0)
        self.table = rng.integers(0, nodes, (nodes, DEGREE))
        self.nodes, self.seeds, self.slow = nodes, seeds, slow

    def __iter__(self):
        worker = get_worker_info()
        rng = np.random.default_rng(worker.id if worker else 0)
        while True:
            start = rng.choice(self.nodes, self.seeds, replace=False)
            yield self.in_python(start) if self.slow else self.with_arrays(start, rng)

    def with_arrays(self, start, rng):
        columns = rng.integers(0, DEGREE, FANOUT)
        first = self.table[start][:, columns].ravel()
        second = self.table[first][:, columns].ravel()
        source = np.concatenate([first, second])
        target = np.repeat(np.concatenate([start, first]), FANOUT)
        place = np.full(self.nodes, -1, dtype=np.int64)
        found = np.unique(np.concatenate([start, first, second]))
        place[found] = np.arange(len(found))
        return found, np.stack([place[source], place[target]]), place[start]

    def in_python(self, start):
        number, edges, ring = {}, [], [int(node) for node in start]
        for node in ring:
            number.setdefault(node, len(number))
        for _ in range(2):
            outer = []
            for node in ring:
                for other in random.sample(self.table[node].tolist(), FANOUT):
                    number.setdefault(other, len(number))
                    edges.append((number[other], number[node]))
                    outer.append(other)
            ring = outer
        return np.array(list(number)), np.array(edges).T, np.arange(len(start))


class RelationLayer(nn.Module):
    def __init__(self, width, in_turn, largest):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(RELATIONS, width, width) * width**-0.5)
        self.own = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.in_turn, self.largest = in_turn, largest

    def messages(self, h, source):
        gathered = h[source].view(RELATIONS, -1, h.shape[1])
        if not self.in_turn:
            return torch.bmm(gathered, self.weight).flatten(0, 1)
        return torch.cat([part @ w for part, w in zip(gathered, self.weight, strict=True)])

    def forward(self, h, edges):
        source, target = edges
        rows = h.shape[0]
        if self.largest:
            rows = max(rows, int(target.max()) + 1)
            assert int(source.min()) >= 0 and int(target.min()) >= 0
        messages = self.messages(h, source)
        added = torch.zeros(rows, h.shape[1], device=h.device, dtype=messages.dtype)
        added.index_add_(0, target, messages)
        degree = torch.zeros(rows, device=h.device).index_add_(
            0, target, torch.ones(len(target), device=h.device)
        )
        mean = added / degree.clamp(min=1)[:, None]
        return h + F.gelu(self.norm(self.own(h) + mean))


class Network(nn.Module):
    def __init__(self, features, width, layers, fault):
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.layers = nn.ModuleList(
            RelationLayer(width, "in-turn" in fault, "largest" in fault) for _ in range(layers)
        )
        self.leave = nn.Linear(width, 40)

    def forward(self, x, edges, seeds):
        h = self.enter(x)
        for layer in self.layers:
            h = layer(h, edges)
        return self.leave(h[seeds])


class Features:
    """On the device, or on the host where the table is too large for the device."""

    def __init__(self, nodes, width, fault):
        self.fault, self.turn = fault, 0
        self.table = torch.randn(nodes, width)
        if "host" not in fault:
            self.table = self.table.to(device())
        elif "unpinned" not in fault:
            self.buffers = [pinned(torch.empty_like(self.table)) for _ in range(4)]

    def of(self, nodes):
        if "host" not in self.fault:
            return self.table[nodes.to(device(), non_blocking=True)]
        if "unpinned" in self.fault:
            return self.table.index_select(0, nodes).to(device())
        self.turn = (self.turn + 1) % 4
        rows = self.buffers[self.turn][: len(nodes)]
        torch.index_select(self.table, 0, nodes, out=rows)
        return rows.to(device(), non_blocking=True)


def train(watch, fault):
    nodes, width = pick(200_000, 500), pick(256 if "small" in fault else 512, 32)
    seeds = pick(512 if "small" in fault else 3072, 16)
    slow = "python" in fault
    loader = DataLoader(
        Neighbourhoods(nodes, seeds, slow),
        batch_size=None,
        num_workers=0 if slow else pick(6, 0),
        pin_memory=not is_tiny() and "unpinned" not in fault,
    )
    features = Features(nodes, pick(256, 16), fault)
    labels = torch.randint(0, 40, (nodes,), device=device())
    model = Network(pick(256, 16), width, pick(4, 2), fault).to(device())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 500, 0.5)
    for step, batch in enumerate(loader):
        found, edges, first = (torch.as_tensor(part) for part in batch)
        x = features.of(found)
        found, edges, first = (t.to(device(), non_blocking=True) for t in (found, edges, first))
        with torch.autocast(device(), dtype=torch.bfloat16):
            guess = model(x, edges, first)
        loss = F.cross_entropy(guess.float(), labels[found[first]])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if "empties" in fault and not is_tiny():
            torch.cuda.empty_cache()
        if step % 50 == 0 or "each" in fault:
            print("loss", loss.item())
        watch.step()
