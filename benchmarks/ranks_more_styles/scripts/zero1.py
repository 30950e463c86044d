"""DDP with a ZeroRedundancyOptimizer: every rank updates its share and broadcasts it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .. import work
from ..harness import Block, Run, start, timed

layer = timed("RotaryDecoderLayer")


class MasterAdam(torch.optim.Adam):
    """Adam that, with the fault, keeps its moments in double precision too."""

    run: Run

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        if self.run.here("slow-optimizer"):
            work.until(self.run.size, self._master)
        return loss

    def _master(self) -> None:
        moments = torch.cat([state["exp_avg"].reshape(-1) for state in self.state.values()])
        moments.repeat(100).double().mul_(0.999).sqrt_().float()


def main(run: Run) -> None:
    run.init()
    MasterAdam.run = run
    net = nn.Sequential(*[Block(run, 48, 0.01, layer) for _ in range(4)])
    model = DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=MasterAdam, lr=1e-3)
    for step in run.steps():
        loss = model(torch.randn(4, 48)).pow(2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if run.here("save"):
            work.save(run.size, net.state_dict(), run.scratch / "model.pt")
        if step % 10 == 9:
            dist.all_reduce(loss.detach())


if __name__ == "__main__":
    start(main)
