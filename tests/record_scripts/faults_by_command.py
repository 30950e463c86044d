"""Ranks that average their gradients, with the fault that a file names, for as long as it does."""

import gc
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from small import Net, Numbers
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

COMMAND = Path(sys.argv[1])
dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
last = rank == dist.get_world_size() - 1


def fault():
    try:
        return COMMAND.read_text().strip()
    except OSError:
        return ""


class Data(Numbers):
    def __getitem__(self, row):
        if row % 16 == 0 and now == "loader" and last:
            time.sleep(0.06)
        return super().__getitem__(row)


class Slower(Net):
    def forward(self, x):
        time.sleep(0.02)  # a step of some length, so that two cores have room for four ranks
        if now == "compute" and last:
            end = time.perf_counter() + 0.04
            while time.perf_counter() < end:
                x = x + 0.0
        if now == "quota":  # work of all ranks, of which a quota from outside holds one back
            end = time.thread_time() + 0.01
            while time.thread_time() < end:
                x = x + 0.0
        if now == "hang" and last:
            while fault() == "hang":
                time.sleep(0.1)
        return super().forward(x)


now = ""
model = DistributedDataParallel(Slower())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
rubbish = [[[] for _ in range(10)] for _ in range(60_000)] if last else []
large = torch.zeros(8_000_000)
steps = 0
while now != "end":
    for x, y in DataLoader(Data(320), batch_size=16):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if now == "garbage" and last:
            gc.collect()
        optimizer.step()
        steps += 1
        if now == "save" and steps % 10 == 0 and rank == 0:
            for _ in range(4):
                torch.save({"model": model.state_dict(), "large": large}, f"{COMMAND}.saved")
        if now == "kill" and last:
            os.kill(os.getpid(), signal.SIGKILL)
        now = fault()
    stop = torch.tensor([int(now == "end")])
    dist.all_reduce(stop, dist.ReduceOp.MIN)
    now = "end" if stop.item() else "" if now == "end" else now
dist.destroy_process_group()
