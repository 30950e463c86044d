"""BYOL with a ConvMixer: two views of each image, an online network and its slow average."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.foreign_more_styles.common import Case, device, pick, pinned

CASES = (
    Case(name="byol_ordinary"),
    Case(name="byol_views-on-host", cause="input-stall", wrong="host-views"),
    Case(name="byol_neighbours", cause="evaluation", wrong="neighbours", cycle=4),
    Case(name="byol_forgotten-autocast", cause="matmul-precision", wrong="fp32"),
    Case(name="byol_float-images", cause="pageable-copy", wrong="floats,unpinned", right="floats"),
)
CONFIG = {"momentum": 0.996, "lr": 3e-4, "log_every": 20}


class Mixer(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 8, 8), nn.GELU(), nn.BatchNorm2d(width))
        self.space = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 5, padding=2, groups=width), nn.GELU())
            for _ in range(depth)
        )
        self.channels = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(width), nn.Conv2d(width, width, 1), nn.GELU())
            for _ in range(depth)
        )
        self.project = nn.Sequential(nn.Linear(width, 1024), nn.ReLU(), nn.Linear(1024, 256))

    def features(self, images):
        h = self.stem(images)
        for space, channel in zip(self.space, self.channels, strict=True):
            h = channel(space(h) + h)
        return h.mean((2, 3))

    def forward(self, images):
        return self.project(self.features(images))


def view(images):
    """A random crop, perhaps mirrored, a little brighter or darker."""
    size = images.shape[-1]
    cut = int(torch.randint(size // 2, size, ()))
    top, left = (int(torch.randint(0, size - cut + 1, ())) for _ in range(2))
    part = images[:, :, top : top + cut, left : left + cut]
    part = F.interpolate(part, size=(size, size), mode="bilinear", antialias=True)
    shade = 0.8 + 0.4 * torch.rand(len(part), 1, 1, 1, device=part.device)
    return (part * shade).flip(3) if torch.rand(()) < 0.5 else part * shade


def two_views(images, fault):
    if "host-views" in fault:
        images = images.float() / 255
        return tuple(pinned(view(images)).to(device(), non_blocking=True) for _ in range(2))
    if "floats" not in fault:
        images = images.to(device(), non_blocking=True).float() / 255
    else:
        images = images.to(device(), non_blocking="unpinned" not in fault)
    return view(images), view(images)


def batches(fault):
    """A generator without an end over images that lie in memory."""
    size, batch = pick(160, 16), pick(128, 4)
    stored = [torch.randint(0, 255, (batch, 3, size, size), dtype=torch.uint8) for _ in range(4)]
    if "floats" in fault:
        stored = [images.float() / 255 for images in stored]
    if "unpinned" not in fault:
        stored = [pinned(images) for images in stored]
    while True:
        yield from stored


@torch.no_grad()
def nearest_neighbours(model, images, rounds):
    model.eval()
    with torch.autocast(device(), dtype=torch.bfloat16):
        found = torch.cat([F.normalize(model.features(images), dim=1) for _ in range(rounds)])
    agreement = (found @ found.t()).topk(5, dim=1).indices.float().mean()
    model.train()
    return agreement.item()


def loss_of(online, predict, target, one, other):
    with torch.no_grad():
        wanted = [F.normalize(target(images).float(), dim=1) for images in (other, one)]
    guesses = [F.normalize(predict(online(images)).float(), dim=1) for images in (one, other)]
    return sum(2 - 2 * (g * w).sum(1).mean() for g, w in zip(guesses, wanted, strict=True))


def train(watch, fault):
    torch.backends.cudnn.allow_tf32 = False
    online = Mixer(pick(512, 8), pick(8, 2)).to(device()).to(memory_format=torch.channels_last)
    target = copy.deepcopy(online).requires_grad_(False)
    predict = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).to(device())
    learned = [*online.parameters(), *predict.parameters()]
    optimizer = torch.optim.AdamW(learned, lr=CONFIG["lr"], fused=True)
    pairs = (list(target.parameters()), list(online.parameters()))
    for step, images in enumerate(batches(fault)):
        one, other = two_views(images, fault)
        with torch.autocast(device(), dtype=torch.bfloat16, enabled="fp32" not in fault):
            loss = loss_of(online, predict, target, one, other)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(*pairs, 1 - CONFIG["momentum"])
        if "neighbours" in fault and step % 4 == 0:
            nearest_neighbours(online, one, 8)
        if step % CONFIG["log_every"] == 0:
            print(step, loss.item())
        watch.step()
