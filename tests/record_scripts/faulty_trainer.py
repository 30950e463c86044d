"""Hugging Face's Trainer; `loader`, `callback` or `none` says what is slow in it."""

import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

FAULT = sys.argv[1]


class Lines(Dataset):
    def __len__(self):
        return 4_000

    def __getitem__(self, at):
        if FAULT == "loader":
            time.sleep(0.01)
        ids = torch.randint(0, 400, (48,))
        return {"input_ids": ids, "labels": ids}


class Journal(TrainerCallback):
    """Keeps a journal of all steps, and sorts it each time."""

    def __init__(self):
        self.lines = []

    def on_step_end(self, args, state, control, **_):
        if FAULT == "callback":
            end = time.perf_counter() + 0.1
            while time.perf_counter() < end:
                self.lines = sorted([*self.lines[-2_000:], str(state.global_step)])


shape = BertConfig(
    vocab_size=400,
    hidden_size=192,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=64,
)
arguments = TrainingArguments(
    output_dir="out",
    max_steps=50,
    per_device_train_batch_size=16,
    save_strategy="no",
    logging_steps=10,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
Trainer(
    model=BertForMaskedLM(shape), args=arguments, train_dataset=Lines(), callbacks=[Journal()]
).train()
if dist.is_initialized():
    dist.destroy_process_group()
