"""A Swin transformer under Lightning, optimised automatically, with callbacks."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from benchmarks.foreign_more_styles.common import Case, is_tiny, pick

CASES = (
    Case(name="swin_ordinary"),
    Case(name="swin_augments", cause="input-stall", wrong="augment", right="augment,workers"),
    Case(
        name="swin_three-workers", cause="input-stall", wrong="heavy,three", right="heavy,workers"
    ),
    Case(name="swin_validates", cause="evaluation", wrong="validate", cycle=3),
    Case(name="swin_not-pinned", cause="pageable-copy", wrong="unpinned"),
)


class Photos(Dataset):
    def __init__(self, size, augment, count=100_000):
        rng = np.random.default_rng(0)
        self.photos = rng.integers(0, 255, (16, size + 32, size + 32, 3), dtype=np.uint8)
        self.ready = torch.randn(16, 3, size, size)
        self.size, self.augment, self.count = size, augment, count

    def __len__(self):
        return self.count

    def _augmented(self, i):
        rng = np.random.default_rng(i)
        top, left = rng.integers(0, 32, 2)
        photo = self.photos[i % 16][top : top + self.size, left : left + self.size]
        if rng.random() < 0.5:
            photo = photo[:, ::-1]
        photo = photo.astype(np.float32) / 255.0
        photo = np.clip(photo * rng.uniform(0.8, 1.2), 0, 1)
        photo = (photo - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
        return torch.from_numpy(np.ascontiguousarray(photo.transpose(2, 0, 1), dtype=np.float32))

    def __getitem__(self, i):
        return (self._augmented(i) if self.augment else self.ready[i % 16]), i % 100


def train(watch, fault):
    import pytorch_lightning as pl
    from transformers import SwinConfig, SwinForImageClassification

    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    size = pick(224, 32)

    class Classifier(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = SwinForImageClassification(
                SwinConfig(
                    image_size=size,
                    patch_size=pick(4, 2),
                    embed_dim=pick(96, 8),
                    depths=pick([2, 2, 4, 2], [1, 1]),
                    num_heads=pick([3, 6, 12, 24], [1, 2]),
                    window_size=pick(7, 4),
                    num_labels=100,
                )
            )

        def training_step(self, batch, batch_idx):
            x, y = batch
            logits = self.net(pixel_values=x).logits
            loss = F.cross_entropy(logits, y)
            self.log("train/loss", loss)
            self.log("train/acc", (logits.argmax(-1) == y).float().mean())
            return loss

        def validation_step(self, batch, batch_idx):
            x, y = batch
            self.log("val/acc", (self.net(pixel_values=x).logits.argmax(-1) == y).float().mean())

        def configure_optimizers(self):
            opt = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
            sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10_000)
            return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}

    class Average(pl.Callback):
        """Averages the weights every fifth step."""

        def on_fit_start(self, trainer, pl_module):
            self.shadow = [p.detach().clone() for p in pl_module.parameters()]

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx % 5 == 0:
                with torch.no_grad():
                    torch._foreach_lerp_(self.shadow, list(pl_module.parameters()), 0.01)

    class Counter(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            watch.step()

    augment = "augment" in fault or "heavy" in fault
    workers = 0 if fault == "augment" else pick(3 if "three" in fault else 12, 1)
    batch = pick(48 if "augment" in fault else 96, 4)

    def loader(count, workers):
        return DataLoader(
            Photos(size, augment, count),
            batch_size=batch,
            num_workers=workers,
            pin_memory="unpinned" not in fault and not is_tiny(),
            persistent_workers=workers > 0,
            drop_last=True,
        )

    validates = "validate" in fault
    trainer = pl.Trainer(
        accelerator="cpu" if is_tiny() else "gpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=50_000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        val_check_interval=3 if validates else None,
        check_val_every_n_epoch=None if validates else 1,
        limit_val_batches=2,
        log_every_n_steps=10,
        callbacks=[Average(), Counter()],
    )
    trainer.fit(
        Classifier(),
        loader(100_000, workers),
        loader(batch * 2, 0) if validates else None,
    )
