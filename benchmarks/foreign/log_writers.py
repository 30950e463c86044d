"""Small trainings that let their libraries write the log, and tell the truth beside it.

    python -m benchmarks.foreign.log_writers keras truth.json > train.log 2>&1

Every step waits a while, so that its time is known; `truth.json` has the steps, the seconds between
them and the last loss, as the loop itself saw them.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

WAIT_SECONDS = 0.04
BATCHES = 30
EPOCHS = 3


class Truth:
    """The steps as the loop sees them."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.loss = 0.0

    def step(self, loss: Any) -> None:
        time.sleep(WAIT_SECONDS)
        self.ends.append(time.perf_counter())
        self.loss = float(loss.detach() if isinstance(loss, torch.Tensor) else loss)

    def write(self, path: Path) -> None:
        steps = len(self.ends)
        told = {
            "steps": steps,
            "seconds": (self.ends[-1] - self.ends[0]) / (steps - 1),
            "median": statistics.median(end - begin for begin, end in pairwise(self.ends)),
            "loss": self.loss,
        }
        path.write_text(json.dumps(told))


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(4 * BATCHES, 8, generator=torch.Generator().manual_seed(1))
    return inputs, inputs.sum(1, keepdim=True)


def loader() -> Any:
    data = torch.utils.data.TensorDataset(*samples())
    return torch.utils.data.DataLoader(data, batch_size=4)


