"""Federated rounds by objects: every client trains, states and metrics travel as pickles."""

import torch
import torch.distributed as dist
from torch import nn

from .. import work
from ..harness import Block, Run, start, timed

layer = timed("ClientNet")


def merge(states: list[dict]) -> dict:
    return {key: sum(state[key] for state in states) / len(states) for key in states[0]}


def main(run: Run) -> None:
    run.init()
    model = nn.Sequential(*[Block(run, 16, 0.012, layer) for _ in range(3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run.steps():
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.here("pickling"):
            work.pickle_state(run.size, model.state_dict())
        states: list = [None] * run.ranks
        dist.all_gather_object(states, model.state_dict())
        model.load_state_dict(merge(states))
        if run.here("metrics"):
            work.confusion(run.size)
        scores: list = [None] * run.ranks
        dist.all_gather_object(scores, {"loss": float(loss), "rank": run.rank})


if __name__ == "__main__":
    start(main)
