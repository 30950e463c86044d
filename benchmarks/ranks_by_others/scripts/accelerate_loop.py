"""Accelerate with gradient accumulation; its own profile handler writes the traces."""

import json
import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProfileKwargs
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.ranks_by_others.compute import FunctionLayer, sleep_function
from benchmarks.ranks_by_others.drill import Drill

WIDTH = 96
ACCUMULATE = 2
encoder = sleep_function("EncoderLayer")


class Rows(Dataset[Tensor]):
    """Random rows, read slowly on a rank with a busy file server."""

    def __init__(self, drill: Drill, count: int) -> None:
        self.drill = drill
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        if self.drill.hits("loader"):
            time.sleep(self.drill.case.amount)
        return torch.full((WIDTH,), float(index % 7))


def log_metrics(path: Path, step: int, loss: float, upload_seconds: float) -> None:
    """Append to a log on disk and wait for the tracking server."""
    with path.open("a") as file:
        file.write(json.dumps({"step": step, "loss": loss}) + "\n")
        file.flush()
        os.fsync(file.fileno())
    time.sleep(upload_seconds)


def main(drill: Drill, out: Path) -> None:
    """Train."""
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=ACCUMULATE,
        kwargs_handlers=[ProfileKwargs(activities=["cpu"], output_trace_dir=str(out))],
    )
    layers = [FunctionLayer(WIDTH, lambda: 0.006, encoder) for _ in range(3)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = drill.steps * ACCUMULATE * 4 * accelerator.num_processes
    loader = DataLoader(Rows(drill, rows), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    batches = iter(loader)

    def train(steps: int) -> None:
        for _ in range(steps * ACCUMULATE):
            batch = next(batches)
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                if drill.hits("log"):
                    log_path = out.parent / "metrics.jsonl"
                    log_metrics(log_path, drill.step, loss.item(), drill.case.amount)
                drill.tick()

    train(drill.first_profiled)
    with accelerator.profile():
        train(drill.case.profiled)
    accelerator.wait_for_everyone()
