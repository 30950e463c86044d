"""Lightning Fabric: a student learns from a frozen teacher that each rank runs itself."""

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch import nn
from torch.nn.functional import kl_div, log_softmax, softmax
from torch.utils.data import DataLoader, TensorDataset

from .. import work
from ..harness import Block, Run, start, timed

teacher_layer = timed("TeacherLayer")
student_layer = timed("StudentLayer")
WIDTH = 40


def evaluate(run: Run, student: nn.Module) -> None:
    """Some batches of validation, on this rank alone."""
    student.eval()
    with torch.no_grad():
        for _ in range(int(run.size)):
            softmax(student(torch.randn(32, WIDTH)), dim=1).argmax(dim=1)
    student.train()


def endless(loader: DataLoader):
    while True:
        yield from loader


def main(run: Run) -> None:
    fabric = Fabric(
        accelerator="cpu", devices=run.ranks, strategy=DDPStrategy(process_group_backend="gloo")
    )
    fabric.launch()
    teacher = nn.Sequential(*[Block(run, WIDTH, 0.01, teacher_layer) for _ in range(3)]).eval()
    student = nn.Sequential(*[Block(run, WIDTH, 0.008, student_layer) for _ in range(3)])
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    student, optimizer = fabric.setup(student, optimizer)
    data = TensorDataset(torch.randn(64 * run.ranks, WIDTH))
    loader = endless(fabric.setup_dataloaders(DataLoader(data, batch_size=8)))
    for _ in run.steps():
        (x,) = next(loader)
        with torch.no_grad():
            wanted = softmax(teacher(x) / 2, dim=1)
        loss = kl_div(log_softmax(student(x) / 2, dim=1), wanted, reduction="batchmean")
        fabric.backward(loss)
        fabric.clip_gradients(student, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        if run.here("evaluate"):
            evaluate(run, student.module)
        if run.here("metrics"):
            work.confusion(run.size)


if __name__ == "__main__":
    start(main)
