"""Timings of the device: matmuls at training shapes, attention, memory, launches, copies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from computeflow.lab.probe.timing import Timing, time_calls

TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """A matmul of `m` tokens with a weight of `n` rows and `k` columns, or one of the two of its
    backward pass.
    """

    m: int
    n: int
    k: int
    precision: str
    part: str
    """Role: forward (x W^T), input (dy W) or weight (dy^T x)."""
    seconds: float
    flops: float
    """Achieved FLOP/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTiming:
    batch: int
    heads: int
    kv_heads: int
    seq_len: int
    head_dim: int
    precision: str
    part: str
    """`forward` or `backward`."""
    seconds: float
    flops: float
    """Achieved FLOP/s, counting the causal half."""


QUICK_GEMMS = [(8192, 6144, 4096), (8192, 28672, 4096), (8192, 8192, 8192), (2048, 4096, 4096)]
FULL_GEMMS = [  # (tokens, out, in): blocks of 0.5B, 1B, 8B and 70B models, an LM head, small batches
    *QUICK_GEMMS, (8192, 4096, 1024), (8192, 1024, 4096), (8192, 8192, 2048), (8192, 2048, 8192),
    (8192, 4096, 4096), (8192, 4096, 14336), (8192, 10240, 8192), (8192, 57344, 8192),
    (8192, 8192, 28672), (8192, 128256, 4096), (512, 4096, 4096), (2048, 28672, 4096),
    (512, 28672, 4096), (32768, 4096, 4096),
]  # fmt: skip
CPU_GEMMS = [(512, 512, 512), (1024, 1024, 1024)]


