"""Ranks that Slurm starts: train together with DDP, and stand still twice: bytes are counted then.

    srun python across_leaves.py FOLDER STEPS

Each rank writes a line of `FOLDER/ranks-JOB.txt`: rank, process, node and switches as Slurm names them.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from small import WIDTH, Net
from torch.nn.parallel import DistributedDataParallel

FOLDER, STEPS = Path(sys.argv[1]), int(sys.argv[2])
job, rank = os.environ["SLURM_JOB_ID"], int(os.environ["SLURM_PROCID"])
torch.set_num_threads(1)
dist.init_process_group(
    "gloo",
    init_method=f"file://{FOLDER}/meet-{job}",
    rank=rank,
    world_size=int(os.environ["SLURM_NTASKS"]),
)
model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, WIDTH)).sum().backward()
        optimizer.step()


def stand(name):
    """Say that this rank has come so far, and wait for the word to go on."""
    (FOLDER / f"{name}-{job}-{rank}").touch()
    while not (FOLDER / f"{name}-{job}").exists():
        time.sleep(0.05)


train(3)  # the first ones agree on buckets
with (FOLDER / f"ranks-{job}.txt").open("a") as file:
    where = f"{os.environ['SLURMD_NODENAME']} {os.environ['SLURM_TOPOLOGY_ADDR']}"
    file.write(f"{rank} {os.getpid()} {where}\n")
stand("warm")
train(STEPS)
stand("done")
dist.destroy_process_group()
