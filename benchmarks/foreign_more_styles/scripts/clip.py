"""CLIP trained from scratch by a plain script with a Trainer-like class of its own."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="clip_item-at-the-end", wrong="item"),
    Case(name="clip_anomaly-mode", cause="host-sync", wrong="half,anomaly", right="half"),
    Case(name="clip_far-storage", cause="input-stall", wrong="far"),
    Case(name="clip_full-fp32", cause="matmul-precision", wrong="half,fp32", right="half,tf32"),
)


class Pairs(Dataset):
    """Pictures and their captions; those far away take a while."""

    def __init__(self, size, vocab, wait):
        self.pictures = torch.randn(16, 3, size, size).half()
        self.captions = torch.randint(3, vocab, (16, pick(64, 8)))
        self.wait = wait

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        if self.wait:
            time.sleep(self.wait)
        return self.pictures[i % 16], self.captions[i % 16]


class Contrastive:
    def __init__(self, fault):
        from transformers import CLIPConfig, CLIPModel

        self.fault, self.device = fault, device()
        vocab, size = pick(20000, 64), pick(224, 32)
        text = {
            "vocab_size": vocab,
            "hidden_size": pick(512, 16),
            "intermediate_size": pick(2048, 32),
            "num_hidden_layers": pick(4, 1),
            "num_attention_heads": pick(8, 2),
            "max_position_embeddings": 77,
            "eos_token_id": 2,
            "bos_token_id": 1,
            "pad_token_id": 0,
        }
        vision = {
            "hidden_size": pick(768, 16),
            "intermediate_size": pick(3072, 32),
            "num_hidden_layers": pick(6, 1),
            "num_attention_heads": pick(12, 2),
            "image_size": size,
            "patch_size": 16,
        }
        config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=pick(512, 8))
        with torch.device(self.device):
            self.model = CLIPModel(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.loader = DataLoader(
            Pairs(size, vocab, 0.003 if "far" in fault else 0),
            batch_size=pick(96 if "half" in fault else 160, 4),
            num_workers=pick(8, 1),
            pin_memory=not is_tiny(),
            drop_last=True,
        )
        self.meter = 0.0

    def loss(self, pictures, captions):
        full = "fp32" in self.fault or "tf32" in self.fault
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=not full):
            out = self.model(input_ids=captions, pixel_values=pictures)
        logits = out.logits_per_text.float()
        target = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2

    def fit(self, watch):
        for pictures, captions in self.loader:
            pictures = pictures.to(self.device, non_blocking=True).float()
            captions = captions.to(self.device, non_blocking=True)
            loss = self.loss(pictures, captions)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if "item" in self.fault:
                self.meter = 0.98 * self.meter + 0.02 * loss.item()
            watch.step()


def train(watch, fault):
    torch.set_float32_matmul_precision("high" if "tf32" in fault else "highest")
    with torch.autograd.set_detect_anomaly("anomaly" in fault):
        Contrastive(fault).fit(watch)
