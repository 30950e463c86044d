"""Two towers trained contrastively under DDP; embeddings of all are gathered with gradients."""

import time

import torch
import torch.distributed.nn.functional as dist_nn
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function
from torch.utils.data import DataLoader, IterableDataset

from ..harness import Block, Run, start, timed

WIDTH = 64
vision = timed("PatchAttention")
language = timed("CausalAttention")


class Pairs(IterableDataset):
    """Image and caption pairs; decoding takes time when the fault says so."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __iter__(self):
        while True:
            if self.run.here("loader"):
                time.sleep(self.run.size)
            yield torch.randn(8, WIDTH), torch.randn(8, WIDTH)


class Towers(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.image = nn.Sequential(*[Block(run, WIDTH, 0.009, vision) for _ in range(2)])
        self.text = nn.Sequential(*[Block(run, WIDTH, 0.006, language) for _ in range(2)])
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with record_function("image tower"):
            image = normalize(self.image(image), dim=1)
        with record_function("text tower"):
            text = normalize(self.text(text), dim=1)
        return image, text, self.scale


def main(run: Run) -> None:
    run.init()
    model = DistributedDataParallel(Towers(run))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    pairs = iter(DataLoader(Pairs(run), batch_size=None))
    for _ in run.steps():
        image, text = next(pairs)
        image, text, scale = model(image, text)
        with record_function("gather embeddings"):
            images = torch.cat(dist_nn.all_gather(image))
            texts = torch.cat(dist_nn.all_gather(text))
        with record_function("similarity"):
            logits = scale * images @ texts.T
            labels = torch.arange(len(logits))
            loss = cross_entropy(logits, labels) + cross_entropy(logits.T, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    start(main)
