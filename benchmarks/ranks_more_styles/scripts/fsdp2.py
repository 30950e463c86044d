"""FSDP2: every block and the root are given to fully_shard."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from .. import work
from ..harness import Block, Run, start, timed

layer = timed("LlamaDecoder")
WIDTH = 64


def main(run: Run) -> None:
    run.init()
    mesh = init_device_mesh("cpu", (run.ranks,))
    model = nn.Sequential(*[Block(run, WIDTH, 0.012, layer) for _ in range(3)])
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    for step in run.steps():
        loss = model(torch.randn(8, WIDTH)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if run.here("gc"):
            work.collect(run.size)
        if step % 5 == 0:
            dist.all_reduce(loss.detach())


if __name__ == "__main__":
    start(main)
