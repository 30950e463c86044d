"""Training loops as their libraries document them: `run` one variant of a job under a `Watch`."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.foreign.jobs import Job, Sample, Samples
from benchmarks.foreign.mistakes import Variant


class EnoughError(Exception):
    """The watch has seen what it needs."""


@dataclass(frozen=True, kw_only=True)
class Profiling:
    """What the profiler is asked to record, and for how many steps."""

    shapes: bool = False
    stack: bool = False
    memory: bool = False
    steps: int = 3


class Watch:
    """Counts steps: warms up, times repeats without a profiler, then profiles a few steps.

    Nothing waits for the device meanwhile: times are those of events on it, read when all is done. A
    wait would take the host's lead away, and with it what that lead hides.
    """

    def __init__(
        self,
        trace: str | None,
        *,
        repeats: int = 3,
        repeat_seconds: float = 0.8,
        profiling: Profiling | None = None,
        warm: int = 6,
    ) -> None:
        self.trace, self.repeats, self.warm = trace, repeats, warm
        self.repeat_seconds = repeat_seconds
        self.profiling = profiling or Profiling()
        self.seconds: list[float] = []
        self.profiled_seconds: float | None = None
        self._steps = 0
        self._span = 0
        self._left = 0
        self._began = 0.0
        self._events: list[torch.cuda.Event] = []
        self._profiler: Any = None

    def step(self) -> None:
        """Called by the loop after every optimizer step."""
        self._steps += 1
        if self._profiler is not None:
            self._profiled_step()
        elif self._steps < self.warm:
            if self._steps == self.warm - 2:
                torch.cuda.synchronize()
                self._began = time.perf_counter()
        elif self._steps == self.warm:
            torch.cuda.synchronize()
            step = (time.perf_counter() - self._began) / 2
            self._span = max(6 if step < 0.5 else 2, min(40, round(self.repeat_seconds / step)))
            self._left = 4 if step < 0.5 else 1  # until the host has its lead again
        else:
            self._timed_step()

    def _timed_step(self) -> None:
        self._left -= 1
        if self._left:
            return
        self._left = self._span
        self._events.append(torch.cuda.Event(enable_timing=True))
        self._events[-1].record()
        if len(self._events) <= self.repeats:
            return
        self._events[-1].synchronize()
        pairs = zip(self._events, self._events[1:], strict=False)
        self.seconds = [one.elapsed_time(other) / 1e3 / self._span for one, other in pairs]
        if self.trace is None:
            raise EnoughError
        self._start_profiler()

    def _start_profiler(self) -> None:
        from torch.profiler import ProfilerActivity, profile, schedule

        self._profiler = profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
            schedule=schedule(wait=0, warmup=2, active=self.profiling.steps, repeat=1),
            record_shapes=self.profiling.shapes,
            with_stack=self.profiling.stack,
            profile_memory=self.profiling.memory,
        )
        self._profiler.__enter__()
        self._left = 2 + self.profiling.steps

    def _profiled_step(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.profiled_seconds = (time.perf_counter() - self._began) / self.profiling.steps
        self._profiler.step()
        if self._left == self.profiling.steps:
            self._began = time.perf_counter()  # the start of the recording is no part of a step
        if self._left == 0:
            self._profiler.__exit__(None, None, None)
            self._profiler.export_chrome_trace(self.trace)
            raise EnoughError


class Worked(Samples):
    """Samples whose making takes work."""

    def __init__(self, job: Job, variant: Variant) -> None:
        super().__init__(job.sample)
        self.variant = variant
        self.share = 1.0 / micro_batch(job, variant)

    def __getitem__(self, index: int) -> Sample:
        if self.variant.batch_work:
            self.variant.batch_work(self.share)
        sample = self.make(index)
        if self.variant.seq_len:
            sample = {k: v[: self.variant.seq_len] for k, v in sample.items()}
        if self.variant.float_images and "pixel_values" in sample:
            sample = dict(sample, pixel_values=sample["pixel_values"].repeat(1, 2, 2))
        return sample


def micro_batch(job: Job, variant: Variant) -> int:
    return max(1, round(job.batch * variant.batch_factor) // variant.micro_batches)


def make_model(job: Job, variant: Variant) -> Any:
    torch.manual_seed(0)
    options = (
        dict(variant.model_options) if job.kind not in ("vision",) or job.name == "vit" else {}
    )
    with torch.device("cuda"):
        model: Any = job.build(options)
    if variant.bf16_weights:
        model = model.to(torch.bfloat16)
    if variant.recompute:
        model.gradient_checkpointing_enable()
        model.config.use_cache = False
    return model.train()


def make_loader(job: Job, variant: Variant) -> DataLoader[Sample]:
    workers = variant.workers
    more: dict[str, Any] = {"prefetch_factor": 4, "persistent_workers": True} if workers else {}
    return DataLoader(
        Worked(job, variant),
        batch_size=micro_batch(job, variant),
        num_workers=workers,
        pin_memory=variant.pin,
        drop_last=True,
        **more,
    )


def make_optimizer(model: nn.Module, variant: Variant) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    if variant.sgd:
        return torch.optim.SGD(trained, lr=1e-3, momentum=0.9, foreach=variant.foreach)
    if variant.fused:
        return torch.optim.AdamW(trained, lr=1e-4, fused=True)
    return torch.optim.AdamW(trained, lr=1e-4, foreach=variant.foreach)


def precision(variant: Variant) -> contextlib.AbstractContextManager[Any]:
    if variant.autocast:
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()


def evaluate(job: Job, model: nn.Module, batch: Sample, variant: Variant) -> None:
    model.eval()
    with torch.no_grad(), precision(variant):
        for _ in range(3):
            job.loss(model, batch)
    model.train()


def compiled(job: Job, variant: Variant) -> bool:
    return job.compiled if variant.compiled is None else variant.compiled


def run(job: Job, variant: Variant, watch: Watch) -> None:
    torch.set_float32_matmul_precision("highest")
    loop = {
        "plain": _plain,
        "accelerate": _accelerate,
        "trainer": _trainer,
        "lightning": _lightning,
    }
    with contextlib.suppress(EnoughError):
        loop[job.loop](job, variant, watch)


def _plain(job: Job, variant: Variant, watch: Watch) -> None:
    model = make_model(job, variant)
    optimizer = make_optimizer(model, variant)
    forward: Any = job.loss
    if compiled(job, variant):
        forward = torch.compile(job.loss, mode="reduce-overhead" if variant.graphs else "default")
    batches = iter(make_loader(job, variant))
    while True:
        if variant.before_step:
            variant.before_step(model)
        for _ in range(variant.micro_batches):
            batch = {k: v.to("cuda", non_blocking=variant.pin) for k, v in next(batches).items()}
            with precision(variant):
                loss = forward(model, batch) / variant.micro_batches
            loss.backward()
        if variant.after_backward:
            variant.after_backward(model)
        optimizer.step()
        optimizer.zero_grad()
        if variant.log_every_step:
            loss.item()
        if variant.evaluate:
            evaluate(job, model, batch, variant)
        if variant.after_step:
            variant.after_step(model)
        watch.step()


def _accelerate(job: Job, variant: Variant, watch: Watch) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(
        mixed_precision="bf16" if variant.autocast else "no",
        gradient_accumulation_steps=variant.micro_batches,
    )
    model = make_model(job, variant)
    if compiled(job, variant):
        model = torch.compile(model)
    model, optimizer, loader = accelerator.prepare(
        model, make_optimizer(model, variant), make_loader(job, variant)
    )
    for number, batch in enumerate(loader):
        first = number % variant.micro_batches == 0
        last = (number + 1) % variant.micro_batches == 0
        if first and variant.before_step:
            variant.before_step(model)
        with accelerator.accumulate(model):
            loss = job.loss(model, batch)
            accelerator.backward(loss)
            if last and variant.after_backward:
                variant.after_backward(model)
            optimizer.step()
            optimizer.zero_grad()
        if not last:
            continue
        if variant.log_every_step:
            loss.item()
        if variant.evaluate:
            evaluate(job, model, batch, variant)
        if variant.after_step:
            variant.after_step(model)
        watch.step()


def _trainer(job: Job, variant: Variant, watch: Watch) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Watching(TrainerCallback):
        def on_step_begin(self, *_: Any, model: nn.Module, **__: Any) -> None:
            if variant.before_step:
                variant.before_step(model)

        def on_pre_optimizer_step(self, *_: Any, model: nn.Module, **__: Any) -> None:
            if variant.after_backward:
                variant.after_backward(model)

        def on_step_end(self, *_: Any, model: nn.Module, **__: Any) -> None:
            if variant.after_step:
                variant.after_step(model)
            watch.step()

    arguments = TrainingArguments(
        output_dir="/tmp/trainer",
        per_device_train_batch_size=micro_batch(job, variant),
        gradient_accumulation_steps=variant.micro_batches,
        bf16=variant.autocast,
        tf32=False,
        optim="adamw_torch_fused" if variant.fused else "adamw_torch",
        logging_steps=1 if variant.log_every_step else 500,
        save_strategy="no",
        report_to=[],
        max_steps=100_000,
        dataloader_num_workers=variant.workers,
        dataloader_pin_memory=variant.pin,
        gradient_checkpointing=variant.recompute,
        torch_compile=compiled(job, variant),
        torch_compile_mode="reduce-overhead" if variant.graphs else None,
        disable_tqdm=True,
    )
    model = make_model(job, variant)
    data = Worked(job, variant)
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Watching()]).train()


def _lightning(job: Job, variant: Variant, watch: Watch) -> None:
    import pytorch_lightning as lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model(job, variant)

        def training_step(self, batch: Sample, _: int) -> torch.Tensor:
            loss = job.loss(self.model, batch)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.model, variant)

    class Watching(lightning.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            if variant.before_step:
                variant.before_step(module.model)

        def on_before_optimizer_step(self, *_: Any) -> None:
            if variant.after_backward:
                variant.after_backward(module.model)

        def on_train_batch_end(self, _: Any, __: Any, ___: Any, batch: Sample, ____: int) -> None:
            if variant.evaluate:
                evaluate(job, module.model, batch, variant)
            if variant.after_step:
                variant.after_step(module.model)
            watch.step()

    module = Module()
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed" if variant.autocast else "32-true",
        max_steps=100_000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=variant.micro_batches,
        log_every_n_steps=1 if variant.log_every_step else 500,
        callbacks=[Watching()],
    )
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    trainer.fit(module, make_loader(job, variant))
