"""A small network learns from a large one (torchvision), with an engine that calls handlers."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick, pinned

CASES = (
    Case(name="teacher_ordinary"),
    Case(name="teacher_accuracy-each-step", wrong="accuracy"),
    Case(name="teacher_one-worker", cause="input-stall", wrong="jitter,one", right="jitter"),
    Case(name="teacher_float-bank", cause="pageable-copy", wrong="bank,unpinned", right="bank"),
    Case(name="teacher_in-fp32", cause="matmul-precision", wrong="fp32"),
    Case(name="teacher_validates", cause="evaluation", wrong="validates", cycle=3),
    Case(name="teacher_asks-the-teacher", cause="host-sync", wrong="small,asks", right="small"),
)


class Photos(Dataset):
    def __init__(self, size, jitter):
        rng = np.random.default_rng(0)
        self.bank = rng.integers(0, 255, (64, size + 32, size + 32, 3), dtype=np.uint8)
        self.size, self.jitter = size, jitter

    def __len__(self):
        return 10**7

    def __getitem__(self, index):
        top, left = index % 32, (index // 7) % 32
        photo = self.bank[index % 64][top : top + self.size, left : left + self.size]
        if self.jitter:
            low = photo.astype(np.float32)
            photo = np.clip((low - 127) * (0.8 + index % 5 / 10) + 127, 0, 255).astype(np.uint8)
        return torch.from_numpy(
            np.ascontiguousarray(photo[:, :: 1 - 2 * (index % 2)])
        ), index % 1000


class Engine:
    """Runs a step for each batch and calls who asked for it."""

    def __init__(self, step):
        self.step, self.handlers = step, []

    def every(self, steps, handler):
        self.handlers.append((steps, handler))

    def run(self, batches):
        for number, batch in enumerate(batches):
            output = self.step(batch)
            for steps, handler in self.handlers:
                if number % steps == 0:
                    handler(output)


def networks():
    if is_tiny():
        small = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1000)
        )
        large = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1000)
        )
        return large, small
    from torchvision.models import mobilenet_v3_large, regnet_y_3_2gf

    return regnet_y_3_2gf(weights=None), mobilenet_v3_large(weights=None)


def float_bank(batch, size, fault):
    """Batches made ready once, as float images, and used again and again."""
    parts = [
        (torch.rand(batch, size, size, 3) * 255, torch.randint(0, 1000, (batch,))) for _ in range(3)
    ]
    if "unpinned" not in fault:
        parts = [(pinned(images), labels) for images, labels in parts]
    while True:
        yield from parts


def batches(fault):
    batch, size = pick(64 if "small" in fault else 192, 4), pick(224, 32)
    if "bank" in fault:
        return float_bank(batch, size, fault)
    return DataLoader(
        Photos(size, "jitter" in fault),
        batch_size=batch,
        num_workers=pick(1 if "one" in fault else 12, 1),
        pin_memory=not is_tiny(),
        persistent_workers=True,
    )


def soft_loss(student, teacher, labels, temperature=3.0):
    soft = F.kl_div(
        F.log_softmax(student.float() / temperature, 1),
        F.softmax(teacher.float() / temperature, 1),
        reduction="batchmean",
    )
    return temperature**2 * 0.7 * soft + 0.3 * F.cross_entropy(student.float(), labels)


def train(watch, fault):
    torch.backends.cudnn.allow_tf32 = False
    teacher, student = (n.to(device()).to(memory_format=torch.channels_last) for n in networks())
    teacher.eval().requires_grad_(False)
    optimizer = torch.optim.SGD(
        student.parameters(),
        lr=0.1,
        momentum=0.9,
        weight_decay=1e-4,
        nesterov=True,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)

    def prepare(images):
        images = images.to(device(), non_blocking="unpinned" not in fault)
        return images.permute(0, 3, 1, 2).float().div_(255)

    def step(batch):
        images, labels = prepare(batch[0]), batch[1].to(device(), non_blocking=True)
        with torch.no_grad(), torch.autocast(device(), torch.bfloat16, enabled="fp32" not in fault):
            wanted = teacher(images)
        if "asks" in fault and (wanted.argmax(1) == labels).float().mean() > 0.9:
            print("the teacher knows this one")
        with torch.autocast(device(), torch.bfloat16):
            guess = student(images)
        loss = soft_loss(guess, wanted, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach(), guess.detach(), labels

    held_out = torch.rand(pick(192, 4), 3, pick(224, 32), pick(224, 32), device=device())

    @torch.no_grad()
    def validate(_):
        student.eval()
        with torch.autocast(device(), torch.bfloat16):
            right = sum(student(held_out).argmax(1).eq(0).sum() for _ in range(4))
        print("right", right.item())
        student.train()

    engine = Engine(step)
    engine.every(30, lambda output: print("loss", output[0].item()))
    if "accuracy" in fault:
        engine.every(
            1, lambda output: print((output[1].argmax(1) == output[2]).float().mean().item())
        )
    if "validates" in fault:
        engine.every(3, validate)
    engine.every(1, lambda _: watch.step())
    engine.run(batches(fault))
