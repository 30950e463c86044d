"""Expert parallel: one expert per rank, tokens exchanged with all_to_all_single."""

# mypy: allow-untyped-calls

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_to_all_single
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from benchmarks.ranks_by_others.compute import sleep_function
from benchmarks.ranks_by_others.drill import Drill

DIM = 64
TOKENS = 96
"""Tokens of each rank."""
SECONDS_PER_TOKEN = 0.012 / TOKENS
expert_ffn = sleep_function("ExpertFFN")


def splits(drill: Drill) -> list[int]:
    """Return how many of its tokens each rank sends to each expert."""
    world = drill.case.ranks
    hot = -1
    if drill.hits("unequal"):
        hot = drill.turn()
    elif drill.hits("hot-expert", rank=drill.case.culprits[0] if drill.case.culprits else 0):
        hot = drill.case.culprits[0]
    if hot < 0:
        return [TOKENS // world] * world
    favoured = int(TOKENS // world * drill.case.amount)
    others = (TOKENS - favoured) // (world - 1)
    return [favoured if expert == hot else others for expert in range(world)]


class MoE(nn.Module):
    """A gate, an exchange, this rank's expert, and the exchange back."""

    def __init__(self, drill: Drill) -> None:
        super().__init__()
        self.gate = nn.Linear(DIM, DIM)
        self.expert = nn.Linear(DIM, DIM)
        self.drill = drill

    def forward(self, x: Tensor) -> Tensor:
        """Route the tokens through the experts."""
        send = splits(self.drill)
        x = self.gate(x)[: sum(send)]
        receive = [send[self.drill.rank]] * self.drill.case.ranks
        with record_function("dispatch"):
            inbox = all_to_all_single(x.new_empty(sum(receive), DIM), x, receive, send)
        seconds = SECONDS_PER_TOKEN * len(inbox) * self.drill.stretch("slow")
        y = expert_ffn.apply(self.expert(inbox), seconds)
        with record_function("combine"):
            out: Tensor = all_to_all_single(y.new_empty(sum(send), DIM), y, send, receive)
        return torch.relu(out)


def main(drill: Drill, out: Path) -> None:
    """Train."""
    dist.init_process_group("gloo")
    layers = [MoE(drill) for _ in range(3)]
    shared = [p for layer in layers for p in layer.gate.parameters()]
    optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=1e-3)
    name = str(out / f"ep{dist.get_rank()}.json.gz")
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=drill.first_profiled - 1, warmup=1, active=drill.case.profiled),
        on_trace_ready=lambda prof: prof.export_chrome_trace(name),
    ) as prof:
        for _ in range(drill.steps):
            x = torch.randn(TOKENS, DIM)
            for layer in layers:
                x = layer(torch.cat([x, x.new_zeros(TOKENS - len(x), DIM)]))
            x.square().mean().backward()
            flat = torch.cat([p.grad.flatten() for p in shared if p.grad is not None])
            dist.all_reduce(flat)
            optimizer.step()
            optimizer.zero_grad()
            drill.tick()
            prof.step()
