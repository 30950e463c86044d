"""DistilBERT fine-tuned with the Trainer as in a tutorial."""

from __future__ import annotations

import re
import tempfile

import torch
from torch.utils.data import Dataset

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="distil_logs-each-step", wrong="log1"),
    Case(name="distil_tokenises", cause="input-stall", wrong="tokenise", right="tokenise,workers"),
    Case(name="distil_saves", cause="checkpoint-stall", wrong="save", cycle=3),
    Case(name="distil_evaluates", cause="evaluation", wrong="evaluate", cycle=3),
)
WORDS = "the model reads a film review and says whether its writer liked the film at all".split()


def review(i, words):
    return " ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(words)) + "."


class Reviews(Dataset):
    """Reviews, cut into the pieces of words known so far when they are asked for."""

    def __init__(self, length, tokenise, count=300_000):
        self.length, self.tokenise, self.count = length, tokenise, count
        self.vocab = {w[:k]: 10 + i for i, w in enumerate(WORDS) for k in range(1, len(w) + 1)}
        self.ready = [self.encode(review(i, length)) for i in range(32)]

    def encode(self, text):
        ids = [1]
        for word in re.findall(r"\w+|[^\w\s]", text.lower()):
            while word:
                end = len(word)
                while end > 1 and word[:end] not in self.vocab:
                    end -= 1
                ids.append(self.vocab.get(word[:end], 3))
                word = word[end:]
        return (ids + [0] * self.length)[: self.length]

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        ids = self.encode(review(i, self.length)) if self.tokenise else self.ready[i % 32]
        ids = torch.tensor(ids)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": i % 2}


def train(watch, fault):
    from transformers import (
        DistilBertConfig,
        DistilBertForSequenceClassification,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class StepCounter(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            watch.step()

    length, batch = pick(256, 16), pick(96, 4)
    config = DistilBertConfig(
        vocab_size=pick(30522, 200),
        dim=pick(768, 32),
        hidden_dim=pick(3072, 64),
        n_layers=pick(6, 2),
        n_heads=pick(12, 2),
    )
    with torch.device(device()):
        model = DistilBertForSequenceClassification(config)
    tokenise = "tokenise" in fault
    evaluates = "evaluate" in fault
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=batch,
        num_train_epochs=3,
        learning_rate=2e-5,
        weight_decay=0.01,
        bf16=True,
        logging_steps=1 if "log1" in fault else 100,
        save_strategy="steps" if "save" in fault else "no",
        save_steps=3,
        save_total_limit=1,
        save_only_model=True,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=3,
        report_to=[],
        dataloader_num_workers=pick(8, 1) if not tokenise or "workers" in fault else 0,
        dataloader_persistent_workers=not tokenise or "workers" in fault,
        use_cpu=is_tiny(),
        disable_tqdm=True,
    )
    Trainer(
        model=model,
        args=args,
        train_dataset=Reviews(length, tokenise),
        eval_dataset=Reviews(length, False, count=batch * 3) if evaluates else None,
        callbacks=[StepCounter()],
    ).train()
