"""A small DETR by hand: convolutions, a transformer with queries, boxes matched on the host."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="detect_ordinary"),
    Case(name="detect_image-by-image", cause="host-sync", wrong="one-image"),
    Case(name="detect_python-matching", cause="host-stall", wrong="hungarian"),
    Case(
        name="detect_mosaic-in-the-loop", cause="input-stall", wrong="mosaic,alone", right="mosaic"
    ),
    Case(name="detect_unpinned", cause="pageable-copy", wrong="float,unpinned", right="float"),
    Case(name="detect_draws", cause="host-stall", wrong="draws", cycle=3),
)
CLASSES = 80


class Scenes(Dataset):
    """Images in memory with a few boxes each."""

    def __init__(self, size, mosaic, as_float):
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 255, (96, 3, size, size), dtype=np.uint8)
        self.size, self.mosaic, self.as_float = size, mosaic, as_float

    def __len__(self):
        return 10**7

    def tile(self, index):
        tile = self.images[index % 96][:, ::2, ::2].astype(np.float32)
        tile = (tile - tile.mean()) * (0.8 + 0.1 * (index % 4)) + 127
        return np.clip(tile, 0, 255).astype(np.uint8)

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        image = self.images[index % 96]
        if self.mosaic:
            tiles = [self.tile(index + k) for k in range(4)]
            rows = [np.concatenate(tiles[:2], 2), np.concatenate(tiles[2:], 2)]
            image = np.ascontiguousarray(np.concatenate(rows, 1)[:, :, ::-1])
        image = torch.from_numpy(image)
        if self.as_float:
            image = image.float() / 255
        count = 6 + index % 7
        boxes = torch.from_numpy(rng.uniform(0.1, 0.6, (count, 4)).astype(np.float32))
        return image, torch.from_numpy(rng.integers(0, CLASSES, count)), boxes


def collate(rows):
    images, classes, boxes = zip(*rows, strict=True)
    return torch.stack(images), list(classes), list(boxes)


class Detector(nn.Module):
    def __init__(self, width, d_model, layers):
        super().__init__()
        body, before = [], 3
        for channels in (width, 2 * width, 4 * width, 8 * width):
            body += [nn.Conv2d(before, channels, 3, 2, 1), nn.GroupNorm(8, channels), nn.SiLU()]
            body += [nn.Conv2d(channels, channels, 3, 1, 1), nn.GroupNorm(8, channels), nn.SiLU()]
            before = channels
        self.body = nn.Sequential(*body, nn.Conv2d(before, d_model, 1))
        self.transformer = nn.Transformer(
            d_model, 8, layers, layers, 4 * d_model, dropout=0.0, batch_first=True
        )
        self.queries = nn.Parameter(torch.randn(100, d_model) * 0.02)
        self.classes, self.boxes = nn.Linear(d_model, CLASSES + 1), nn.Linear(d_model, 4)

    def forward(self, images):
        features = self.body(images).flatten(2).transpose(1, 2)
        out = self.transformer(features, self.queries.expand(len(images), -1, -1))
        return self.classes(out), self.boxes(out).sigmoid()


def greedy(cost):
    """The cheapest query of each box, one after another."""
    cost, queries = cost.copy(), []
    for box in range(cost.shape[1]):
        query = int(cost[:, box].argmin())
        queries.append(query)
        cost[query] = np.inf
    return queries


def hungarian(cost):
    """The shortest augmenting paths, as in the textbook."""
    a = np.nan_to_num(cost).T.tolist()
    n, m = len(a), len(a[0])
    u, v, p, way = [0.0] * (n + 1), [0.0] * (m + 1), [0] * (m + 1), [0] * (m + 1)
    for i in range(1, n + 1):
        p[0], j0 = i, 0
        least, used = [float("inf")] * (m + 1), [False] * (m + 1)
        while p[j0]:
            used[j0], i0, delta, j1 = True, p[j0], float("inf"), 0
            for j in range(1, m + 1):
                if not used[j]:
                    value = a[i0 - 1][j - 1] - u[i0] - v[j]
                    if value < least[j]:
                        least[j], way[j] = value, j0
                    if least[j] < delta:
                        delta, j1 = least[j], j
            for j in range(m + 1):
                if used[j]:
                    u[p[j]] += delta
                    v[j] -= delta
                else:
                    least[j] -= delta
            j0 = j1
        while j0:
            j1 = way[j0]
            p[j0], j0 = p[j1], j1
    queries = [0] * n
    for j in range(1, m + 1):
        if p[j]:
            queries[p[j] - 1] = j - 1
    return queries


@torch.no_grad()
def match(logits, predicted, classes, boxes, counts, fault):
    """Rows of (image, query) for all boxes of the batch in order."""
    by_class = -logits.softmax(-1)[:, :, classes]
    by_box = torch.cdist(predicted.float(), boxes.expand(len(predicted), -1, -1), p=1)
    starts = np.cumsum([0, *counts])
    if "one-image" not in fault:
        both = (by_class.float() + 5 * by_box).cpu().numpy()
    queries = []
    for image, (start, end) in enumerate(itertools.pairwise(starts)):
        if "one-image" in fault:
            first = by_class[image, :, start:end].float().cpu().numpy()
            cost = first + 5 * by_box[image, :, start:end].cpu().numpy()
        else:
            cost = both[image, :, start:end]
        queries += (hungarian if "hungarian" in fault else greedy)(cost)
    return torch.tensor(np.repeat(np.arange(len(counts)), counts)), torch.tensor(queries)


def loss_of(logits, predicted, classes, boxes, counts, fault):
    rows, queries = match(logits, predicted, classes, boxes, counts, fault)
    rows, queries = (t.to(device(), non_blocking=True) for t in (rows, queries))
    wanted = torch.full(logits.shape[:2], CLASSES, device=device())
    wanted[rows, queries] = classes
    named = F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())
    return named + 5 * F.l1_loss(predicted[rows, queries].float(), boxes)


def draw(images, predicted):
    """A few images with their boxes, as compressed files in memory."""
    files = []
    for image, boxes in zip(images[:3].cpu().numpy(), predicted[:3].float().tolist(), strict=False):
        canvas, size = image.copy(), image.shape[-1]
        for x, y, w, h in boxes:
            left, top = int(x * size * 0.9), int(y * size * 0.9)
            canvas[:, top : top + max(1, int(h * 20)), left : left + max(1, int(w * 20))] = 255
        files.append(zlib.compress(canvas.tobytes(), 9))
    return files


def train(watch, fault):
    size = pick(384, 64)
    pin = not is_tiny() and "unpinned" not in fault
    loader = DataLoader(
        Scenes(size, "mosaic" in fault, "float" in fault),
        batch_size=pick(32, 2),
        num_workers=0 if "alone" in fault else pick(8, 1),
        collate_fn=collate,
        pin_memory=pin,
    )
    model = Detector(pick(64, 8), pick(384, 16), pick(4, 1)).to(device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step, (images, classes, boxes) in enumerate(loader):
        counts = [len(c) for c in classes]
        images = images.to(device(), non_blocking=pin)
        classes = torch.cat(classes).to(device(), non_blocking=pin)
        boxes = torch.cat(boxes).to(device(), non_blocking=pin)
        scaled = images if "float" in fault else images.float() / 255
        with torch.autocast(device(), dtype=torch.bfloat16):
            logits, predicted = model(scaled)
        loss = loss_of(logits, predicted, classes, boxes, counts, fault)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        if step % 25 == 0:
            print(f"{step}: {loss.item():.3f}")
        if "draws" in fault and step % 3 == 0:
            draw(images, predicted.detach())
        watch.step()
