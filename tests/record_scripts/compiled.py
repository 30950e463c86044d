"""`torch.compile` in the ways that people use it: the model, in place, the step, the optimizer."""

import json
import sys

import torch
import torch._dynamo
from small import Net, Numbers, tell
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader

way = sys.argv[1]
backend = sys.argv[2] if len(sys.argv) > 2 else "aot_eager"
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step_optimizer = optimizer.step


def loss_of(x, y):
    return nn.functional.cross_entropy(model(x), y)


def train_step(x, y):
    loss = loss_of(x, y)
    loss.backward()
    step_optimizer()
    optimizer.zero_grad()
    return loss


if way == "module":
    model = torch.compile(model, backend=backend)
elif way == "in-place":
    model.compile(backend=backend)
elif way == "blocks":
    for block in model.blocks:
        block.compile(backend=backend)
elif way == "step":
    train_step = torch.compile(train_step, backend=backend)
elif way == "loss":
    loss_of = torch.compile(loss_of, backend=backend, fullgraph=True)
elif way == "optimizer":
    step_optimizer = torch.compile(optimizer.step, backend=backend)
updates = 0
for size in (32, 32, 24):  # another shape compiles once more, with hooks that are there by then
    for x, y in DataLoader(Numbers(10 * size), batch_size=size):
        train_step(x, y)
        updates += 1
    model.eval()
    with torch.no_grad():
        for x, _ in DataLoader(Numbers(2 * size), batch_size=size):
            model(x)
    model.train()
tell(updates)
print("\nDYNAMO " + json.dumps({name: dict(counters[name]) for name in ("stats", "graph_break")}))
