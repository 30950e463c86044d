"""Layers whose compute takes a known time: sleeps, so that ranks do not compete for cores."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Factor = Callable[[], float]


class TimedKernel(torch.autograd.Function):
    """A stand-in for a kernel: the same values, after a while; the gradient takes twice as long."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float, factor: Factor) -> torch.Tensor:
        ctx.seconds, ctx.factor = seconds, factor
        time.sleep(seconds * factor())
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(2 * ctx.seconds * ctx.factor())
        return grads[0], None, None


class ThrottledLinear(torch.autograd.Function):
    """A product on a device whose clock is lower: each takes longer by the factor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, factor: Factor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.factor = factor
        began = time.perf_counter()
        y = x @ weight.t()
        time.sleep((factor() - 1) * (time.perf_counter() - began))
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight = ctx.saved_tensors
        began = time.perf_counter()
        result = grads[0] @ weight, grads[0].t() @ x
        time.sleep((ctx.factor() - 1) * (time.perf_counter() - began))
        return *result, None


class Layer(nn.Module):
    """A linear layer that takes `seconds` for a batch of `batch` samples."""

    def __init__(self, width: int, seconds: float, factor: Factor, batch: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.seconds, self.factor, self.batch = seconds, factor, batch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = x.shape[0] / self.batch
        y: torch.Tensor = TimedKernel.apply(self.linear(x), self.seconds * share, self.factor)
        return torch.relu(y)


class SmallLayer(nn.Module):
    """A linear layer that really computes."""

    def __init__(self, width: int, factor: Factor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = ThrottledLinear.apply(x, self.weight, self.factor)
        return torch.relu(y)


class Sleeping(nn.Module):
    """A wrapped layer around which the host is busy, outside any operator."""

    def __init__(self, inner: nn.Module, seconds: float, factor: Factor) -> None:
        super().__init__()
        self.inner, self.seconds, self.factor = inner, seconds, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds * self.factor())
        y: torch.Tensor = self.inner(x)
        return y
