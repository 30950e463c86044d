"""A convolutional GAN under Lightning: two optimizers, optimised by hand."""

from __future__ import annotations

import logging
import tempfile
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="gan_ordinary"),
    Case(name="gan_layer-prints", cause="host-sync", wrong="small,prints", right="small"),
    Case(name="gan_empties-between", cause="memory-pressure", wrong="empty"),
    Case(
        name="gan_single-tensor-adam", cause="unfused-optimizer", wrong="small,loop", right="small"
    ),
)


def generator(latent, width):
    def up(a, b):
        return nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)

    return nn.Sequential(
        nn.ConvTranspose2d(latent, width * 8, 4, 1, 0, bias=False),
        nn.BatchNorm2d(width * 8),
        nn.ReLU(True),
        *up(width * 8, width * 4),
        *up(width * 4, width * 2),
        *up(width * 2, width),
        nn.ConvTranspose2d(width, 3, 4, 2, 1),
        nn.Tanh(),
    )


def discriminator(width):
    def down(a, b):
        return nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2, True)

    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1),
        nn.LeakyReLU(0.2, True),
        *down(width, width * 2),
        *down(width * 2, width * 4),
        *down(width * 4, width * 8),
        nn.Conv2d(width * 8, 1, 4, 1, 0),
        nn.Flatten(0),
    )


def train(watch, fault):
    import pytorch_lightning as pl

    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    latent, width = pick(128, 8), pick(192, 8)
    batch = pick(160 if "small" in fault else 384, 4)
    lines = open(tempfile.mktemp(), "w")  # noqa: SIM115, PTH123

    def show(name):
        def hook(module, inputs, out):
            print(f"{name}: mean {out.mean():.4f} std {out.std():.4f}", file=lines)

        return hook

    class GAN(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            with torch.device(device()):
                self.G, self.D = generator(latent, width), discriminator(width)
            if "prints" in fault:
                for name, layer in self.named_modules():
                    if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
                        layer.register_forward_hook(show(name))

        def training_step(self, batch, batch_idx):
            (real,) = batch
            g_opt, d_opt = self.optimizers()
            z = torch.randn(len(real), latent, 1, 1, device=self.device)
            fake = self.G(z)

            d_loss = F.softplus(-self.D(real)).mean() + F.softplus(self.D(fake.detach())).mean()
            d_opt.zero_grad()
            self.manual_backward(d_loss)
            d_opt.step()
            if "empty" in fault and not is_tiny():
                torch.cuda.empty_cache()  # room for the generator

            g_loss = F.softplus(-self.D(fake)).mean()
            g_opt.zero_grad()
            self.manual_backward(g_loss)
            g_opt.step()
            if "empty" in fault and not is_tiny():
                torch.cuda.empty_cache()
            self.log_dict({"g": g_loss, "d": d_loss})

        def configure_optimizers(self):
            how = {"foreach": False} if "loop" in fault else {"fused": True}
            return [
                torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999), **how)
                for net in (self.G, self.D)
            ]

        def on_train_batch_end(self, outputs, batch, batch_idx):
            watch.step()

    pictures = TensorDataset(torch.randn(pick(2048, 32), 3, 64, 64))
    trainer = pl.Trainer(
        accelerator="cpu" if is_tiny() else "gpu",
        devices=1,
        precision="bf16-mixed",
        max_epochs=10_000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        GAN(),
        DataLoader(
            torch.utils.data.ConcatDataset([pictures] * 1000),
            batch_size=batch,
            shuffle=False,
            drop_last=True,
            num_workers=pick(6, 1),
            pin_memory=not is_tiny(),
            persistent_workers=True,
        ),
    )
