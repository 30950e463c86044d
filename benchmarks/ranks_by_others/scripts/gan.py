"""A small GAN with two DDP models and two optimizers; no step marks."""

import itertools
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.profiler import ProfilerActivity, profile

from benchmarks.ranks_by_others.compute import sleep_function
from benchmarks.ranks_by_others.drill import Drill

LATENT, PIXELS, BATCH = 64, 28 * 28, 16
resample = sleep_function("Resample")


class Upsample(nn.Module):
    """A layer that sleeps."""

    def __init__(self, drill: Drill) -> None:
        super().__init__()
        self.drill = drill

    def forward(self, x: Tensor) -> Tensor:
        """Sleep 7 ms."""
        out: Tensor = resample.apply(x, 0.007 * self.drill.stretch("slow"))
        return out


def mlp(drill: Drill, *sizes: int) -> nn.Sequential:
    """Return linear layers with leaky ReLUs and sleeps between them."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2), Upsample(drill)]
    return nn.Sequential(*layers[:-2])


@torch.no_grad()
def sample_grid(generator: nn.Module, path: Path, pictures: int) -> None:
    """Draw pictures with fixed noise and write them."""
    generator.eval()
    rows = [generator(torch.zeros(8, LATENT)) for _ in range(pictures // 8)]
    grid = torch.cat(rows).view(-1, 28, 28)
    pixels = (grid.clamp(-1, 1) * 127 + 128).to(torch.uint8)
    path.write_bytes(pixels.numpy().tobytes())
    generator.train()


def main(drill: Drill, out: Path) -> None:
    """Train."""
    dist.init_process_group("gloo")
    netG = DDP(mlp(drill, LATENT, 256, 256, PIXELS))  # noqa: N806
    netD = DDP(mlp(drill, PIXELS, 256, 256, 1), broadcast_buffers=False)  # noqa: N806
    optG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))  # noqa: N806
    optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))  # noqa: N806
    bce = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)

    def step(real: Tensor) -> None:
        fake = netG(torch.randn(BATCH, LATENT))
        optD.zero_grad()
        (bce(netD(real), ones) + bce(netD(fake.detach()), zeros)).backward()
        optD.step()
        optG.zero_grad()
        bce(netD(fake), ones).backward()
        optG.step()

    def train(steps: int) -> None:
        for _ in range(steps):
            step(torch.randn(BATCH, PIXELS))
            if dist.get_rank() == 0 and drill.hits("evaluate"):
                sample_grid(netG.module, out.parent / "grid.raw", int(drill.case.amount))
            drill.tick()

    train(drill.first_profiled)
    with profile(activities=[ProfilerActivity.CPU]) as p:
        train(drill.case.profiled)
    p.export_chrome_trace(str(out / f"gan_{dist.get_rank()}.json.gz"))
