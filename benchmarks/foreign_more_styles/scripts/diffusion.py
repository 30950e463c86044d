"""Diffusion with a U-Net written by hand: fp16 with a scaler, channels last, an average of weights."""

from __future__ import annotations

import copy
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="diffusion_ordinary"),
    Case(name="diffusion_loss-by-time", cause="host-sync", wrong="small,buckets", right="small"),
    Case(name="diffusion_blocks-again", cause="recompute-excess", wrong="recompute"),
    Case(name="diffusion_saves", cause="checkpoint-stall", wrong="save", cycle=3),
    Case(name="diffusion_waits", cause="host-stall", wrong="wait", stack=True),
)


class ResBlock(nn.Module):
    def __init__(self, a, b, time_dim):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, a), nn.GroupNorm(8, b)
        self.conv1, self.conv2 = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)
        self.time = nn.Linear(time_dim, b)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(t)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, width, recompute=False):
        super().__init__()
        self.recompute = recompute
        dim, w2 = width * 2, width * 2
        self.embed = nn.Sequential(nn.Embedding(1000, dim), nn.Linear(dim, dim), nn.SiLU())
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down1 = nn.ModuleList([ResBlock(width, width, dim), ResBlock(width, width, dim)])
        self.pool1 = nn.Conv2d(width, w2, 3, 2, 1)
        self.down2 = nn.ModuleList([ResBlock(w2, w2, dim), ResBlock(w2, w2, dim)])
        self.pool2 = nn.Conv2d(w2, w2, 3, 2, 1)
        self.middle = nn.ModuleList([ResBlock(w2, w2, dim), ResBlock(w2, w2, dim)])
        self.up2 = nn.ModuleList([ResBlock(w2 * 2, w2, dim), ResBlock(w2, w2, dim)])
        self.up1 = nn.ModuleList([ResBlock(w2 + width, width, dim), ResBlock(width, width, dim)])
        self.out = nn.Conv2d(width, 3, 3, padding=1)

    def _run(self, blocks, x, t):
        for block in blocks:
            x = checkpoint(block, x, t, use_reentrant=False) if self.recompute else block(x, t)
        return x

    def forward(self, x, t):
        t = self.embed(t)
        one = self._run(self.down1, self.stem(x), t)
        two = self._run(self.down2, self.pool1(one), t)
        x = self._run(self.middle, self.pool2(two), t)
        x = F.interpolate(x, scale_factor=2)
        x = self._run(self.up2, torch.cat([x, two], 1), t)
        x = F.interpolate(x, scale_factor=2)
        return self.out(self._run(self.up1, torch.cat([x, one], 1), t))


class Diffusion:
    """The noise schedule and the training loss."""

    def __init__(self, dev):
        beta = torch.linspace(1e-4, 0.02, 1000, device=dev)
        self.keep = torch.cumprod(1 - beta, 0)

    def losses(self, net, x, t):
        noise = torch.randn_like(x)
        keep = self.keep[t].view(-1, 1, 1, 1)
        noisy = keep.sqrt() * x + (1 - keep).sqrt() * noise
        return F.mse_loss(net(noisy, t).float(), noise, reduction="none").mean((1, 2, 3))


class BucketedLosses:
    """The mean loss of each part of the noise schedule."""

    def __init__(self, count=40):
        self.sums, self.count = [0.0] * count, count

    def add(self, losses, t):
        for b in range(self.count):
            chosen = t // (1000 // self.count) == b
            if chosen.any():
                self.sums[b] += losses[chosen].mean().item()


def train(watch, fault):
    dev = device()
    batch = pick(24 if "small" in fault else 48, 2)
    size = pick(64, 16)
    with torch.device(dev):
        net = UNet(pick(128, 8), "recompute" in fault).to(memory_format=torch.channels_last)
    ema = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler(dev)
    diffusion = Diffusion(dev)
    buckets = BucketedLosses()
    images = torch.randn(256, 3, size, size, device=dev).to(memory_format=torch.channels_last)
    path = tempfile.mktemp(suffix=".pt")
    step = 0
    while True:
        x = images[torch.randint(0, 256, (batch,), device=dev)]
        t = torch.randint(0, 1000, (batch,), device=dev)
        with torch.autocast(dev, dtype=torch.float16):
            losses = diffusion.losses(net, x, t)
        loss = losses.mean()
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(net.parameters()), 1e-3)
        if "buckets" in fault:
            buckets.add(losses.detach(), t)
        if "save" in fault and step % 3 == 0:
            state = {"net": net.state_dict(), "ema": ema.state_dict(), "step": step}
            torch.save(state | {"optimizer": optimizer.state_dict()}, path)
        if "wait" in fault:
            loss.item()
            time.sleep(pick(0.006, 0.001))  # so that the desktop stays responsive
        if step % 25 == 0 and not is_tiny():
            print(f"{step}: {loss.item():.4f} scale {scaler.get_scale():g}")
        step += 1
        watch.step()
