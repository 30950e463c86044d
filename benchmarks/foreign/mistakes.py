"""What goes wrong in the jobs, as users write it: `MISTAKES`, and which job has which: `CASES`."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass(kw_only=True)
class Variant:
    """How a job is run. The defaults are a sound run."""

    batch_factor: float = 1.0
    seq_len: int | None = None
    micro_batches: int = 1
    workers: int = 4
    pin: bool = True
    autocast: bool = True
    bf16_weights: bool = False
    sgd: bool = False
    fused: bool = True
    foreach: bool | None = None
    model_options: dict[str, Any] = field(default_factory=lambda: {"attn_implementation": "sdpa"})
    recompute: bool = False
    compiled: bool | None = None
    graphs: bool = False
    batch_work: Callable[[float], None] | None = None
    """Work in making the samples of one batch, spread over them: called with a sample's share."""
    before_step: Callable[[nn.Module], None] | None = None
    after_backward: Callable[[nn.Module], None] | None = None
    after_step: Callable[[nn.Module], None] | None = None
    log_every_step: bool = False
    evaluate: bool = False
    float_images: bool = False


def burn(seconds: float) -> Callable[..., None]:
    """Plain Python work that torch knows nothing of."""

    def work(part: object = None) -> None:
        share = part if isinstance(part, float) else 1.0
        end, total = time.perf_counter() + seconds * share, 0
        while time.perf_counter() < end:
            total += sum(range(200))

    return work


def sleep(seconds: float) -> Callable[..., None]:
    def wait(part: object = None) -> None:
        time.sleep(seconds * (part if isinstance(part, float) else 1.0))

    return wait


def read_norms(model: nn.Module) -> None:
    total = 0.0
    for parameter in model.parameters():
        if parameter.grad is not None:
            total += parameter.grad.norm().item() ** 2


def check_nans(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and torch.isnan(parameter.grad).any():
            raise RuntimeError(name)


_HEAP: list[Any] = []


def collect(_: nn.Module) -> None:
    if not _HEAP:
        _HEAP.extend([{"a": [i]} for i in range(400_000)])
    gc.collect()


def save(model: nn.Module) -> None:
    torch.save(model.state_dict(), "/tmp/checkpoint.pt")


def empty_cache(_: nn.Module) -> None:
    torch.cuda.empty_cache()


def read_loss_often(model: nn.Module) -> None:
    """A progress bar that shows figures of the weights."""
    for parameter in list(model.parameters())[:24]:
        float(parameter.detach().abs().mean())


Make = Callable[[], Variant]
Pair = tuple[str, Make, Make]


def _with(cause: str, **wrong: Any) -> Pair:
    """A mistake that is removed by leaving its settings out."""
    return cause, lambda: Variant(**wrong), Variant


def _against(cause: str, wrong: dict[str, Any], right: dict[str, Any]) -> Pair:
    return cause, lambda: Variant(**wrong), lambda: Variant(**right)


_TINY = {"batch_factor": 0.125, "seq_len": 128}
MISTAKES: dict[str, Pair] = {
    "none": _with("none"),
    "log-every-step": _with("none", log_every_step=True),
    "norm-items": _with("host-sync", after_backward=read_norms),
    "nan-checks": _with("host-sync", after_backward=check_nans),
    "weight-figures": _with("host-sync", after_step=read_loss_often),
    "slow-samples": _against(
        "input-stall", {"workers": 0, "batch_work": burn(0.16)}, {"workers": 0}
    ),
    "few-workers": _against(
        "input-stall",
        {"workers": 1, "batch_work": burn(0.25)},
        {"workers": 12, "batch_work": burn(0.25)},
    ),
    "sleeping-loader": _against(
        "input-stall", {"workers": 0, "batch_work": sleep(0.2)}, {"workers": 0}
    ),
    "python-before": _with("host-stall", before_step=burn(0.15)),
    "python-after": _with("host-stall", after_step=burn(0.15)),
    "sleep-after": _with("host-stall", after_step=sleep(0.12)),
    "gc": _with("host-stall", after_step=collect),
    "save": _with("checkpoint-stall", after_step=save),
    "eager-attention": _with("unfused-attention", model_options={"attn_implementation": "eager"}),
    "accumulate": _with("small-micro-batch", micro_batches=8),
    "tiny": _against("launch-bound", _TINY, _TINY | {"compiled": True, "graphs": True}),
    "pageable": _against(
        "pageable-copy", {"pin": False, "float_images": True}, {"float_images": True}
    ),
    "loop-optimizer": _with("unfused-optimizer", fused=False, foreach=False),
    "fp32": _with("matmul-precision", autocast=False),
    "recompute": _with("recompute-excess", recompute=True),
    "empty-cache": _with("memory-pressure", after_step=empty_cache),
    "evaluate": _with("evaluation", evaluate=True),
}
"""Each mistake: its cause, a run with it, and one without it."""

_CASES = {
    "gpt2": "none norm-items slow-samples python-before gc save eager-attention tiny loop-optimizer "
    "fp32 empty-cache evaluate accumulate ",
    "llama": "none log-every-step few-workers python-after save eager-attention recompute fp32 ",
    "resnet": "none norm-items slow-samples sleep-after pageable empty-cache ",
    "bert": "none nan-checks sleeping-loader python-before accumulate loop-optimizer ",
    "lora": "none weight-figures python-after save recompute ",
    "llama-compiled": "none norm-items ",
    "qwen": "none log-every-step nan-checks sleeping-loader python-after save eager-attention "
    "accumulate recompute tiny ",
    "mixtral": "none norm-items slow-samples gc loop-optimizer empty-cache ",
    "vit": "none weight-figures few-workers sleep-after pageable evaluate eager-attention ",
    "t5": "none log-every-step slow-samples python-before save recompute fp32 ",
    "fp8": "none nan-checks python-after eager-attention evaluate ",
    "convnext": "none norm-items pageable gc loop-optimizer ",
    "gpt2-compiled": "none python-before ",
}
CASES = {job: names.split() for job, names in _CASES.items()}
"""The mistakes that each job is recorded with."""
