"""Reinforcement learning with a lag of one step: rank 0 learns from the last trajectories while
the others play; then trajectories are gathered and weights broadcast.
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from .. import work
from ..harness import Block, Run, start, timed

layer = timed("PolicyTorso")
WIDTH, TURNS = 24, 6


def play(run: Run, policy: nn.Module) -> Tensor:
    """Let the policy act in an environment for some turns."""
    seen, turns = torch.zeros(1, WIDTH), []
    pace = 1 + run.size if run.here("slow-env") else 1.0
    for _ in range(TURNS):
        with torch.no_grad(), record_function("act"):
            seen = policy(seen)
        with record_function("env.step"):
            time.sleep(0.012 * pace)
        turns.append(seen)
    return torch.cat(turns)


def learn(policy: nn.Module, optimizer: torch.optim.Optimizer, batch: list[Tensor]) -> None:
    with record_function("learner update"):
        policy(torch.cat(batch)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def main(run: Run) -> None:
    run.init()
    learner = run.rank == 0
    seconds = 0.016 if learner else 0.002
    policy = nn.Sequential(*[Block(run, WIDTH, seconds, layer) for _ in range(2)])
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    empty = [torch.zeros(TURNS, WIDTH) for _ in range(run.ranks)]
    batch = empty
    for step in run.steps():
        if learner:
            learn(policy, optimizer, batch)
            mine, batch = torch.zeros(TURNS, WIDTH), [torch.empty_like(e) for e in empty]
            if run.here("log"):
                work.log_json(run.size, step, run.scratch / "returns.jsonl")
        else:
            mine = play(run, policy)
        with record_function("collect trajectories"):
            dist.gather(mine, batch if learner else None, dst=0)
        with record_function("publish weights"):
            flat = nn.utils.parameters_to_vector(policy.parameters()).detach()
            dist.broadcast(flat, src=0)
            nn.utils.vector_to_parameters(flat, policy.parameters())


if __name__ == "__main__":
    start(main)
