"""What the pipeline scripts share: a stage of a planted length."""

from collections.abc import Callable

from torch import Tensor, nn

from .harness import Run

WIDTH, BATCH = 32, 4


def planted(run: Run, stage: int) -> float:
    """Forward seconds of one micro-batch on a stage, at this step."""
    times: list[float] = run.extra["stages"]
    if run.fault == "uneven-stages" and not run.on("uneven-stages"):
        return sum(times) / len(times)
    slow = run.extra.get("slow_stage", stage) == stage
    return times[stage] * (run.pace("stage") if slow else 1.0)


class Stage(nn.Module):
    """Two layers that share the stage's time."""

    def __init__(self, run: Run, index: int, op: Callable[[Tensor, float], Tensor]) -> None:
        super().__init__()
        self.run, self.index, self.op = run, index, op
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        seconds = planted(self.run, self.index) / 2
        x = self.op(self.first(x).relu(), seconds)
        return self.op(self.second(x).tanh(), seconds)
