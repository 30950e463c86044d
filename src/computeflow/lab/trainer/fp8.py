"""Linear layers whose three matmuls run in fp8, scaled by tensor at every call.

Forward operands are e4m3, gradients e5m2 (arXiv:2209.05433). The second operand of `_scaled_mm` must be
column-major, hence the transposes. Nothing is cached between calls: the cost of casting is in the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Fp8Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        product: Tensor = _Fp8Matmul.apply(flat, self.weight)
        return product.view(*x.shape[:-1], -1)


class _Fp8Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight.t(), torch.float8_e4m3fn, torch.float8_e4m3fn, x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
        return (
            _product(gradient, weight, e5m2, e4m3, x.dtype),
            _product(gradient.t(), x, e5m2, e4m3, weight.dtype),
        )


def _product(
    a: Tensor, b: Tensor, a_type: torch.dtype, b_type: torch.dtype, out: torch.dtype
) -> Tensor:
    a8, a_scale = _cast(a.contiguous(), a_type)
    b8, b_scale = _cast(b.t().contiguous(), b_type)
    return torch._scaled_mm(a8, b8.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=out)


def _cast(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    limit = torch.finfo(kind).max
    scale = x.abs().amax().float().clamp(min=1e-12) / limit
    return (x / scale).clamp(-limit, limit).to(kind), scale
