"""A LightningModule under the DDP strategy; a callback runs the profiler."""

# mypy: allow-subclassing-any

import os
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import TorchElasticEnvironment
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.ranks_by_others.compute import FunctionLayer, sleep_function
from benchmarks.ranks_by_others.drill import Drill

WIDTH = 64
SCORES = 60_000


class Regressor(pl.LightningModule):
    """A few layers that sleep."""

    def __init__(self, drill: Drill) -> None:
        super().__init__()
        dense = sleep_function("DenseBlock")
        seconds = 0.011
        self.net = nn.Sequential(
            *[
                FunctionLayer(WIDTH, lambda: seconds * drill.stretch("slow"), dense)
                for _ in range(3)
            ]
        )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def auroc(scores: Tensor, labels: Tensor) -> float:
    """Return the area under the curve, with ties ignored."""
    order = scores.argsort(descending=True)
    hits = labels[order].cumsum(0).double()
    area: Tensor = hits[labels[order] == 0].sum() / (hits[-1] * (len(labels) - hits[-1]))
    return area.item()


class Metrics(pl.Callback):
    """Bootstrapped AUROC on one rank."""

    def __init__(self, drill: Drill) -> None:
        self.drill = drill

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Resample and score."""
        if not self.drill.hits("metrics"):
            return
        labels = torch.randint(2, (SCORES,))
        for _ in range(int(self.drill.case.amount)):
            pick = torch.randint(SCORES, (SCORES,))
            auroc(torch.rand(SCORES)[pick], labels[pick])


class ProfilerCallback(pl.Callback):
    """Steps the profiler and notes the end of each step."""

    def __init__(self, drill: Drill, out: Path) -> None:
        self.drill = drill
        handler = tensorboard_trace_handler(str(out), worker_name=f"worker{drill.rank}")
        active = drill.case.profiled
        self.prof = profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=drill.first_profiled - 1, warmup=1, active=active),
            on_trace_ready=handler,
        )

    def on_train_start(self, *args: Any, **kwargs: Any) -> None:
        """Start the profiler."""
        self.prof.start()

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Mark the step."""
        self.drill.tick()
        self.prof.step()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Stop the profiler."""
        self.prof.stop()


def main(drill: Drill, out: Path) -> None:
    """Train."""
    os.environ["GROUP_RANK"] = "0"
    data = TensorDataset(torch.randn(drill.steps * 4, WIDTH), torch.randn(drill.steps * 4, WIDTH))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=drill.case.ranks,
        strategy=DDPStrategy(
            process_group_backend="gloo", cluster_environment=TorchElasticEnvironment()
        ),
        max_steps=drill.steps,
        callbacks=[Metrics(drill), ProfilerCallback(drill, out)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=str(out.parent),
    )
    trainer.fit(Regressor(drill), DataLoader(data, batch_size=4))
