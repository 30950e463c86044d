"""Pretrains a Llama of 1.1 billion parameters on made tokens with Hugging Face's Trainer, on one GPU.

`pretrain.py STEPS OUT [SLOW_FROM]`: from that step on, samples are tokenised in the training process.
"""

import sys
import time

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

STEPS, OUT = int(sys.argv[1]), sys.argv[2]
SLOW_FROM = int(sys.argv[3]) if len(sys.argv) > 3 else STEPS
LENGTH, BATCH = 1024, 8
TOKENISE_SECONDS = 0.012


class Progress(TrainerCallback):
    step = 0

    def on_step_end(self, args, state, control, **more):
        Progress.step = state.global_step


class Tokens(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, row):
        if Progress.step >= SLOW_FROM:
            ends = time.perf_counter() + TOKENISE_SECONDS
            while time.perf_counter() < ends:
                str(row).encode()
        tokens = torch.randint(32_000, (LENGTH,))
        return {"input_ids": tokens, "labels": tokens}


config = LlamaConfig(
    num_hidden_layers=8,
    hidden_size=3072,
    intermediate_size=8448,
    num_attention_heads=48,
    num_key_value_heads=24,
    vocab_size=32_000,
    attn_implementation="sdpa",
)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16)
arguments = TrainingArguments(
    output_dir=OUT,
    max_steps=STEPS,
    per_device_train_batch_size=BATCH,
    bf16=True,
    optim="adamw_torch_fused",
    logging_steps=50,
    save_strategy="steps",
    save_steps=STEPS // 2,
    save_total_limit=1,
    save_only_model=True,
    eval_strategy="steps",
    eval_steps=STEPS // 2,
    dataloader_num_workers=0,
    report_to=[],
    disable_tqdm=True,
)
Trainer(
    model=model,
    args=arguments,
    train_dataset=Tokens(STEPS * BATCH),
    eval_dataset=Tokens(10 * BATCH),
    callbacks=[Progress()],
).train()
