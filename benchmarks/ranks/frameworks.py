"""Scripts under Accelerate and Lightning."""

from __future__ import annotations

import logging
from typing import Any

import pytorch_lightning as lightning
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.ranks.cases import Case
from benchmarks.ranks.data_parallel import BATCH, WIDE, WIDTH, Samples, evaluation, timed_layers
from benchmarks.ranks.faults import Fault
from benchmarks.ranks.meter import Meter


def accelerate_loop(case: Case, fault: Fault, meter: Meter) -> None:
    accelerator = Accelerator(cpu=True)
    net = timed_layers(case, fault)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    model, optimizer = accelerator.prepare(net, optimizer)
    for x in DataLoader(Samples(fault), batch_size=BATCH):
        loss = model(x).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        fault.after_step(net, evaluation(case, net))
        meter.end_step()
        if meter.done:
            break
    accelerator.end_training()


def accelerate_accumulate(case: Case, fault: Fault, meter: Meter) -> None:
    """Accumulation by `accumulate`; the fault is to divide the loss by hand and leave that out."""
    count = case.micro_batches
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=count)
    net = timed_layers(case, fault, WIDE)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    model = accelerator.prepare(net)
    loader = iter(DataLoader(Samples(fault, WIDE), batch_size=BATCH))
    while not meter.done:
        for _ in range(count):
            if fault.reduces_each_time():
                (model(next(loader)).square().mean() / count).backward()
                continue
            with accelerator.accumulate(model):
                accelerator.backward(model(next(loader)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        fault.after_step(net)
        meter.end_step()
    accelerator.end_training()


class Regression(lightning.LightningModule):
    """A module as Lightning's tutorials write it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.net(batch), batch)
        self.log("train_loss", loss, prog_bar=False)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class StepEnd(lightning.Callback):
    """The planted work, as a callback, and the end of the step."""

    def __init__(self, fault: Fault, meter: Meter) -> None:
        self.fault, self.meter = fault, meter

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self.fault.after_step(module.net)
        self.meter.end_step()
        trainer.should_stop = self.meter.done


class LoggingRegression(Regression):
    """The planted work in the module's own hook."""

    fault: Fault

    def on_train_batch_end(self, *_: Any) -> None:
        self.fault.after_step(self.net)


class StepCount(lightning.Callback):
    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """The step before ends where the next one starts."""
        if trainer.global_step:
            self.meter.end_step()
        trainer.should_stop = self.meter.done


def _fit(case: Case, fault: Fault, meter: Meter, module: Any, callback: Any) -> None:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=case.ranks,
        strategy="ddp",
        max_steps=meter.total + 1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[callback],
    )
    trainer.fit(module, DataLoader(Samples(fault, WIDTH), batch_size=BATCH))


def lightning_callback(case: Case, fault: Fault, meter: Meter) -> None:
    _fit(case, fault, meter, Regression(timed_layers(case, fault)), StepEnd(fault, meter))


def lightning_module(case: Case, fault: Fault, meter: Meter) -> None:
    module = LoggingRegression(timed_layers(case, fault))
    module.fault = fault
    _fit(case, fault, meter, module, StepCount(meter))
