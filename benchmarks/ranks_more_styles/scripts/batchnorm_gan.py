"""A GAN in two DDP models with synchronised batch norm made from differentiable all-reduces."""

import random

import torch
import torch.distributed.nn.functional as dist_nn
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from .. import work
from ..harness import Run, start, timed

conv = timed("SpectralConv")
WIDTH = 24


class SyncNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        sums = torch.stack([x.mean(0), x.square().mean(0)])
        mean, square = dist_nn.all_reduce(sums) / torch.distributed.get_world_size()
        return (x - mean) * torch.rsqrt(square - mean.square() + 1e-3)


class Conv(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), SyncNorm()

    def forward(self, x: Tensor) -> Tensor:
        pace = self.run.pace()
        if self.run.here("jitter"):
            pace += random.random() * self.run.size
        return self.norm(conv(self.linear(x), 0.006 * pace)).relu()


def make(run: Run) -> DistributedDataParallel:
    net = nn.Sequential(Conv(run), Conv(run), nn.Linear(WIDTH, WIDTH))
    return DistributedDataParallel(net, broadcast_buffers=False)


def main(run: Run) -> None:
    run.init()
    random.seed(7 + run.rank)
    maker, critic = make(run), make(run)
    maker_optim = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.9))
    critic_optim = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.9))
    for _ in run.steps():
        with record_function("critic turn"):
            with torch.no_grad():
                fake = maker.module[2](torch.randn(16, WIDTH))
            critic_optim.zero_grad()
            (critic(fake).mean() - fake.mean()).backward()
            critic_optim.step()
        with record_function("generator turn"):
            maker_optim.zero_grad()
            out = maker(torch.randn(16, WIDTH))
            (-critic.module[2](out).mean()).backward()
            maker_optim.step()
        if run.here("save"):
            work.save(run.size, maker.module.state_dict(), run.scratch / "images.pt")


if __name__ == "__main__":
    start(main)
