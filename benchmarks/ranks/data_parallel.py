"""Scripts under DistributedDataParallel: loops of one and of several micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset

from benchmarks.ranks.cases import Case
from benchmarks.ranks.faults import Fault
from benchmarks.ranks.layers import Layer, Sleeping, SmallLayer
from benchmarks.ranks.meter import Meter

WIDTH, BATCH, WIDE = 256, 16, 1024
SMALL_WIDTH, SMALL_BATCH = 768, 768
"""Products of about 10 ms on one core of the machine of the recordings."""


def timed_layers(case: Case, fault: Fault, width: int = WIDTH) -> nn.Sequential:
    layers = (Layer(width, case.layer_seconds, fault.factor, BATCH) for _ in range(case.layers))
    return nn.Sequential(*layers)


def evaluation(case: Case, model: nn.Module, width: int = WIDTH) -> Callable[[], float]:
    """Validation of as many batches as take the case's seconds."""
    batches = max(1, round(case.amount / (case.layers * case.layer_seconds)))

    def evaluate() -> float:
        losses = [model(torch.randn(BATCH, width)).square().mean() for _ in range(batches)]
        return float(torch.stack(losses).mean())

    return evaluate


class Samples(Dataset[torch.Tensor]):
    """Vectors; the first one of a batch is where a slow store is waited for."""

    def __init__(self, fault: Fault, width: int = WIDTH, batch: int = BATCH) -> None:
        self.fault, self.batch = fault, batch
        self.pool = torch.randn(64, width)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % self.batch == 0:
            self.fault.load()
        return self.pool[index % 64]


def ddp_loop(case: Case, fault: Fault, meter: Meter) -> None:
    dist.init_process_group("gloo")
    base = timed_layers(case, fault)
    model = DistributedDataParallel(base)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(Samples(fault), batch_size=BATCH)
    for x in loader:
        loss = model(x).square().mean()
        loss.backward()
        fault.after_backward(model)
        optimizer.step()
        optimizer.zero_grad()
        fault.after_step(base, evaluation(case, base))
        meter.end_step()
        if meter.done:
            break
    dist.destroy_process_group()


def ddp_small(case: Case, fault: Fault, meter: Meter) -> None:
    """Two ranks that really compute, one core each."""
    dist.init_process_group("gloo")
    base = nn.Sequential(*(SmallLayer(SMALL_WIDTH, fault.factor) for _ in range(case.layers)))
    model = DistributedDataParallel(base)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loader = DataLoader(Samples(fault, SMALL_WIDTH, SMALL_BATCH), batch_size=SMALL_BATCH)
    for x in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        fault.after_step(base)
        meter.end_step()
        if meter.done:
            break
    dist.destroy_process_group()


def ddp_accumulate(case: Case, fault: Fault, meter: Meter) -> None:
    """Gradients of several micro-batches: the fault is that `no_sync` is left out."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(timed_layers(case, fault, WIDE))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = iter(DataLoader(Samples(fault, WIDE), batch_size=BATCH))
    while not meter.done:
        for number, x in enumerate(islice(loader, case.micro_batches)):
            last = number == case.micro_batches - 1
            with nullcontext() if last or fault.reduces_each_time() else model.no_sync():
                (model(x).square().mean() / case.micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad()
        meter.end_step()
    dist.destroy_process_group()


class TokenStream(IterableDataset[torch.Tensor]):
    """Token ids from a stream of shards."""

    def __init__(self, fault: Fault, length: int, vocab: int) -> None:
        self.fault, self.length, self.vocab = fault, length, vocab

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            self.fault.load()
            yield torch.randint(0, self.vocab, (4, self.length))


class TextModel(nn.Module):
    """An embedding, timed layers and a head; a real attention block where two ranks run."""

    def __init__(self, case: Case, fault: Fault, vocab: int = 512, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        seconds = case.layer_seconds
        layers = [Layer(width, seconds, fault.factor, 4) for _ in range(case.layers)]
        self.blocks = nn.ModuleList([block, *layers] if case.ranks == 2 else layers)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        logits: torch.Tensor = self.head(x)
        return logits


def _text_loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    logits = model(ids[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def ddp_text(case: Case, fault: Fault, meter: Meter) -> None:
    dist.init_process_group("gloo")
    net = TextModel(case, fault)
    model = DistributedDataParallel(net, bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    batches = max(1, round(case.amount / (case.layers * case.layer_seconds)))
    held_out = torch.randint(0, 512, (4, 33))

    def validate() -> float:
        net.eval()
        total = sum(float(_text_loss(net, held_out)) for _ in range(batches))
        net.train()
        return total / batches

    for ids in DataLoader(TokenStream(fault, 33, 512), batch_size=None):
        optimizer.zero_grad(set_to_none=True)
        _text_loss(model, ids).backward()
        fault.after_backward(net)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        fault.after_step(net, validate)
        meter.end_step()
        if meter.done:
            break
    dist.destroy_process_group()


def ddp_hooks(case: Case, fault: Fault, meter: Meter) -> None:
    """Micro-batches whose layers sleep outside any operator; `require_backward_grad_sync` is set."""
    dist.init_process_group("gloo")
    layers = (
        Sleeping(nn.Linear(WIDE, WIDE), 2 * case.layer_seconds, fault.factor)
        for _ in range(case.layers)
    )
    model = DistributedDataParallel(nn.Sequential(*layers), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while not meter.done:
        optimizer.zero_grad()
        for number in range(case.micro_batches):
            last = number == case.micro_batches - 1
            model.require_backward_grad_sync = last or fault.reduces_each_time()
            model(torch.randn(BATCH, WIDE)).square().mean().backward()
        optimizer.step()
        fault.after_step(model)
        meter.end_step()
    dist.destroy_process_group()
