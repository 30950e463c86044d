"""What every script shares: which steps carry the fault, the clock, the profiler.

A run is: a few steps to warm up, six blocks of steps with the fault off and on in turn (no
profiler), two steps to lead in, and the profiled steps with the fault on.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

# The recorder has the same three numbers.
WARM = 4
BLOCKS = 6
LEAD = 2


def prompt(wanted: bool) -> None:
    """Have this thread (and those it starts) woken at once, so that busy cores do not count."""
    policy, level = (os.SCHED_RR, 1) if wanted else (os.SCHED_OTHER, 0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, policy, os.sched_param(level))


class Run:
    """One rank's view of a case: its settings, the step it is at, and its clock."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.rank = int(os.environ["RANK"])
        self.ranks = int(os.environ["WORLD_SIZE"])
        self.fault: str = settings["fault"]
        self.culprits: list[int] = settings["culprits"]
        self.size: float = settings["size"]
        self.every: int = settings["every"]
        self.block: int = settings["block"]
        self.profiled: int = settings["profiled"]
        self.extra: dict[str, Any] = settings["extra"]
        self.style: dict[str, Any] = settings["style"]
        self.traces = Path(settings["traces"])
        self.scratch = Path(settings["scratch"])
        self.step = 0
        self.times: list[float] = []
        self.profile_from = 0.0
        self.first_lead = WARM + BLOCKS * self.block
        self.first_profiled = self.first_lead + LEAD
        self.total = self.first_profiled + self.profiled
        self._profiler: profile | None = None

    def init(self) -> None:
        """Join the gloo process group (for scripts without a framework that does it)."""
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))

    def on(self, *names: str, ahead: int = 0) -> bool:
        """Whether one of these faults is switched on at this step, on whichever rank."""
        step = self.step + ahead
        if self.fault not in names or step < WARM:
            return False
        return step >= self.first_lead or (step - WARM) // self.block % 2 == 1

    def here(self, *names: str, ahead: int = 0) -> bool:
        """Whether this rank has one of these faults at this step."""
        strikes = (self.step + ahead) % self.every == 0
        return strikes and self.rank in self.culprits and self.on(*names, ahead=ahead)

    def pace(self, *names: str) -> float:
        """Factor on the length of compute."""
        return 1 + self.size if self.here("slow", *names) else 1.0

    def steps(self) -> Iterator[int]:
        """The steps of the run; the clock ticks after each."""
        while self.step < self.total:
            yield self.step
            self.tick()

    def tick(self) -> None:
        """A step has ended."""
        self.times.append(time.perf_counter())
        self.step += 1
        if self.step == self.total:
            prompt(False)
        if self.style["marked"]:
            self._tick_marked()
        else:
            self._tick_plain()

    def _tick_marked(self) -> None:
        if self.step == self.first_lead:
            plan = schedule(wait=0, warmup=LEAD, active=self.profiled, repeat=1)
            self._profiler = self._make(schedule=plan, on_trace_ready=self._handler())
            self._profiler.start()
        elif self._profiler is not None:
            self._profiler.step()
            if self.step == self.total:
                self._profiler.stop()
        if self.step == self.first_profiled:
            self.profile_from = time.perf_counter()

    def _tick_plain(self) -> None:
        if self.step == self.first_profiled:
            self._profiler = self._make()
            self._profiler.start()
            self.profile_from = time.perf_counter()
        elif self.step == self.total and self._profiler is not None:
            self._profiler.stop()
            self._handler()(self._profiler)

    def _make(self, **options: Any) -> profile:
        return profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=self.style["shapes"],
            with_stack=self.style["stack"],
            profile_memory=self.style["memory"],
            **options,
        )

    def _handler(self) -> Callable[[profile], None]:
        """Write the trace under the names of the script's style."""
        names: str = self.style["names"]
        if names.startswith("tensorboard"):
            worker = f"worker{self.rank}" if names == "tensorboard-worker" else None
            return tensorboard_trace_handler(str(self.traces), worker, names.endswith("-gz"))
        name = names.format(rank=self.rank)
        return lambda made: made.export_chrome_trace(str(self.traces / name))

    def finish(self) -> None:
        """Leave the clock's readings for the recorder, and wait for the others."""
        told = {"times": self.times, "profile_from": self.profile_from}
        (self.scratch / f"times{self.rank}.json").write_text(json.dumps(told))
        if dist.is_initialized():
            dist.barrier()


def start(main: Callable[[Run], None]) -> None:
    """Run a script as the rank that the environment names."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    prompt(True)
    run = Run(json.loads(os.environ["RANKS_CASE"]))
    main(run)
    run.finish()
    if dist.is_initialized():
        dist.destroy_process_group()


def timed(name: str) -> Callable[[torch.Tensor, float], torch.Tensor]:
    """An autograd function called `name` that takes t forward and 2t backward."""

    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return grad.clone(), None

    made = type(
        name,
        (torch.autograd.Function,),
        {"forward": staticmethod(forward), "backward": staticmethod(backward)},
    )
    return made.apply


def timed_op(name: str) -> Callable[[torch.Tensor, float], torch.Tensor]:
    """The same as a custom operator `namespace::name`."""

    def work(x: torch.Tensor, seconds: float) -> torch.Tensor:
        time.sleep(seconds)
        return x.clone()

    def work_backward(grad: torch.Tensor, seconds: float) -> torch.Tensor:
        time.sleep(2 * seconds)
        return grad.clone()

    op = torch.library.custom_op(name, work, mutates_args=())
    op_backward = torch.library.custom_op(name + "_backward", work_backward, mutates_args=())

    def setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.seconds = inputs[1]

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return op_backward(grad, ctx.seconds), None

    op.register_autograd(backward, setup_context=setup)
    return op


class Block(torch.nn.Module):
    """A small linear layer whose planted length is `seconds` forward, twice that backward."""

    def __init__(
        self,
        run: Run,
        width: int,
        seconds: float,
        op: Callable[[torch.Tensor, float], torch.Tensor],
    ) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.run, self.seconds, self.op = run, seconds, op

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(torch.tanh(self.linear(x)), self.seconds * self.run.pace("throttle"))