def error(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return ((model(inputs) - targets) ** 2).mean()


def trainer(truth: Truth, *, bars: bool = True) -> None:
    """transformers' Trainer: progress bars, and dictionaries whose values are strings."""
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            loss = error(self.layer, inputs, labels)
            truth.step(loss)
            return {"loss": loss}

    inputs, targets = samples()
    rows = [{"inputs": x, "labels": y} for x, y in zip(inputs, targets, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=4,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=not bars,
        )
        Trainer(model=Model(), args=arguments, train_dataset=rows).train()


def trainer_without_bars(truth: Truth) -> None:
    trainer(truth, bars=False)


def lightning(truth: Truth) -> None:
    """Lightning: one progress bar for each epoch; metrics.csv beside the log."""
    import pytorch_lightning as lightning_package
    from pytorch_lightning.callbacks import TQDMProgressBar
    from pytorch_lightning.loggers import CSVLogger

    class Model(lightning_package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = error(self.layer, *batch)
            self.log("train_loss", loss, prog_bar=True)
            truth.step(loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-2)

    lightning_package.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        callbacks=[TQDMProgressBar()],
        logger=CSVLogger(os.environ.get("LOGS_FOLDER", ".")),
        log_every_n_steps=5,
        enable_checkpointing=False,
    ).fit(Model(), loader())


def _accelerate(truth: Truth, say: Callable[[Any, int, int, float], None]) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader())
    for epoch in range(EPOCHS):
        for inputs, targets in batches:
            loss = error(model, inputs, targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            truth.step(loss)
            say(accelerator, epoch, len(truth.ends), truth.loss)


def accelerate_print(truth: Truth) -> None:
    """A loop under Accelerate that prints what it measures."""
    ends: list[float] = []

    def say(accelerator: Any, epoch: int, step: int, loss: float) -> None:
        ends.append(time.perf_counter())
        took = ends[-1] - ends[-2] if len(ends) > 1 else WAIT_SECONDS
        accelerator.print(
            f"[epoch {epoch}] global_step={step} train/loss={loss:.4f} step_time={took:.4f}s"
        )

    _accelerate(truth, say)


def accelerate_log(truth: Truth) -> None:
    """A loop under Accelerate with its logger: times of day, no step times."""
    from accelerate.logging import get_logger

    form = "%(asctime)s - %(levelname)s - %(name)s - %(message)s"
    logging.basicConfig(format=form, level=logging.INFO)
    log = get_logger("train", log_level="INFO")

    def say(accelerator: Any, epoch: int, step: int, loss: float) -> None:
        if step % 5 == 0:
            log.info(f"epoch {epoch} | completed steps {step} | loss {loss:.4f}")

    _accelerate(truth, say)


def accelerate_bar(truth: Truth) -> None:
    """A loop as in the examples of diffusers: a named bar with the loss behind it."""
    from tqdm.auto import tqdm

    bars: list[Any] = []

    def say(accelerator: Any, epoch: int, step: int, loss: float) -> None:
        if not bars:
            bars.append(tqdm(total=BATCHES * EPOCHS, desc="Steps"))
        bars[0].update(1)
        bars[0].set_postfix(step_loss=loss, lr=1e-2)

    _accelerate(truth, say)


def keras(truth: Truth, *, verbose: int = 1) -> None:
    """Keras' fit: a bar that starts over with each epoch, or a line for each."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras as keras_package

    class Watch(keras_package.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            truth.step(logs["loss"])

    inputs, targets = (part.numpy() for part in samples())
    model = keras_package.Sequential([keras_package.Input((8,)), keras_package.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", metrics=["mae"])
    model.fit(
        inputs, targets, batch_size=4, epochs=EPOCHS + 1, callbacks=[Watch()], verbose=verbose
    )


def keras_lines(truth: Truth) -> None:
    keras(truth, verbose=2)


def skorch(truth: Truth) -> None:
    """skorch: a table with a row for each epoch, its duration without a unit."""
    from skorch import NeuralNetRegressor
    from skorch.callbacks import Callback

    class Watch(Callback):
        def on_epoch_end(self, net: Any, **_: Any) -> None:
            truth.step(net.history[-1, "train_loss"])

    inputs, targets = (part.numpy() for part in samples())
    net = NeuralNetRegressor(
        torch.nn.Linear(8, 1), max_epochs=8, lr=1e-2, batch_size=8, callbacks=[Watch()]
    )
    net.fit(inputs, targets)


def ignite(truth: Truth) -> None:
    """Ignite's progress bar: epoch and step in brackets."""
    from ignite.engine import Engine
    from ignite.handlers import ProgressBar

    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    def update(engine: Any, batch: Any) -> dict[str, float]:
        loss = error(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step(loss)
        return {"batch loss": truth.loss}

    engine = Engine(update)
    ProgressBar(persist=True, desc="Training").attach(engine, output_transform=lambda out: out)
    engine.run(loader(), max_epochs=EPOCHS)


def nano_gpt(truth: Truth) -> None:
    """A loop that prints as nanoGPT's README shows: every tenth iteration, the time of that one."""
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    inputs, targets = samples()
    last = time.perf_counter()
    for step in range(61):
        if step % 20 == 0:
            print(f"step {step}: train loss {4.2 - step / 50:.4f}, val loss {4.3 - step / 50:.4f}")
            last = time.perf_counter()
        loss = error(model, inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step(loss)
        now = time.perf_counter()
        took, last = now - last, now
        if step % 10 == 0:
            share = -100.0 if step < 5 else 31.0
            print(f"iter {step}: loss {truth.loss:.4f}, time {took * 1e3:.2f}ms, mfu {share:.2f}%")


def failing_rank(truth: Truth, *, killed: bool) -> None:
    """Under torchrun, four ranks: rank 2 fails after five steps while the others wait."""
    from torch import distributed
    from torch.distributed.elastic.multiprocessing.errors import record

    def work() -> None:
        distributed.init_process_group("gloo")
        rank = distributed.get_rank()
        for step in range(5):
            distributed.barrier()
            truth.step(3 - step / 10)
            if rank == 0:
                print(f"step {step} loss {truth.loss:.3f} time {WAIT_SECONDS:.3f}s", flush=True)
        if rank == 2 and killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 2:
            raise RuntimeError("the batch has no tokens")
        time.sleep(60)

    record(work)()


def rank_killed(truth: Truth) -> None:
    failing_rank(truth, killed=True)


def rank_raises(truth: Truth) -> None:
    failing_rank(truth, killed=False)


WRITERS: dict[str, Callable[[Truth], None]] = {
    writer.__name__: writer
    for writer in (
        trainer, trainer_without_bars, lightning, accelerate_print, accelerate_log, accelerate_bar,
        keras, keras_lines, skorch, ignite, nano_gpt, rank_killed, rank_raises,
    )
}  # fmt: skip


def main() -> None:
    name, path = sys.argv[1:]
    truth = Truth()
    WRITERS[name](truth)
    truth.write(Path(path))


if __name__ == "__main__":
    main()
