"""A convolutional classifier under DDP, after the ImageNet example.

The convolutions are real and small; a layer that sleeps by the size of the batch follows each.
Every rank writes through tensorboard_trace_handler; steps are marked with prof.step().
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
from torch.utils.data import DataLoader, Dataset

from benchmarks.ranks_by_others.compute import sleep_function
from benchmarks.ranks_by_others.drill import Drill

BATCH = 16
normalize = sleep_function("SyncFreeNorm")


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    """Random pictures; on a rank with a slow disk each one takes a while."""

    def __init__(self, drill: Drill) -> None:
        self.drill = drill
        self.pictures = torch.randn(64, 3, 32, 32)

    def __len__(self) -> int:
        return self.drill.steps * BATCH

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.drill.hits("loader"):
            time.sleep(self.drill.case.amount)
        return self.pictures[index % 64], torch.tensor(index % 10)


class Net(nn.Module):
    """Four convolutions and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, stride=2)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.conv3 = nn.Conv2d(16, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 8 * 8, 128)
        self.out = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Classify pictures."""
        for conv in (self.conv1, self.conv2, self.conv3):
            x = normalize.apply(torch.relu(conv(x)), 0.012 * len(x) / BATCH)
        logits: Tensor = self.out(torch.relu(self.fc(x.flatten(1))))
        return logits


def save_checkpoint(model: nn.Module, optimizer: optim.Optimizer, path: Path) -> None:
    """Save model, optimizer and a large feature bank, and remove the file again."""
    states = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(states | {"feature_bank": torch.zeros(12_000_000)}, path)
    path.unlink()


def main(drill: Drill, out: Path) -> None:
    """Train."""
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    model = DistributedDataParallel(Net())
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(Pictures(drill), batch_size=BATCH, shuffle=False)
    prof = profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=drill.first_profiled - 1, warmup=1, active=drill.case.profiled),
        on_trace_ready=tensorboard_trace_handler(str(out), f"host-{rank}", use_gzip=True),
        record_shapes=True,
    )
    with prof:
        for images, target in loader:
            if drill.hits("bigger-batch"):
                extra = int(BATCH * (drill.case.amount - 1))
                images = torch.cat([images, images[:extra]])
                target = torch.cat([target, target[:extra]])
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if drill.hits("save"):
                save_checkpoint(model, optimizer, out.parent / "checkpoint.pth.tar")
            drill.tick()
            prof.step()
