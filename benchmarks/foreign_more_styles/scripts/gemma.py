"""Gemma trained by the Trainer, with callbacks."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="gemma_ordinary"),
    Case(name="gemma_history-file", cause="host-stall", wrong="history"),
    Case(
        name="gemma_forgotten-bf16", cause="matmul-precision", wrong="short,no-bf16", right="short"
    ),
    Case(name="gemma_checkpointing-on", cause="recompute-excess", wrong="checkpointing"),
    Case(name="gemma_accumulation", cause="small-micro-batch", wrong="micro"),
)


class PackedText(Dataset):
    def __init__(self, vocab, length, rows=64):
        self.rows = torch.randint(5, vocab, (rows, length))

    def __len__(self):
        return 200_000

    def __getitem__(self, i):
        ids = self.rows[i % len(self.rows)]
        return {"input_ids": ids, "labels": ids}


def train(watch, fault):
    from transformers import (
        GemmaConfig,
        GemmaForCausalLM,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class StepCounter(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            watch.step()

    class RunJournal(TrainerCallback):
        """Keeps the whole history of the run on disk, always up to date."""

        def __init__(self, path):
            self.path = Path(path)
            self.history = [{"step": i, "loss": 1 / (i + 1), "lr": 1e-4} for i in range(5000)]

        def on_step_end(self, args, state, control, **kwargs):
            self.history.append({"step": state.global_step, "lr": args.learning_rate})
            self.path.write_text(json.dumps(self.history, indent=2, sort_keys=True))

    folder = tempfile.mkdtemp()
    callbacks = [StepCounter()]
    if "history" in fault:
        callbacks.insert(0, RunJournal(Path(folder) / "history.json"))
    batch = pick(8, 4)
    accumulation = 4 if "micro" in fault else 1
    length = pick(512 if "short" in fault else 1024, 16)
    config = GemmaConfig(
        vocab_size=pick(32000, 100),
        hidden_size=pick(1536, 32),
        intermediate_size=pick(6144, 64),
        num_hidden_layers=pick(6, 2),
        num_attention_heads=pick(12, 2),
        num_key_value_heads=pick(4, 1),
        head_dim=pick(128, 16),
        use_cache=False,
    )
    with torch.device(device()):
        model = GemmaForCausalLM(config)
    args = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=batch // accumulation,
        gradient_accumulation_steps=accumulation,
        learning_rate=1e-4,
        lr_scheduler_type="cosine",
        warmup_steps=100,
        max_steps=50_000,
        bf16="no-bf16" not in fault,
        gradient_checkpointing="checkpointing" in fault,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        dataloader_num_workers=2,
        use_cpu=is_tiny(),
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=PackedText(config.vocab_size, length),
        callbacks=callbacks,
    )
    trainer.train()
