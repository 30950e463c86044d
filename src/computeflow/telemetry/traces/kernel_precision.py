"""Matrix products by their kernels, and the precision they compute in: `full_precision_rows`.

Kernels are told by their names. Operand types come second: with autocast, an operator is recorded
with the float32 operands that it casts before its product in bfloat16.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.event_names import MAX_READ, WorkKind
from computeflow.telemetry.traces.flop_operators import owners
from computeflow.telemetry.traces.launches import Launches
from computeflow.telemetry.traces.rank_accounts import Roles
from computeflow.telemetry.traces.trace import Trace, distinct

Rows = NDArray[np.bool_]

_ATTENTION = re.compile(r"flash|fmha|fused_attention|sdpa|attention", re.IGNORECASE)
_PRODUCT = re.compile(
    r"gemm|gemv|nvjet|xmma|cutlass|^Cijk_|scudnn|convolve|winograd|fprop|dgrad|wgrad|conv_depthwise",
    re.IGNORECASE,
)
"""cuBLAS, cuDNN, CUTLASS (which all name gemm, xmma, nvjet or cutlass) and hipBLASLt (Cijk)."""
_NO_PRODUCT = re.compile(
    r"elementwise|reduce_kernel|memset|memcpy|copy|nchwtonhwc|nhwctonchw|CatArray|Transpose|"
    r"SubTensorOp|embedding|bounds_check|fbgemm_gpu::",
    re.IGNORECASE,
)
"""Other kernels that an operator of a product launches (casts, layouts, fills), and FBGEMM's for
embedding tables."""
_HALF = re.compile(
    r"bf16|bfloat16|fp?16|half|e4m3|e5m2|fp8|hgemm|h884|h1688|h16816|"
    r"nvjet_(sm\d{2,3}_)?[^s_d]|^Cijk_\w+?_([HB][HBS]S?|[FB]8\w*)_",
    re.IGNORECASE,
)
"""Operands of 16 bits and less; nvjet's first letter is the type of an operand (s: float32)."""
_TF32 = re.compile(r"tf32|xf32|s1688|tensorop_s|nvjet_(sm\d{2,3}_)?s(?!m\d)", re.IGNORECASE)
_FLOAT32 = re.compile(
    r"sgemm|simt_s|f32f32_f32f32|scudnn|ffma|[<, ]float[,>* ]|^Cijk_.*_S_?B_", re.IGNORECASE
)
_FLOAT32_ATTENTION = re.compile(
    r"fmha_cutlass[FB]_f32|flash\w{0,60}<[^>]{0,200}\bfloat\b.{0,20}, float"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRows:
    """Rows of `Trace.device` that compute in float32."""

    products: Rows
    """Matrix products and convolutions in float32, not in TF32."""
    tf32: Rows
    attention: Rows
    """Fused attention of float32 operands."""
    others: Rows
    """Remaining kernels of the forward and backward pass, if most of the products' time is spent on
    float32 operands."""


def full_precision_rows(trace: Trace, launches: Launches, role: Roles) -> PrecisionRows:
    device = trace.device
    seconds = device.end - device.start
    product = product_rows(trace, launches)
    half, tf32, named = (rows_named(trace, pattern) for pattern in (_HALF, _TF32, _FLOAT32))
    full = product & ~half & ~tf32 & (named | _has_float_operands(trace, launches))
    attention = rows_named(trace, _FLOAT32_ATTENTION)
    others = (device.work == WorkKind.COMPUTE) | (device.work == WorkKind.MEMORY)
    others &= ~product & ~role.optimizer & role.step & ~attention
    tf32 &= product & ~half
    if 2 * seconds[full | tf32].sum() <= seconds[product].sum():
        others[:] = False
    return PrecisionRows(products=full, tf32=tf32, attention=attention, others=others)


def precision_hint(trace: Trace) -> str:
    """TF32, where a kernel computes in it: operand types call it float32."""
    names = (trace.names[number] for number in distinct(trace.device.name))
    tf32 = any(has_pattern(_TF32, name) and not has_pattern(_HALF, name) for name in names)
    return "tf32" if tf32 else ""


def product_rows(trace: Trace, launches: Launches) -> Rows:
    """Matrix products and convolutions: by name, or as the kernel of a counted operator."""
    found = rows_named(trace, _PRODUCT)
    if len(trace.products):
        owner = owners(trace, launches)
        name = trace.products.name[np.maximum(owner, 0)]
        multiplies = np.array([not has_pattern(_ATTENTION, name) for name in trace.names])
        found |= (owner >= 0) & multiplies[name]
    found &= trace.device.work == WorkKind.COMPUTE
    return np.asarray(found & ~rows_named(trace, _ATTENTION) & ~rows_named(trace, _NO_PRODUCT))


def rows_named(trace: Trace, pattern: re.Pattern[str]) -> Rows:
    """Rows of the device whose name has this pattern."""
    found = np.zeros(len(trace.names) + 1, bool)
    for number in distinct(trace.device.name):
        found[number] = has_pattern(pattern, trace.names[number])
    return np.asarray(found[trace.device.name])


@lru_cache(maxsize=16384)
def has_pattern(pattern: re.Pattern[str], name: str) -> bool:
    """Whether a name has this pattern; kernels have long names, and traces the same ones."""
    return pattern.search(name[:MAX_READ]) is not None


def _has_float_operands(trace: Trace, launches: Launches) -> Rows:
    """Rows that were launched by an operator of float32 operands, where types are recorded."""
    if not len(trace.products):
        return np.zeros(len(trace.device), bool)
    owner = owners(trace, launches)
    is_float = np.array([name == "float" for name in trace.names])
    return np.asarray((owner >= 0) & is_float[trace.products.type[np.maximum(owner, 0)]])
