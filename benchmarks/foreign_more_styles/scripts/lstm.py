"""A recognizer of speech with recurrent layers and CTC; a plain script."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.foreign_more_styles.common import Case, device, pick

CASES = (
    Case(name="lstm_ordinary"),
    Case(name="lstm_cell-by-cell", cause="launch-bound", wrong="short,cells", right="short"),
    Case(name="lstm_beam-search", cause="host-stall", wrong="beam"),
)


class CellByCell(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(layers))

    def forward(self, x):
        for cell in self.cells:
            h = c = x.new_zeros(x.shape[1], cell.hidden_size)
            steps = []
            for frame in x.unbind(0):
                h, c = cell(frame, (h, c))
                steps.append(h)
            x = torch.stack(steps)
        return x, None


class Recognizer(nn.Module):
    def __init__(self, mels, width, layers, letters, cells):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(mels, width, 5, 2, 2), nn.ReLU(), nn.Conv1d(width, width, 5, 2, 2), nn.ReLU()
        )
        self.rnn = CellByCell(width, layers) if cells else nn.LSTM(width, width, layers)
        self.post = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )
        self.head = nn.Linear(width, letters)

    def forward(self, x):
        x = self.front(x).permute(2, 0, 1).contiguous()
        x, _ = self.rnn(x)
        return F.log_softmax(self.head(x + self.post(x)).float(), -1)


def beams(scores, width=24):
    """Decode one utterance in plain Python, to look at while it trains."""
    paths = [((), 0.0)]
    for row in scores:
        grown = {}
        for path, value in paths:
            for letter, more in enumerate(row):
                key = path if path and path[-1] == letter else (*path, letter)
                grown[key] = max(grown.get(key, -1e9), value + more)
        paths = sorted(grown.items(), key=lambda item: -item[1])[:width]
    return paths[0][0]


def train(watch, fault):
    dev = device()
    short = "short" in fault
    mels, width, layers, letters = pick((80, 512 if short else 1024, 2, 32), (8, 16, 1, 8))
    frames, batch = pick((256, 16) if short else (600, 256), (40, 2))
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.device(dev):
        model = Recognizer(mels, width, layers, letters, "cells" in fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    sound = torch.randn(batch, mels, frames, device=dev)
    said = torch.randint(1, letters, (batch, 12), device=dev)
    out_len = torch.full((batch,), frames // 4, dtype=torch.long)
    said_len = torch.full((batch,), 12 if frames > 100 else 4, dtype=torch.long)
    step = 0
    while True:
        start = random.randrange(4)
        logp = model(torch.roll(sound, start, 2))
        loss = F.ctc_loss(logp, said, out_len, said_len, zero_infinity=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        if "beam" in fault:
            beams(logp[: pick(16, 4), 0].detach().tolist(), pick(12, 2))
        if step % 10 == 0:
            print(f"{step}\t{loss.item():.3f}")
        step += 1
        watch.step()
