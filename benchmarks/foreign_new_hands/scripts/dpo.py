"""Direct preference optimization of Phi: a Trainer whose loss compares with a frozen copy."""

from __future__ import annotations

import copy
import tempfile

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="dpo_ordinary"),
    Case(name="dpo_rewards-as-floats", cause="host-sync", wrong="few,floats", right="few"),
    Case(name="dpo_checkpointing", cause="recompute-excess", wrong="again"),
    Case(name="dpo_one-pair", cause="small-micro-batch", wrong="few,single", right="few"),
    Case(name="dpo_empties", cause="memory-pressure", wrong="empties"),
    Case(name="dpo_logs-each-step", wrong="logs"),
)


class Pairs(Dataset):
    def __init__(self, length, vocabulary):
        self.tokens = torch.randint(0, vocabulary, (256, 2, length))

    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        return {"chosen": self.tokens[index % 256, 0], "rejected": self.tokens[index % 256, 1]}


def collate(rows):
    return {"input_ids": torch.stack([r[k] for k in ("chosen", "rejected") for r in rows])}


def make_model(fault):
    from transformers import PhiConfig, PhiForCausalLM

    config = PhiConfig(
        vocab_size=pick(32000, 100),
        hidden_size=pick(1024, 32),
        intermediate_size=pick(4096, 64),
        num_hidden_layers=pick(4 if "few" in fault else 8, 2),
        num_attention_heads=pick(16, 2),
        use_cache=False,
    )
    with torch.device(device()):
        return PhiForCausalLM(config)


def log_probability(model, ids, answer):
    logits = model(input_ids=ids).logits[:, answer - 1 : -1]
    of_each = F.cross_entropy(
        logits.flatten(0, 1).float(), ids[:, answer:].flatten(), reduction="none"
    )
    return -of_each.view(len(ids), -1).sum(1)


def make_trainer(fault):
    from transformers import Trainer

    class PreferenceTrainer(Trainer):
        beta = 0.1
        reference = None
        kept = None

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            ids = inputs["input_ids"]
            answer = ids.shape[1] // 2
            with torch.no_grad():
                before = log_probability(self.reference, ids, answer)
            rewards = self.beta * (log_probability(model, ids, answer) - before)
            good, bad = rewards.chunk(2)
            if "floats" in fault:
                self.kept = [
                    (g.item(), b.item(), (g > b).item()) for g, b in zip(good, bad, strict=True)
                ]
            else:
                self.kept = rewards.detach()
            return -F.logsigmoid(good - bad).mean()

    return PreferenceTrainer


def train(watch, fault):
    from transformers import TrainerCallback, TrainingArguments

    class Counts(TrainerCallback):
        def on_step_end(self, *_, **__):
            watch.step()

    micro = pick(1 if "single" in fault else 8, 1 if "single" in fault else 2)
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=pick(8, 2) // micro,
        gradient_checkpointing="again" in fault,
        torch_empty_cache_steps=1 if "empties" in fault else None,
        learning_rate=1e-6,
        lr_scheduler_type="linear",
        max_steps=20_000,
        max_grad_norm=1.0,
        bf16=True,
        use_cpu=is_tiny(),
        optim="adamw_torch_fused",
        logging_steps=1 if "logs" in fault else 20,
        save_strategy="no",
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
    )
    model = make_model(fault)
    trainer = make_trainer(fault)(
        model=model,
        args=arguments,
        train_dataset=Pairs(pick(512, 16), pick(32000, 100)),
        data_collator=collate,
        callbacks=[Counts()],
    )
    trainer.reference = copy.deepcopy(model).eval().requires_grad_(False)
    if not is_tiny():
        trainer.reference.to(torch.bfloat16)
    trainer.train()
