"""Lightning's Trainer; `checkpoints`, `validation` or `none` says what takes its time."""

import sys
import time
from pathlib import Path

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FAULT = sys.argv[1]


class Autoencoder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 1024), nn.GELU(), nn.Linear(1024, 64))
        self.decoder = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 784))

    def training_step(self, batch, _):
        (x,) = batch
        return nn.functional.mse_loss(self.decoder(self.encoder(x)), x)

    def validation_step(self, batch, _):
        self.log("held_out", self.training_step(batch, _))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Keep(lightning.Callback):
    """Saves the weights every few steps, through a slow disk."""

    def on_train_batch_end(self, trainer, module, *_):
        if FAULT == "checkpoints" and trainer.global_step % 4 == 0:
            torch.save(module.state_dict(), SlowFile("weights.pt"))


class SlowFile:
    def __init__(self, name):
        self.file = Path(name).open("wb")  # noqa: SIM115

    def write(self, data):
        time.sleep(min(0.2, len(data) / 4e7))
        return self.file.write(data)

    def flush(self):
        self.file.flush()


data = DataLoader(TensorDataset(torch.randn(6_400, 784)), batch_size=64)
held_out = DataLoader(TensorDataset(torch.randn(6_400, 784)), batch_size=64)
checks = {"val_check_interval": 20} if FAULT == "validation" else {"limit_val_batches": 0}
lightning.Trainer(
    accelerator="cpu",
    max_steps=90,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
    callbacks=[Keep()],
    **checks,
).fit(Autoencoder(), data, held_out)
