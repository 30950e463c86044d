import sys
import time

import torch
import torch.distributed as dist
from small import tell
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Texts(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, at):
        ids = torch.randint(0, 512, (64,))
        return {"input_ids": ids, "labels": ids}


class Timed(Trainer):
    saving = evaluating = 0.0

    def _save_checkpoint(self, *arguments, **options):
        began = time.perf_counter()
        super()._save_checkpoint(*arguments, **options)
        self.saving += time.perf_counter() - began

    def evaluate(self, *arguments, **options):
        began = time.perf_counter()
        metrics = super().evaluate(*arguments, **options)
        self.evaluating += time.perf_counter() - began
        return metrics


model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=128, n_layer=2, n_head=4, n_positions=64))
trainer = Timed(
    model=model,
    train_dataset=Texts(),
    eval_dataset=Texts(),
    args=TrainingArguments(
        output_dir="out",
        max_steps=20,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=8,
        save_steps=8,
        logging_steps=5,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    ),
)
if "callback" in sys.argv:
    from computeflow.recorder import integrations

    trainer.add_callback(integrations.hugging_face())
trainer.train()
tell(trainer.state.global_step, c=trainer.saving, v=trainer.evaluating)
if dist.is_initialized():
    dist.destroy_process_group()
