"""A LightningModule under the Lightning Trainer with DDP; hooks keep the clock."""

import logging

import pytorch_lightning as lightning
import torch
from pytorch_lightning.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from .. import work
from ..harness import Block, Run, start, timed

layer = timed("ConvNextStage")
WIDTH = 32


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(WIDTH)


class Net(lightning.LightningModule):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.net = nn.Sequential(*[Block(run, WIDTH, 0.01, layer) for _ in range(4)])

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        out = self.net(batch)
        if self.run.here("metrics"):
            work.confusion(self.run.size)
        loss = out.square().mean()
        self.log("loss", loss, on_step=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Endless(), batch_size=4)


class Hooks(lightning.Callback):
    """At the end of a batch: the fault, then the clock."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_train_batch_end(self, trainer, module, outputs, batch, index) -> None:
        if self.run.here("save"):
            work.save(self.run.size, module.state_dict(), self.run.scratch / "last.ckpt")
        if self.run.here("gc"):
            work.collect(self.run.size)
        self.run.tick()


def main(run: Run) -> None:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=run.ranks,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_steps=run.total,
        callbacks=[Hooks(run)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(Net(run))


if __name__ == "__main__":
    start(main)
