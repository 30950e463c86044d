"""DiLoCo: ranks train on their own for some inner steps, then average what changed."""

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from .. import work
from ..harness import Block, Run, start, timed

layer = timed("InnerLayer")
INNER = 4


def outer_step(model: nn.Module, anchor: list[torch.Tensor], outer: torch.optim.Optimizer) -> None:
    """Average the pseudo-gradients and take the outer step from the anchor."""
    for kept, now in zip(anchor, model.parameters(), strict=True):
        kept.grad = kept.data - now.data
        dist.all_reduce(kept.grad)
        kept.grad /= dist.get_world_size()
    outer.step()
    with torch.no_grad():
        for kept, now in zip(anchor, model.parameters(), strict=True):
            now.copy_(kept)


def main(run: Run) -> None:
    run.init()
    model = nn.Sequential(*[Block(run, 32, 0.005, layer) for _ in range(2)])
    anchor = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = torch.optim.SGD(anchor, lr=0.7, momentum=0.9, nesterov=True)
    for _ in run.steps():
        for _ in range(INNER):
            with record_function("local"):
                loss = model(torch.randn(8, 32)).square().mean()
                loss.backward()
                inner.step()
                inner.zero_grad()
        if run.here("save"):
            work.save(run.size, model.state_dict(), run.scratch / "island.pt")
        with record_function("outer round"):
            outer_step(model, anchor, outer)


if __name__ == "__main__":
    start(main)
