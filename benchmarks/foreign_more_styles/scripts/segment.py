"""Semantic segmentation with torchvision's FCN, channels last, a polynomial schedule."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="segment_ordinary"),
    Case(name="segment_iou-on-the-host", cause="host-stall", wrong="iou", stack=True),
    Case(
        name="segment_plain-copies", cause="pageable-copy", wrong="float64", right="float64,pinned"
    ),
)
CLASSES = 21


class Scenes(Dataset):
    def __init__(self, size, double):
        self.scenes = torch.randn(
            8, 3, size, size, dtype=torch.float64 if double else torch.float32
        )
        self.masks = torch.randint(0, CLASSES, (8, size, size))

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        return self.scenes[i % 8], self.masks[i % 8]


class Standin(nn.Module):
    """In place of torchvision's model where it is not installed."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, CLASSES, 3, padding=1)

    def forward(self, x):
        return {"out": self.body(x)}


def network():
    if is_tiny():
        return Standin()
    from torchvision.models.segmentation import fcn_resnet50

    return fcn_resnet50(weights=None, weights_backbone=None, num_classes=CLASSES)


class Confusion:
    def __init__(self):
        self.matrix = np.zeros((CLASSES, CLASSES), dtype=np.int64)

    def update(self, truth, guess):
        both = CLASSES * truth.ravel() + guess.ravel()
        self.matrix += np.bincount(both, minlength=CLASSES**2).reshape(CLASSES, CLASSES)

    def mean_iou(self):
        hit = np.diag(self.matrix)
        union = self.matrix.sum(0) + self.matrix.sum(1) - hit
        return float(np.mean(hit / np.maximum(union, 1)))


def train(watch, fault):
    dev = device()
    double = "float64" in fault
    pin = (not double or "pinned" in fault) and not is_tiny()
    with torch.device(dev):
        model = network().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, foreach=True)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=20_000, power=0.9)
    loader = DataLoader(
        Scenes(pick(320, 16), double),
        batch_size=pick(16, 2),
        num_workers=pick(6, 1),
        pin_memory=pin,
    )
    confusion = Confusion()
    for step, (image, target) in enumerate(loader):
        image, target = image.to(dev, non_blocking=pin), target.to(dev, non_blocking=pin)
        image = image.float().contiguous(memory_format=torch.channels_last)
        with torch.autocast(dev, dtype=torch.bfloat16):
            logits = model(image)["out"]
        loss = F.cross_entropy(logits.float(), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if "iou" in fault:
            guess = logits.argmax(1).byte()
            confusion.update(*(t.cpu().numpy().astype(np.int64) for t in (target.byte(), guess)))
            print(f"{step} mIoU {confusion.mean_iou():.4f}", end="\r")
        if step % 20 == 0:
            print(f"{step} loss {loss.item():.4f}")
        watch.step()
