"""Ray's driver: loaded, and run up to the trainer, whose configuration objects are Ray's own."""

from __future__ import annotations

import runpy
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.parsers.answers import Asked, answer, expect


class Trainer:
    """Stand-in for TorchTrainer that keeps its arguments and starts nothing."""

    made: dict[str, Any]

    def __init__(self, train: Any, **configs: Any) -> None:
        Trainer.made = configs

    def fit(self) -> None:
        pass


def take(request: Asked) -> None:
    script = Path(request.folder) / "ray_submit.sh"
    subprocess.run(["bash", "-n", str(script)], check=True, capture_output=True)
    import_module("ray.train.torch")
    trainer = mock.patch("ray.train.torch.TorchTrainer", Trainer)
    with mock.patch("ray.init"), trainer:
        runpy.run_path(str(Path(request.folder) / "ray_train.py"), run_name="__main__")
    scaling = Trainer.made["scaling_config"]
    expect(scaling.num_workers == request.nodes, f"{scaling.num_workers} workers")
    gpus = scaling.num_workers * scaling.num_gpus_per_worker
    expect(gpus == request.gpus, f"{gpus} GPUs")


if __name__ == "__main__":
    answer(take)
