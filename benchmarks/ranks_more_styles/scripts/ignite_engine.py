"""PyTorch-Ignite: the step is a function of an engine; handlers do the rest."""

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from torch import nn

from .. import work
from ..harness import Block, Run, start, timed

layer = timed("GraphConv")


def validate(run: Run, model: nn.Module) -> None:
    """Some batches on this rank alone."""
    inner = model.module
    inner.eval()
    with torch.no_grad():
        for _ in range(int(run.size)):
            inner(torch.randn(16, 28)).argmax(dim=1)
    inner.train()


def main(run: Run) -> None:
    idist.initialize("gloo")
    net = nn.Sequential(*[Block(run, 28, 0.007, layer) for _ in range(4)])
    model = idist.auto_model(net)
    optimizer = idist.auto_optim(torch.optim.Adam(model.parameters(), lr=1e-3))

    def update(engine: Engine, batch: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return idist.all_reduce(loss.item())

    trainer = Engine(update)

    @trainer.on(Events.ITERATION_COMPLETED)
    def after(engine: Engine) -> None:
        if run.here("evaluate"):
            validate(run, model)
        if run.here("log"):
            work.log_json(run.size, engine.state.iteration, run.scratch / "ignite.jsonl")
        run.tick()

    trainer.run([torch.randn(8, 28) for _ in range(run.total)], max_epochs=1)


if __name__ == "__main__":
    start(main)
