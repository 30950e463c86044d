"""The Python file of FSDP2 and DDP: loaded, and its toy model sharded over the plan's ranks."""

from __future__ import annotations

import runpy
from importlib import import_module
from pathlib import Path

from benchmarks.parsers.answers import Asked, answer, expect, ranks


def take(request: Asked) -> None:
    module = runpy.run_path(str(Path(request.folder) / "fsdp2.py"), run_name="fsdp2")
    with ranks(request.gpus):
        model = module["parallelize"](module["Toy"]())
        module["make_optimizer"](model, lr=1e-3)
        sharded = isinstance(model, import_module("torch.distributed.fsdp").FSDPModule)
    expect(sharded != (request.layout["sharding"] in ("ddp", "zero1")), f"sharded: {sharded}")


if __name__ == "__main__":
    answer(take)
