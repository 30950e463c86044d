"""Hugging Face Trainer on CPU ranks; a callback steps the profiler."""

# mypy: allow-subclassing-any

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from benchmarks.ranks_by_others.compute import OpLayer, python_work
from benchmarks.ranks_by_others.drill import Drill

WIDTH = 512


class Model(nn.Module):
    """A sleeping encoder with a head that returns its loss, as Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(*[OpLayer(WIDTH, lambda: 0.012) for _ in range(3)])
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return loss and logits."""
        logits = self.head(self.encoder(inputs))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Texts(Dataset[int]):
    """Numbers that stand for texts."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


class ProfileCallback(TrainerCallback):
    """Marks steps; saves in the loop on a rank that was told to."""

    def __init__(self, drill: Drill, prof: profile, folder: Path) -> None:
        self.drill = drill
        self.prof = prof
        self.folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save where planted, then mark the step."""
        if self.drill.hits("save"):
            path = self.folder / "pytorch_model.bin"
            states = {
                "model": kwargs["model"].state_dict(),
                "opt": kwargs["optimizer"].state_dict(),
            }
            torch.save(states, path)
            path.unlink()
        self.drill.tick()
        self.prof.step()


def main(drill: Drill, out: Path) -> None:
    """Train."""

    def collate(rows: list[int]) -> dict[str, Tensor]:
        if drill.hits("collate"):
            python_work(drill.case.amount)
        return {"inputs": torch.randn(len(rows), WIDTH), "labels": torch.tensor(rows) % 2}

    name = str(out / f"trainer-{drill.rank}.pt.trace.json.gz")
    args = TrainingArguments(
        output_dir=str(out.parent / "output"),
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=drill.steps,
        per_device_train_batch_size=4,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=drill.first_profiled - 1, warmup=1, active=drill.case.profiled),
        on_trace_ready=lambda prof: prof.export_chrome_trace(name),
        record_shapes=True,
    ) as prof:
        Trainer(
            model=Model(),
            args=args,
            train_dataset=Texts(4096),
            data_collator=collate,
            callbacks=[ProfileCallback(drill, prof, out.parent)],
        ).train()
