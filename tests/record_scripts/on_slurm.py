"""Ranks that Slurm starts: train together, save now and then and when asked, go on from the last save.

    srun python on_slurm.py FOLDER TOTAL_STEPS SAVE_EVERY

Each rank works with its CPU for a stretch that it measures by its own CPU time, so that a quota on its
node makes it slow, and other work on the machine does so little. What it says of its steps is a
line of `FOLDER/steps.txt`: attempt, step, loss; `FOLDER/ranks.txt` says which rank ran on which node.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from small import WIDTH, Net
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from computeflow import recorder

FOLDER, TOTAL, EVERY = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
WORK = torch.randn(256, 256)
CPU_SECONDS, IDLE_SECONDS = 0.012, 0.03
job, attempt = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_RESTART_COUNT", "0")
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group(
    "gloo", init_method=f"file://{FOLDER}/meet-{job}-{attempt}", rank=rank, world_size=world
)
torch.set_num_threads(1)
torch.manual_seed(0)


def work():
    """A stretch of CPU time, however long that takes, and one of waiting for a device."""
    end = time.thread_time() + CPU_SECONDS
    while time.thread_time() < end:
        torch.mm(WORK, WORK)
    time.sleep(IDLE_SECONDS)


class Working(Net):
    def forward(self, x):
        work()
        return super().forward(x)


model = DistributedDataParallel(Working(layers=1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
with (FOLDER / "ranks.txt").open("a") as file:
    file.write(f"{job} {attempt} {rank} {os.environ['SLURMD_NODENAME']}\n")
step, every = 0, EVERY
saved = sorted((FOLDER / "saved").glob("step-*.pt"))
if saved:
    state = torch.load(saved[-1], weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = int(state["step"])


@recorder.on_checkpoint
def save():
    if rank == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        part = FOLDER / "saved" / f".step-{step:06d}.pt"
        torch.save(state | {"step": step}, part)
        part.replace(FOLDER / "saved" / f"step-{step:06d}.pt")


@recorder.on_interval
def change(steps):
    global every
    every = steps


lines = (FOLDER / "steps.txt").open("a")
while step < TOTAL and not (FOLDER / "end").exists():
    numbers = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, WIDTH, generator=numbers)
    y = (x.sum(1) > 0).long()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    step += 1
    optimizer.step()
    if rank == 0:
        lines.write(f"{job}.{attempt} {step} {loss.item():.6f}\n")
        lines.flush()
    if step % every == 0:
        save()
dist.destroy_process_group()