def gemms(
    device: torch.device, precision: str, shapes: list[tuple[int, int, int]], seconds: float
) -> Iterator[Gemm]:
    """Time each shape in its three training roles."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    for m, n, k in shapes:
        for part, call in _roles(device, precision, m, n, k):
            took = time_calls(call, device, least_seconds=seconds)
            yield Gemm(
                m=m,
                n=n,
                k=k,
                precision=precision,
                part=part,
                seconds=took.seconds,
                flops=2.0 * m * n * k / took.seconds,
            )


def _roles(
    device: torch.device, precision: str, m: int, n: int, k: int
) -> list[tuple[str, Callable[[], Tensor]]]:
    if precision == "fp8":
        return [
            ("forward", _scaled(device, m, n, k, torch.float8_e4m3fn)),
            ("input", _scaled(device, m, k, n, torch.float8_e5m2)),
            ("weight", _scaled(device, n, k, m, torch.float8_e5m2)),
        ]
    kind = TYPES[precision]
    x = torch.randn(m, k, device=device, dtype=kind)
    w = torch.randn(n, k, device=device, dtype=kind)
    dy = torch.randn(m, n, device=device, dtype=kind)
    return [
        ("forward", lambda: x @ w.t()),
        ("input", lambda: dy @ w),
        ("weight", lambda: dy.t() @ x),
    ]


def _scaled(
    device: torch.device, m: int, n: int, k: int, kind: torch.dtype
) -> Callable[[], Tensor]:
    """A call of an fp8 product with given result and inner dimension, operands already cast."""
    a = torch.randn(m, k, device=device).to(kind)
    b = torch.randn(n, k, device=device).to(torch.float8_e4m3fn).t()
    scale = torch.ones((), device=device)
    return lambda: torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


FULL_ATTENTION = [  # (batch, heads, kv heads, sequence, head dim), 16k to 32k tokens
    (32, 32, 8, 512, 128), (16, 32, 8, 1024, 128), (8, 32, 8, 2048, 128), (4, 32, 8, 4096, 128),
    (2, 32, 8, 8192, 128), (1, 32, 8, 16384, 128), (1, 32, 8, 32768, 128),
    (16, 16, 16, 1024, 64), (4, 16, 16, 4096, 64), (2, 64, 8, 4096, 128),
]  # fmt: skip
QUICK_ATTENTION = [(4, 32, 8, 4096, 128)]
CPU_ATTENTION = [(1, 4, 4, 256, 64)]


def attention(
    device: torch.device,
    precision: str,
    shapes: list[tuple[int, int, int, int, int]],
    seconds: float,
) -> Iterator[AttentionTiming]:
    for batch, heads, groups, length, dim in shapes:
        q, k, v = (
            torch.randn(
                batch, h, length, dim, device=device, dtype=TYPES[precision]
            ).requires_grad_()
            for h in (heads, groups, groups)
        )
        grouped = heads != groups
        forward = _attention_forward(q, k, v, grouped)
        result = forward()
        gradient = torch.randn_like(result)
        backward = _attention_backward(result, (q, k, v), gradient)
        flops = 2.0 * batch * heads * length * length * dim  # two matmuls at 2 FLOPs, causal half
        for part, call, factor in (("forward", forward, 1.0), ("backward", backward, 2.0)):
            took = time_calls(call, device, least_seconds=seconds)
            yield AttentionTiming(
                batch=batch,
                heads=heads,
                kv_heads=groups,
                seq_len=length,
                head_dim=dim,
                precision=precision,
                part=part,
                seconds=took.seconds,
                flops=factor * flops / took.seconds,
            )


def _attention_forward(q: Tensor, k: Tensor, v: Tensor, grouped: bool) -> Callable[[], Tensor]:
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


def _attention_backward(
    result: Tensor, inputs: tuple[Tensor, ...], gradient: Tensor
) -> Callable[[], object]:
    return lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True)


def memory_rates(device: torch.device, size_bytes: int, seconds: float) -> dict[str, float]:
    """Bytes per second, read and written together, of a copy, an addition and an AdamW step."""
    count = size_bytes // 2
    a = torch.randn(count, device=device).to(torch.bfloat16)
    b = torch.randn(count, device=device).to(torch.bfloat16)
    out = torch.empty_like(a)
    copy = time_calls(lambda: out.copy_(a), device, least_seconds=seconds)
    add = time_calls(lambda: torch.add(a, b, out=out), device, least_seconds=seconds)
    return {
        "copy": 2 * size_bytes / copy.seconds,
        "add": 3 * size_bytes / add.seconds,
        "adamw": _adamw_rate(device, size_bytes // 4, seconds),
    }


def _adamw_rate(device: torch.device, count: int, seconds: float) -> float:
    """Bytes per second of fused AdamW in bf16, which reads weight, gradient and two moments and
    writes three: 14 bytes per weight.
    """
    weight = torch.nn.Parameter(torch.randn(count, device=device).to(torch.bfloat16))
    weight.grad = torch.randn(count, device=device).to(torch.bfloat16)
    optimizer = torch.optim.AdamW([weight], fused=True)
    took = time_calls(optimizer.step, device, least_seconds=seconds)
    return 14 * count / took.seconds


def launch_seconds(device: torch.device) -> float:
    """Host time to launch one small operation, which an eager run pays for each."""
    x = torch.zeros(8, device=device)
    for _ in range(200):
        x.add_(1)
    best = float("inf")
    for _ in range(5):
        _wait(device)
        began = time.perf_counter()
        for _ in range(1000):
            x.add_(1)
        best = min(best, (time.perf_counter() - began) / 1000)
        _wait(device)
    return best


def copy_rates(device: torch.device, size_bytes: int, seconds: float) -> dict[str, float]:
    """Bytes per second between host and device, from pinned and from pageable memory."""
    on_device = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    pageable = torch.ones(size_bytes, dtype=torch.uint8)
    pinned = pageable.pin_memory()
    calls: dict[str, Callable[[], object]] = {
        "host-to-device pinned": lambda: on_device.copy_(pinned, non_blocking=True),
        "device-to-host pinned": lambda: pinned.copy_(on_device, non_blocking=True),
        "host-to-device pageable": lambda: on_device.copy_(pageable),
        "device-to-host pageable": lambda: pageable.copy_(on_device),
    }
    return {
        n: size_bytes / time_calls(c, device, least_seconds=seconds).seconds
        for n, c in calls.items()
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def soak(
    device: torch.device, seconds: float, precision: str = "bf16"
) -> list[tuple[float, float]]:
    """Run one large matmul without pause; (time, FLOP/s) of each quarter second."""
    size = 8192 if device.type == "cuda" else 512
    a = torch.randn(size, size, device=device, dtype=TYPES[precision])
    b = torch.randn(size, size, device=device, dtype=TYPES[precision])
    line: list[tuple[float, float]] = []
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        took: Timing = time_calls(lambda: a @ b, device, least_seconds=0.25, least=2)
        line.append((time.monotonic() - started, 2.0 * size**3 / took.seconds))
    return line
