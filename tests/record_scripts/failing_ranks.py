"""Ranks that average their gradients; rank 1 sleeps, is killed or raises, or all save."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from small import Net, Numbers
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

FAULT, AT = sys.argv[1], 60
dist.init_process_group("gloo")
torch.set_num_threads(1)
chosen = dist.get_rank() == 1
done = 0


def fail(place):
    """What goes wrong on rank 1, at this place of the step."""
    if not chosen or done != AT or place != FAULT:
        return
    if FAULT == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "raises":
        raise RuntimeError("its own mistake")
    if FAULT == "collective":
        dist.barrier(group=other)
    time.sleep(600)


class Sleepy(Net):
    def forward(self, x):
        fail("forward")
        return super().forward(x)


class Slow(Numbers):
    def __getitem__(self, at):
        fail("loader")
        return super().__getitem__(at)


other = dist.new_group()
dist.barrier(group=other)
model = DistributedDataParallel(Sleepy())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for x, y in DataLoader(Slow(1_280), batch_size=16):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    for place in ("code", "killed", "raises", "collective"):
        fail(place)
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    done += 1
if FAULT == "ending":
    model.eval()
    with torch.no_grad():
        until = time.perf_counter() + 1.5
        while time.perf_counter() < until:
            model.module(x)
    model.train()
    if not dist.get_rank():

        class Heavy:
            def __reduce__(self):
                time.sleep(2.0)
                return (dict, ())

        torch.save({"model": model.module.state_dict(), "more": Heavy()}, "last.pt")
    dist.barrier()
dist.destroy_process_group()
