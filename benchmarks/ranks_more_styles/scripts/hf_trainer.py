"""The Hugging Face Trainer with gradient accumulation; callbacks keep the clock."""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from .. import work
from ..harness import Block, Run, start, timed

layer = timed("BertLayer")
WIDTH, ACCUMULATE, BATCH = 32, 2, 4


class Notes(Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.full((WIDTH,), float(index % 7)), "labels": torch.tensor(index % 2)}


class Classifier(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[Block(run, WIDTH, 0.008, layer) for _ in range(2)])
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.layers(x))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Clock(TrainerCallback):
    """Ticks after each optimizer step; with the fault it writes a report there."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if self.run.here("log"):
            work.log_json(self.run.size, state.global_step, self.run.scratch / "report.jsonl")
        if self.run.here("save"):
            model = kwargs["model"].state_dict()
            work.save(self.run.size, model, self.run.scratch / "trainer.pt")
        self.run.tick()


def collator(run: Run):
    def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        if run.here("tokenise"):
            work.tokenise(run.size / ACCUMULATE)
        return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}

    return collate


def main(run: Run) -> None:
    options = TrainingArguments(
        output_dir=str(run.scratch / "out"),
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=run.total,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        max_grad_norm=1.0,
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    trainer = Trainer(
        model=Classifier(run),
        args=options,
        train_dataset=Notes(run.total * BATCH * ACCUMULATE * run.ranks),
        data_collator=collator(run),
        callbacks=[Clock(run)],
    )
    trainer.train()


if __name__ == "__main__":
    start(main)
