"""Compute that takes a planned time: sleeps, so that ranks do not compete for the cores."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function


def sleep_function(name: str) -> Any:
    """Return an autograd function of that name: forward sleeps, backward sleeps twice as long."""

    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return grad.clone(), None

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (Function,), methods)


@torch.library.custom_op("toy::block", mutates_args=())
def block(x: Tensor, seconds: float) -> Tensor:
    """Sleep as a layer's forward."""
    time.sleep(seconds)
    return x.clone()


@torch.library.custom_op("toy::block_backward", mutates_args=())
def block_backward(grad: Tensor, seconds: float) -> Tensor:
    """Sleep as a layer's backward, twice as long."""
    time.sleep(2 * seconds)
    return grad.clone()


@block.register_fake
def _(x: Tensor, seconds: float) -> Tensor:
    return torch.empty_like(x)


@block_backward.register_fake
def _(grad: Tensor, seconds: float) -> Tensor:
    return torch.empty_like(grad)


def _keep_seconds(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.seconds = inputs[1]


def _block_grad(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return block_backward(grad, ctx.seconds), None


block.register_autograd(_block_grad, setup_context=_keep_seconds)


class OpLayer(nn.Module):
    """A linear layer whose time is that of the custom op behind it."""

    def __init__(self, width: int, seconds: Callable[[], float]) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        out: Tensor = block(torch.relu(self.linear(x)), self.seconds())
        return out


class FunctionLayer(nn.Module):
    """A linear layer whose time is that of the autograd function behind it."""

    def __init__(self, width: int, seconds: Callable[[], float], function: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.seconds = seconds
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        out: Tensor = self.function.apply(torch.relu(self.linear(x)), self.seconds())
        return out


def python_work(seconds: float) -> int:
    """Count letters in plain Python for about so long, with few calls that a tracer would note."""
    text = "a sample of the training text that somebody tokenizes in the loop" * 40
    letters: dict[str, int] = {}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for letter in text:
            letters[letter] = letters[letter] + 1 if letter in letters else 1
    return len(letters)
