"""A transformer over patches of many series, under Lightning with a data module and callbacks."""

from __future__ import annotations

import datetime
import logging

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.foreign_more_styles.common import Case, is_tiny, pick

CASES = (
    Case(name="forecast_ordinary"),
    Case(name="forecast_bar-and-norms", wrong="norms"),
    Case(name="forecast_calendar", cause="input-stall", wrong="calendar"),
    Case(name="forecast_validates", cause="evaluation", wrong="validates", cycle=4),
    Case(name="forecast_horizons", cause="host-sync", wrong="few,horizons", right="few"),
    Case(name="forecast_series-by-series", cause="launch-bound", wrong="few,in-turn", right="few"),
    Case(name="forecast_adam-alone", cause="unfused-optimizer", wrong="few,alone", right="few"),
)
HISTORY, HORIZON, PATCH = 512, 96, 16


class Windows(Dataset):
    def __init__(self, series, calendar):
        self.values = torch.randn(6000, series).cumsum(0) * 0.01
        self.calendar = calendar
        self.start = datetime.datetime(2016, 1, 1)

    def __len__(self):
        return 50_000

    def hours(self, index):
        """Hour, weekday and season of each row of the window."""
        rows = []
        for hour in range(index, index + HISTORY):
            moment = self.start + datetime.timedelta(hours=hour)
            rows.append([moment.hour / 23, moment.weekday() / 6, moment.timetuple().tm_yday / 366])
        return torch.tensor(rows).mean(0)

    def __getitem__(self, index):
        index %= 5000
        past = self.values[index : index + HISTORY]
        if self.calendar:
            past = past + 0.01 * self.hours(index).sum()
        return past, self.values[index + HISTORY : index + HISTORY + HORIZON]


class PatchTransformer(nn.Module):
    def __init__(self, width, layers, in_turn):
        super().__init__()
        self.enter = nn.Linear(PATCH, width)
        self.place = nn.Parameter(torch.randn(1, HISTORY // PATCH, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 8, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.leave = nn.Linear(HISTORY // PATCH * width, HORIZON)
        self.in_turn = in_turn

    def one(self, history):
        patches = history.unflatten(1, (-1, PATCH))
        return self.leave(self.encoder(self.enter(patches) + self.place).flatten(1))

    def forward(self, past):
        if self.in_turn:
            return torch.stack([self.one(past[:, :, k]) for k in range(past.shape[2])], 2)
        batch, _, series = past.shape
        return (
            self.one(past.transpose(1, 2).flatten(0, 1))
            .unflatten(0, (batch, series))
            .transpose(1, 2)
        )


def make_data(lightning, fault):
    class Series(lightning.LightningDataModule):
        def setup(self, stage=None):
            self.windows = Windows(pick(24 if "few" in fault else 64, 3), "calendar" in fault)

        def train_dataloader(self):
            return DataLoader(
                self.windows, batch_size=pick(48, 2), shuffle=True, pin_memory=not is_tiny()
            )

        def val_dataloader(self):
            return DataLoader(self.windows, batch_size=pick(48, 2), pin_memory=not is_tiny())

    return Series()


def make_module(lightning, fault):
    class Forecaster(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = PatchTransformer(pick(384, 16), pick(4, 1), "in-turn" in fault)

        def training_step(self, batch, _):
            past, future = batch
            guess = self.network(past)
            loss = F.huber_loss(guess, future)
            if "horizons" in fault:
                errors = {
                    h: (guess[:, h] - future[:, h]).abs().mean().item() for h in range(HORIZON)
                }
                self.worst = max(errors, key=errors.get)
            self.log("loss", loss, prog_bar="norms" in fault)
            return loss

        def validation_step(self, batch, _):
            self.log("val_loss", F.mse_loss(self.network(batch[0]), batch[1]))

        def configure_gradient_clipping(self, *_, **__):
            nn.utils.clip_grad_norm_(self.parameters(), 1.0)

        def configure_optimizers(self):
            how = {"foreach": False} if "alone" in fault else {"fused": True}
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-4, **how)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=100_000)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    return Forecaster()


def make_callbacks(lightning, watch, fault):
    class Norms(lightning.Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            grads = [p.grad for p in module.parameters() if p.grad is not None]
            module.log("norm", torch.stack(torch._foreach_norm(grads)).norm())

    class Counts(lightning.Callback):
        def on_train_batch_end(self, *_):
            watch.step()

    first = [lightning.callbacks.Timer(), lightning.callbacks.GradientAccumulationScheduler({0: 1})]
    return [*first, *([Norms()] if "norms" in fault else []), Counts()]


def train(watch, fault):
    import pytorch_lightning as lightning

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    often = {}
    if "validates" in fault:
        often = {"val_check_interval": 4, "check_val_every_n_epoch": None, "limit_val_batches": 3}
    trainer = lightning.Trainer(
        **{"limit_val_batches": 0, **often},
        accelerator="cpu" if is_tiny() else "gpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=100_000,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar="norms" in fault,
        enable_model_summary=False,
        log_every_n_steps=25,
        callbacks=make_callbacks(lightning, watch, fault),
    )
    trainer.fit(make_module(lightning, fault), datamodule=make_data(lightning, fault))
