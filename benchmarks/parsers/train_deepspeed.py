"""Train a tiny model by a ds_config.json; started by torchrun with the file and a number of steps.

The file gives everything but the model and its data: optimizer, precision, stage, batch, accumulation.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def model(width: int = 64) -> Any:
    nn = import_module("torch").nn
    blocks = [
        nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        for _ in range(4)
    ]
    return nn.Sequential(*blocks, nn.Linear(width, 8))


def main(file: str, steps: int) -> None:
    torch, deepspeed = import_module("torch"), import_module("deepspeed")
    torch.manual_seed(0)  # the same weights on every rank
    engine, *_ = deepspeed.initialize(model=model(), config=file)
    settings = json.loads(Path(file).read_text())
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(1 + rank)
    kind = torch.bfloat16 if settings["bf16"]["enabled"] else torch.float32
    rounds = settings["gradient_accumulation_steps"]
    shape = (rounds, settings["train_micro_batch_size_per_gpu"], 64)
    data, targets = torch.randn(shape, dtype=kind), torch.randint(8, shape[:2])
    for step in range(1, steps + 1):
        total = torch.zeros(())
        for inputs, wanted in zip(data, targets, strict=True):
            loss = torch.nn.functional.cross_entropy(engine(inputs).float(), wanted)
            engine.backward(loss)
            engine.step()
            total += loss.detach() / rounds
        torch.distributed.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {total.item() / ranks:.4f}", flush=True)
    if rank == 0:
        kept = type(engine.optimizer).__name__
        print(f"stage {engine.zero_optimization_stage()}, {kept}, steps {engine.global_steps}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
