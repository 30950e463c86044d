"""Two ranks that average their gradients; rank 1 may compute, load or collect garbage for longer."""

import gc
import sys
import time

import torch
import torch.distributed as dist
from small import Net, Numbers
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

FAULT = sys.argv[1]
dist.init_process_group("gloo")
torch.set_num_threads(1)
slow = dist.get_rank() == 1


class Slower(Net):
    def forward(self, x):
        if FAULT == "compute" and slow and self.training:
            end = time.perf_counter() + 0.03
            while time.perf_counter() < end:
                x = x + 0.0
        return super().forward(x)


model = DistributedDataParallel(Slower())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
data = Numbers(1_600, seconds=0.002 if FAULT == "loader" and slow else 0.0)
rubbish = [[[] for _ in range(10)] for _ in range(40_000)] if FAULT == "garbage" and slow else []
for x, y in DataLoader(data, batch_size=16):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    if rubbish:
        gc.collect()
    optimizer.step()
dist.destroy_process_group()
