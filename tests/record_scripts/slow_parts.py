"""A loop with slow data and a storm of garbage collections."""

import gc
import sys
import time

import torch
from small import Net, Numbers, tell
from torch import nn
from torch.utils.data import DataLoader

workers = int(sys.argv[1])
data = Numbers(320, seconds=0.002)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
updates, collecting, loading = 0, 0.0, 0.0
kept = [[[] for _ in range(10)] for _ in range(4_000)]
began = time.perf_counter()
batches = iter(DataLoader(data, batch_size=16, num_workers=workers))
loading += time.perf_counter() - began
while True:
    began = time.perf_counter()
    batch = next(batches, None)
    loading += time.perf_counter() - began
    if batch is None:
        break
    x, y = batch
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    began = time.perf_counter()
    for _ in range(3):
        gc.collect()
    collecting += time.perf_counter() - began
    optimizer.step()
    updates += 1
tell(updates, d=loading, g=collecting)
