"""The training loop: prepare, run steps, report. Start with `train`."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from computeflow.lab.sensors import Readings, Sensors
from computeflow.lab.trainer import process_rank as ranking
from computeflow.lab.trainer.faults import FaultInjector
from computeflow.lab.trainer.process_rank import ProcessRank, Watchdog
from computeflow.lab.trainer.summary import Summary, summarise
from computeflow.lab.trainer.timing import StepTiming, Stopwatch
from computeflow.lab.trainer.token_data import batches
from computeflow.lab.trainer.trainer_settings import TrainerSettings
from computeflow.lab.trainer.transformer import Transformer


def train(settings: TrainerSettings) -> Summary:
    """Run the settings on this rank; the summary is of this rank's steps."""
    with ranking.join_ranks(settings) as ranks:
        torch.manual_seed(settings.seed)
        _set_precision(settings)
        trainer = Trainer(settings, ranks)
        readings = trainer.run()
        return summarise(settings, ranks, trainer.times, readings)


class Trainer:
    def __init__(self, settings: TrainerSettings, ranks: ProcessRank) -> None:
        self.settings = settings
        self.ranks = ranks
        self.saboteur = FaultInjector(settings, ranks.rank, ranks.device)
        self.model = _build(settings, ranks, self.saboteur)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=1e-4,
            weight_decay=0.1,
            fused=settings.optimizer == "fused",
            foreach=settings.optimizer == "foreach",
        )
        pin = settings.pin and ranks.device.type == "cuda"
        self.batches = batches(settings, ranks.rank, pin=pin)
        self.watchdog = Watchdog(settings, ranks.rank)
        self.times: list[StepTiming] = []

    def run(self) -> Readings:
        """Run all steps; power and clocks are read from the first step after the warm-up on."""
        settings = self.settings
        previous = Stopwatch(self.ranks.device)
        previous.end = previous.mark()
        pending: tuple[int, Stopwatch, Any, int] | None = None
        sensors = Sensors(self.ranks.device.index or 0)
        with contextlib.ExitStack() as stack:
            for step in range(settings.steps):
                if step == settings.warmup:
                    self._settle()
                    stack.enter_context(sensors)
                    profiler = stack.enter_context(self._profiled())
                watch, tokens = self._step(step)
                if pending is not None:
                    self._report(*pending)
                pending = (step, watch, previous.end, tokens)
                previous = watch
                if step >= settings.warmup and profiler is not None:
                    profiler.step()
            if pending is not None:
                self._report(*pending)
        return sensors.readings

    def _settle(self) -> None:
        """Wait for the warm-up to end, and reset the memory peak, so that nothing of it counts."""
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()

    def _step(self, step: int) -> tuple[Stopwatch, int]:
        watch = Stopwatch(self.ranks.device)
        self.saboteur.before_step(step)
        tokens = 0
        total = torch.zeros((), device=self.ranks.device)
        for micro in range(self.settings.accumulation):
            last = micro == self.settings.accumulation - 1
            with ranking.gradients_kept_local(self.model, self.settings, local=not last):
                loss, count = self._micro_batch(watch, step)
            total += loss.detach() / self.settings.accumulation
            tokens += count
        start = watch.mark()
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        watch.phase("optimizer", start)
        every = self.settings.checkpoint_every
        if every and (step + 1) % every == 0:
            began = time.perf_counter()
            with torch.profiler.record_function("checkpoint"):
                self._checkpoint(step)
            watch.host_phase("checkpoint", began)
        watch.finish(total)
        return watch, tokens

    def _micro_batch(self, watch: Stopwatch, step: int) -> tuple[Tensor, int]:
        began = time.perf_counter()
        batch = self.saboteur.cut(next(self.batches), step)
        watch.host_phase("input", began)
        start = watch.mark()
        batch = batch.to(self.ranks.device, non_blocking=True)
        tokens, targets = batch[:, :-1], batch[:, 1:]
        start = watch.phase("copy", start)
        with self._autocast():
            loss: Tensor = self.model(tokens, targets)
        start = watch.phase("forward", start)
        (loss / self.settings.accumulation).backward()
        watch.phase("backward", start)
        self.saboteur.on_micro_batch(step)
        return loss, tokens.numel()

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.settings.precision != "amp":
            return contextlib.nullcontext()
        return torch.autocast(self.ranks.device.type, torch.bfloat16)

    def _checkpoint(self, step: int) -> None:
        """Save weights and optimizer of this rank to one file, blocking, as most trainers do."""
        folder = Path(self.settings.checkpoint_folder or "checkpoints")
        folder.mkdir(parents=True, exist_ok=True)
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, folder / f"rank_{self.ranks.rank}.pt")
        self.saboteur.on_checkpoint(step)

    @contextlib.contextmanager
    def _profiled(self) -> Iterator[Any]:
        if not self.settings.profile_steps:
            yield None
            return
        from torch.profiler import ProfilerActivity, profile, schedule

        folder = Path(self.settings.trace_folder or "traces")
        folder.mkdir(parents=True, exist_ok=True)
        path = str(folder / f"rank_{self.ranks.rank}.json.gz")
        activities = [ProfilerActivity.CPU]
        if self.ranks.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with (
            _collections_marked(),
            profile(
                activities=activities,
                schedule=schedule(wait=0, warmup=1, active=self.settings.profile_steps, repeat=1),
                on_trace_ready=lambda p: p.export_chrome_trace(path),
                record_shapes=True,
            ) as profiler,
        ):
            yield profiler

    def _report(self, step: int, watch: Stopwatch, previous_end: Any, tokens: int) -> None:
        times = watch.read(step, previous_end, tokens)
        self.times.append(times)
        self.watchdog.step_done()
        if not self.settings.quiet and self.ranks.is_first:
            parts = "  ".join(f"{k} {1000 * v:.1f}" for k, v in times.phases.items())
            print(
                f"step {step:4d}  loss {times.loss:.4f}  {1000 * times.seconds:8.1f} ms  "
                f"{times.tokens / times.seconds:10,.0f} tok/s  {parts}",
                file=sys.stderr,
                flush=True,
            )


@contextlib.contextmanager
def _collections_marked() -> Iterator[None]:
    """Annotate Python's garbage collections in the trace."""
    running: list[Any] = []

    def mark(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            running.append(torch.profiler.record_function("gc"))
            running[-1].__enter__()
        elif running:
            running.pop().__exit__(None, None, None)

    gc.callbacks.append(mark)
    try:
        yield
    finally:
        gc.callbacks.remove(mark)


def _build(settings: TrainerSettings, ranks: ProcessRank, saboteur: FaultInjector) -> nn.Module:
    with torch.device(ranks.device):
        model: nn.Module = Transformer(settings)
    saboteur.on_model(model)
    if settings.precision in ("bf16", "fp8"):
        model = model.to(torch.bfloat16)
    if settings.compile == "block":
        for block in model.blocks:  # type: ignore[union-attr]
            block.compile()
    model = ranking.shard(model, settings, ranks)
    return torch.compile(model) if settings.compile == "whole" else model  # type: ignore[return-value]


def _set_precision(settings: TrainerSettings) -> None:
    """Allow TF32 only where it is requested: in `fp32` every matmul is a true fp32 one."""
    torch.set_float32_matmul_precision("high" if settings.precision == "tf32" else "highest")
