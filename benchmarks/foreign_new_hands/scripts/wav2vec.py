"""Wav2Vec2 learns letters (CTC) under the Trainer: padded waves, the first layers frozen."""

from __future__ import annotations

import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="wav2vec_ordinary"),
    Case(name="wav2vec_resamples", cause="input-stall", wrong="resamples,alone", right="resamples"),
    Case(name="wav2vec_edit-distance", cause="host-stall", wrong="distance"),
    Case(name="wav2vec_watches-gradients", cause="host-sync", wrong="gradients"),
    Case(
        name="wav2vec_clears-per-batch",
        cause="memory-pressure",
        wrong="lengths,clears",
        right="lengths",
        cycle=3,
    ),
    Case(name="wav2vec_not-pinned", cause="pageable-copy", wrong="unpinned"),
)
LETTERS = 32


class Speech(Dataset):
    def __init__(self, seconds, resamples):
        self.rate = pick(16_000, 400)
        rng = np.random.default_rng(0)
        self.waves = rng.standard_normal((32, int(seconds * self.rate * 1.5))).astype(np.float32)
        self.resamples = resamples
        self.filter = np.hanning(9).astype(np.float32) / 4

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        wave = self.waves[index % 32]
        short = len(wave) * 2 // 3
        if self.resamples:  # from 24 kHz
            smooth = np.convolve(wave, self.filter, mode="same")
            wave = np.interp(np.arange(short) * 1.5, np.arange(len(wave)), smooth).astype(
                np.float32
            )
        wave = wave[:short]
        return {
            "wave": torch.from_numpy((wave - wave.mean()) / (wave.std() + 1e-7)),
            "labels": torch.randint(1, LETTERS, (pick(60, 2),)),
        }


class Pad:
    """Stack; every third batch holds shorter waves where lengths differ."""

    def __init__(self, fault):
        self.fault, self.number = fault, 0

    def __call__(self, rows):
        self.number += 1
        waves = torch.stack([row["wave"] for row in rows])
        if "lengths" in self.fault:
            waves = waves[:, : waves.shape[1] * (10 - 2 * (self.number % 3)) // 10]
        if "clears" in self.fault and not is_tiny():
            torch.cuda.empty_cache()
        return {"input_values": waves, "labels": torch.stack([row["labels"] for row in rows])}


def edit_distance(one, other):
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


def make_model(fault):
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    small = {
        "conv_dim": (16, 16),
        "conv_stride": (5, 2),
        "conv_kernel": (10, 3),
        "num_feat_extract_layers": 2,
    }
    config = Wav2Vec2Config(
        vocab_size=LETTERS,
        hidden_size=pick(768, 32),
        num_hidden_layers=pick(8, 2),
        num_attention_heads=pick(12, 2),
        intermediate_size=pick(3072, 64),
        num_conv_pos_embeddings=pick(128, 16),
        num_conv_pos_embedding_groups=pick(16, 2),
        apply_spec_augment=False,
        layerdrop=0.0,
        ctc_zero_infinity=True,
        ctc_loss_reduction="mean",
        **pick({}, small),
    )
    with torch.device(device()):
        model = Wav2Vec2ForCTC(config)
    model.freeze_feature_encoder()
    return model


def make_callback(watch, fault):
    from transformers import TrainerCallback

    class Counts(TrainerCallback):
        history = []  # noqa: RUF012

        def on_pre_optimizer_step(self, *_, model=None, **__):
            if "gradients" in fault:
                found = {
                    n: p.grad.norm().item()
                    for n, p in model.named_parameters()
                    if p.grad is not None
                }
                self.history.append(max(found, key=found.get))

        def on_step_end(self, *_, **__):
            watch.step()

    return Counts()


def train(watch, fault):
    from transformers import Trainer, TrainingArguments

    class Listening(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            out = model(**inputs)
            if "distance" in fault:
                heard = out.logits.detach().argmax(-1).cpu().tolist()
                pairs = zip(heard, inputs["labels"].tolist(), strict=True)
                self.errors = sum(edit_distance(h[::4], w) for h, w in pairs)
            return (out.loss, out) if return_outputs else out.loss

    workers = 0 if "alone" in fault or "lengths" in fault else 10
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=pick(24, 2),
        learning_rate=1e-4,
        warmup_steps=500,
        max_steps=20_000,
        bf16=True,
        use_cpu=is_tiny(),
        optim="adamw_torch_fused",
        logging_steps=25,
        save_strategy="no",
        report_to=[],
        remove_unused_columns=False,
        dataloader_num_workers=pick(workers, 0),
        dataloader_pin_memory="unpinned" not in fault and not is_tiny(),
        disable_tqdm=True,
    )
    trainer = Listening(
        model=make_model(fault),
        args=arguments,
        train_dataset=Speech(pick(8, 1), "resamples" in fault),
        data_collator=Pad(fault),
        callbacks=[make_callback(watch, fault)],
    )
    trainer.train()
