"""A model and a dataset that the scripts of this folder share."""

import json
import os
import time

import torch
from torch import nn
from torch.utils.data import Dataset

WIDTH = 512


class Net(nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.head(x)


class Numbers(Dataset):
    """Random vectors; loading one takes `seconds` of sleep, which add up in `slept`."""

    def __init__(self, count=640, seconds=0.0):
        self.x = torch.randn(count, WIDTH)
        self.y = torch.randint(0, 10, (count,))
        self.seconds, self.slept = seconds, 0.0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        if self.seconds:
            began = time.perf_counter()
            time.sleep(self.seconds)
            self.slept += time.perf_counter() - began
        return self.x[at], self.y[at]


def tell(updates, **seconds):
    """Print how many updates were made, and the seconds that this script measured itself."""
    facts = {"rank": int(os.environ.get("RANK", 0)), "updates": updates, **seconds}
    print("\nTRUTH " + json.dumps(facts) + "\n", end="", flush=True)
