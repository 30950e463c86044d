"""RoBERTa, masked words: epochs in a function, batches padded to their longest text."""

from __future__ import annotations

import random

import torch
from torch.utils.data import DataLoader

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="mlm_ordinary", cycle=3),
    Case(name="mlm_adam-by-parameter", cause="unfused-optimizer", wrong="by-parameter", cycle=3),
    Case(name="mlm_four-by-sixteen", cause="small-micro-batch", wrong="pieces", cycle=3),
    Case(name="mlm_masks-in-python", cause="input-stall", wrong="few,words", right="few", cycle=3),
    Case(name="mlm_no-autocast", cause="matmul-precision", wrong="fp32", cycle=3),
    Case(name="mlm_eager", cause="unfused-attention", wrong="eager", cycle=3),
)
MASK, PAD, FIRST = 4, 1, 5


class Collator:
    """Pads to the longest, then hides 15 % of the tokens, or of the words."""

    def __init__(self, vocabulary, whole_words):
        self.vocabulary, self.whole_words = vocabulary, whole_words
        self.random = random.Random(0)

    def __call__(self, rows):
        longest = max(len(row) for row in rows)
        ids = torch.full((len(rows), longest), PAD)
        for place, row in zip(ids, rows, strict=True):
            place[: len(row)] = row
        attention = (ids != PAD).long()
        ids, labels = self.by_word(ids) if self.whole_words else self.by_token(ids)
        return {"input_ids": ids, "attention_mask": attention, "labels": labels}

    def by_token(self, ids):
        hidden = (torch.rand(ids.shape) < 0.15) & (ids != PAD)
        return ids.masked_fill(hidden, MASK), ids.masked_fill(~hidden, -100)

    def by_word(self, ids):
        inputs, labels = [], []
        for row in ids.tolist():
            words = []
            for place, token in enumerate(row):
                if token == PAD:
                    continue
                if words and token % 3 == 0:
                    words[-1].append(place)
                else:
                    words.append([place])
            self.random.shuffle(words)
            label, masked, left = [-100] * len(row), list(row), 0.15 * len(row)
            for word in words:
                for place in word:
                    if left <= 0:
                        break
                    label[place], left = row[place], left - 1
                    chance = self.random.random()
                    if chance < 0.8:
                        masked[place] = MASK
                    elif chance < 0.9:
                        masked[place] = self.random.randrange(FIRST, self.vocabulary)
            inputs.append(masked)
            labels.append(label)
        return torch.tensor(inputs), torch.tensor(labels)


def make_texts(batch, vocabulary):
    """In buckets of similar length, as a sampler by length would give them."""
    texts = []
    for number in range(30):
        longest = pick((192, 256, 224), (12, 16, 14))[number % 3]
        for row in range(batch):
            texts.append(torch.randint(FIRST, vocabulary, (longest - row % 8,)))
    return texts * 40


def make_model(fault):
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(
        vocab_size=pick(50265, 100),
        hidden_size=pick(768, 32),
        num_hidden_layers=pick(2 if "few" in fault else 8, 2),
        num_attention_heads=pick(12, 2),
        intermediate_size=pick(3072, 64),
    )
    with torch.device(device()):
        model = RobertaForMaskedLM(config)
    if "eager" in fault:
        model.set_attn_implementation("eager")
    return model.train()


def make_optimizer(model, fault):
    plain = [p for p in model.parameters() if p.dim() < 2]
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    if "by-parameter" in fault:
        return torch.optim.AdamW(groups, lr=1e-4, foreach=False)
    return torch.optim.AdamW(groups, lr=1e-4, fused=True)


def train_one_epoch(model, loader, optimizer, schedule, accumulate, fault, watch):
    running = torch.zeros((), device=device())
    for number, batch in enumerate(loader):
        batch = {k: v.to(device(), non_blocking=True) for k, v in batch.items()}
        with torch.autocast(device(), dtype=torch.bfloat16, enabled="fp32" not in fault):
            loss = model(**batch).loss / accumulate
        loss.backward()
        running += loss.detach()
        if (number + 1) % accumulate:
            continue
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if (number // accumulate) % 40 == 0:
            print("mean loss", running.item() / 40)
            running.zero_()
        watch.step()


def train(watch, fault):
    torch.set_float32_matmul_precision("highest")
    batch, accumulate = pick(64, 8), 4 if "pieces" in fault else 1
    words = "words" in fault
    loader = DataLoader(
        make_texts(batch, pick(50265, 100)),
        batch_size=batch // accumulate,
        collate_fn=Collator(pick(50265, 100), words),
        num_workers=0 if words else pick(3, 0),
        persistent_workers=not words and not is_tiny(),
        pin_memory=not is_tiny(),
    )
    model = make_model(fault)
    optimizer = make_optimizer(model, fault)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    for _ in range(10_000):
        train_one_epoch(model, loader, optimizer, schedule, accumulate, fault, watch)
