"""BART under the Seq2SeqTrainer: summaries of random text, label smoothing, a cosine schedule."""

from __future__ import annotations

import tempfile

import torch
from torch.utils.data import Dataset

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="bart_ordinary"),
    Case(name="bart_saves", cause="checkpoint-stall", wrong="saves", cycle=4),
    Case(name="bart_generates", cause="evaluation", wrong="generates", cycle=4),
    Case(name="bart_eager", cause="unfused-attention", wrong="eager"),
    Case(name="bart_checks-labels", cause="host-sync", wrong="brief,checks", right="brief"),
)

START = 2


class Articles(Dataset):
    def __init__(self, length, vocabulary):
        generator = torch.Generator().manual_seed(3)
        self.articles = torch.randint(4, vocabulary, (512, length), generator=generator)
        self.summaries = torch.randint(4, vocabulary, (512, length // 4), generator=generator)

    def __len__(self):
        return 50_000

    def __getitem__(self, index):
        summary = self.summaries[index % 512]
        shifted = summary.roll(1)
        shifted[0] = START
        return {
            "input_ids": self.articles[index % 512],
            "decoder_input_ids": shifted,
            "labels": summary,
        }


def make_model(fault):
    from transformers import BartConfig, BartForConditionalGeneration

    layers = pick(6, 1)
    config = BartConfig(
        vocab_size=pick(50265, 100),
        d_model=pick(768, 32),
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_ffn_dim=pick(3072, 64),
        decoder_ffn_dim=pick(3072, 64),
        encoder_attention_heads=pick(12, 2),
        decoder_attention_heads=pick(12, 2),
        max_position_embeddings=1024,
    )
    with torch.device(device()):
        model = BartForConditionalGeneration(config)
    model.generation_config.min_length = pick(12, 4)
    if "eager" in fault:
        model.set_attn_implementation("eager")
    return model


def make_arguments(fault):
    from transformers import Seq2SeqTrainingArguments

    often = {}
    if "saves" in fault:
        often = {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 1}
    if "generates" in fault:
        often = {"eval_strategy": "steps", "eval_steps": 4, "predict_with_generate": True}
    return Seq2SeqTrainingArguments(
        **{"save_strategy": "no", **often},
        output_dir=tempfile.mkdtemp(),
        save_only_model=True,
        per_device_train_batch_size=pick(32 if "brief" in fault else 48, 4),
        per_device_eval_batch_size=pick(32, 4),
        generation_max_length=pick(12, 4),
        generation_num_beams=1,
        label_smoothing_factor=0.1,
        learning_rate=3e-5,
        lr_scheduler_type="cosine",
        warmup_steps=100,
        max_steps=20_000,
        bf16=True,
        use_cpu=is_tiny(),
        optim="adamw_torch_fused",
        logging_steps=10,
        dataloader_num_workers=0,
        report_to=[],
        disable_tqdm=True,
    )


def summary_length(prediction):
    return {"length": float((prediction.predictions > START).sum(-1).mean())}


def train(watch, fault):
    from transformers import Seq2SeqTrainer, TrainerCallback

    class Counts(TrainerCallback):
        def on_step_end(self, *_, **__):
            watch.step()

    class Checked(Seq2SeqTrainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            for row in inputs["labels"]:
                if (row != -100).sum().item() == 0 or row.max().item() >= model.config.vocab_size:
                    raise ValueError("a summary is empty or has an unknown token")
            return super().compute_loss(model, inputs, *args, **kwargs)

    length = pick(256 if "brief" in fault else 512, 16)
    data = Articles(length, pick(50265, 100))
    trainer = (Checked if "checks" in fault else Seq2SeqTrainer)(
        model=make_model(fault),
        args=make_arguments(fault),
        train_dataset=data,
        eval_dataset=torch.utils.data.Subset(data, range(pick(64, 4))),
        compute_metrics=summary_length,
        callbacks=[Counts()],
    )
    trainer.train()
