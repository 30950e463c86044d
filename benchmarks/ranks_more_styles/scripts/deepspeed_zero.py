"""DeepSpeed's engine with ZeRO stage 1 and two micro-batches a step."""

import os
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
from torch import nn

from .. import work
from ..harness import Block, Run, start, timed

layer = timed("GPTNeoXLayer")
WIDTH, MICRO = 32, 2


class Model(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block(run, WIDTH, 0.008, layer) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x).square().mean()


def settings(run: Run) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": MICRO,
        "train_batch_size": 4 * MICRO * run.ranks,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 1.0,
        "wall_clock_breakdown": False,
        "steps_per_print": 100000,
    }


def main(run: Run) -> None:
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    model = Model(run)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings(run))
    for _ in run.steps():
        if run.here("loader"):
            time.sleep(run.size)
        for _ in range(MICRO):
            loss = engine(torch.randn(4, WIDTH))
            engine.backward(loss)
            engine.step()
        if run.here("save"):
            work.save(run.size, engine.module.state_dict(), run.scratch / "states.pt")


if __name__ == "__main__":
    start(main)
