"""Local SGD: ranks step alone and average their parameters after every second step."""

# mypy: allow-untyped-calls

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.profiler import profile, record_function

from benchmarks.ranks_by_others.compute import FunctionLayer, sleep_function
from benchmarks.ranks_by_others.drill import Drill

LOCAL_STEPS = 2


def pace(drill: Drill) -> float:
    """Return the factor of this rank's compute; under `unequal` each rank is slow for a round."""
    if drill.hits("unequal") and drill.turn(LOCAL_STEPS) == drill.rank:
        return drill.case.amount
    return drill.stretch("slow")


def average(model: nn.Module) -> None:
    """Average the parameters over all ranks."""
    vector = parameters_to_vector(model.parameters()).detach()
    dist.all_reduce(vector)
    vector_to_parameters(vector / dist.get_world_size(), model.parameters())


def main(drill: Drill, out: Path) -> None:
    """Train."""
    dist.init_process_group("gloo")
    mixer = sleep_function("MixerLayer")
    layers = [FunctionLayer(128, lambda: 0.009 * pace(drill), mixer) for _ in range(3)]
    model = nn.Sequential(*layers)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    prof = profile(with_stack=True)
    for step in range(drill.steps):
        if step == drill.first_profiled:
            prof.__enter__()
        with record_function(f"local step {step}"):
            opt.zero_grad()
            model(torch.randn(4, 128)).square().mean().backward()
            opt.step()
        if step % LOCAL_STEPS == LOCAL_STEPS - 1:
            with record_function("average"):
                average(model)
        drill.tick()
    prof.__exit__(None, None, None)
    prof.export_chrome_trace(str(out / f"localsgd.rank{dist.get_rank()}.json.gz"))
