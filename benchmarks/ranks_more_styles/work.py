"""Real work of a chosen length, for faults that are work of that kind."""

import gc
import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch


def until(seconds: float, job: Callable[[], object]) -> None:
    """Repeat a short job until the time is used up."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        job()


def python_loop(seconds: float) -> None:
    """Count words in plain Python."""
    text = "the quick brown fox jumps over the lazy dog " * 20

    def count() -> dict[str, int]:
        found: dict[str, int] = {}
        for word in text.split():
            found[word] = found.get(word, 0) + len(word)
        return found

    until(seconds, count)


def collect(seconds: float) -> None:
    """Make cyclic garbage and collect it."""

    def once() -> None:
        rows = [[i] for i in range(2000)]
        for row in rows:
            row.append(row)
        del rows
        gc.collect()

    until(seconds, once)


def save(seconds: float, state: dict[str, torch.Tensor], path: Path) -> None:
    """Save a state and flush it to the disk until the time is used up."""

    def once() -> None:
        torch.save(state, path)
        with path.open("rb+") as file:
            os.fsync(file.fileno())

    until(seconds, once)


def log_json(seconds: float, step: int, path: Path) -> None:
    """Serialise histograms of a step and append them to a file."""
    row = {"step": step, "histogram": list(range(500)), "note": "grad" * 50}

    def once() -> None:
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    until(seconds, once)
    path.unlink(missing_ok=True)


def norms(seconds: float, parameters: Iterable[torch.Tensor]) -> None:
    """Norms of each parameter, one by one."""
    kept = list(parameters)
    with torch.no_grad():
        until(seconds, lambda: [float(p.detach().norm()) for p in kept])


def confusion(seconds: float, classes: int = 50) -> None:
    """A confusion matrix and ranks of scores, by tensor operations."""
    scores = torch.randn(256, classes)
    target = torch.randint(classes, (256,))

    def once() -> float:
        guess = scores.argsort(dim=1, descending=True)
        hits = (guess == target[:, None]).float().argmax(dim=1)
        table = torch.bincount(target * classes + guess[:, 0], minlength=classes**2)
        return float(hits.float().mean()) + float(table.max())

    until(seconds, once)


def tokenise(seconds: float) -> None:
    """Split and hash text as a naive tokeniser does."""
    text = "Attention is all you need, they said; so it was. " * 10

    def once() -> list[int]:
        words = text.lower().replace(",", " ,").split()
        return [int(hashlib.md5(word.encode()).hexdigest()[:6], 16) for word in words]

    until(seconds, once)


def pickle_state(seconds: float, state: dict[str, torch.Tensor]) -> None:
    """Serialise a state into memory."""
    until(seconds, lambda: torch.save(state, io.BytesIO()))
