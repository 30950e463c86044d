"""DDP whose gradients are compressed by the PowerSGD communication hook."""

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .. import work
from ..harness import Block, Run, start, timed_op

mixer = timed_op("vendor::gated_mlp")


def main(run: Run) -> None:
    run.init()
    net = nn.Sequential(nn.Linear(32, 96), *[Block(run, 96, 0.008, mixer) for _ in range(4)])
    model = DistributedDataParallel(net, bucket_cap_mb=1)
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=3
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in run.steps():
        optimizer.zero_grad()
        loss = model(torch.randn(16, 32)).square().mean()
        if run.here("python"):
            work.python_loop(run.size)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    start(main)
