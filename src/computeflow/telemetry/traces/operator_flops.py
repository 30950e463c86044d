"""FLOPs of an operator from the shapes that the trace carries: `operator_work`.

Model FLOPs, as in the predictor: two for each multiply and add, causal attention at half,
attention's backward pass at twice its forward one (what a fused kernel computes again is not
counted). Operators that only call others (`aten::linear`) count nothing; where a counted operator
is inside another counted one, the outer one is taken. Attention written as batched products is
causal where the trace masks a square of its size (`mask_size`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class OperatorFlops(NamedTuple):
    flops: float
    full: float
    """FLOPs with attention counted in full, as PaLM did."""
    elements: float
    """Elements of operands and result: what must pass through memory."""
    scores: int
    """Side of a batched product's square operand or result (attention scores); else 0."""
    type: str
    """Type of the operands, as torch writes it (c10::BFloat16)."""
    shape: str
    """Shapes of the operands, as JSON."""


Shapes = list[Any]
_NOTHING = OperatorFlops(0.0, 0.0, 0.0, 0, "", "")
_MAX_SHAPE = 160
_PLAIN = frozenset({"", "long", "int", "bool", "Scalar", "ScalarList"})
"""Argument types that are not those of tensor operands."""
_STRANGE = (ValueError, LookupError, TypeError, ArithmeticError, RecursionError)
"""Exceptions raised by malformed shapes."""


def operator_work(name: str, dims: bytes, types: bytes, concrete: bytes) -> OperatorFlops:
    """The operator's FLOPs; zero where the name or the shapes are unknown."""
    count = COUNTED.get(name)
    if count is None or not dims:
        return _NOTHING
    try:
        shapes = json.loads(dims)
        kinds = json.loads(types) if types else []
        values = json.loads(concrete) if concrete else []
        flops, full, elements = map(float, count(shapes, values))
        operand_type = next(
            (kind for kind in kinds if isinstance(kind, str) and kind not in _PLAIN), ""
        )
        first = _BATCHED.get(name)
        scores = 0 if first is None else _scores(shapes[first], shapes[first + 1])
    except _STRANGE:
        return _NOTHING
    if not (0 < flops < 1e24 and 0 <= elements < 1e24 and 0 <= scores < 2**62):
        return _NOTHING
    shape = json.dumps(shapes[:5], separators=(",", ":"))[:_MAX_SHAPE]
    return OperatorFlops(
        flops, full, elements, scores, operand_type.encode("utf-8", "replace").decode(), shape
    )


MASKS = frozenset(
    {"aten::masked_fill", "aten::masked_fill_", "aten::where", "aten::tril", "aten::triu"}
)
"""Operators that apply a triangular mask to attention's scores."""


def mask_size(dims: bytes) -> int:
    """Side of a square mask among an operator's arguments; 0 where there is none."""
    try:
        shapes = json.loads(dims) if dims else []
        squares = [
            shape[-1]
            for shape in shapes
            if len(shape) >= 2 and shape[-1] == shape[-2] > 1 and set(shape[:-2]) <= {1}
        ]
    except _STRANGE:
        return 0
    return squares[0] if squares and isinstance(squares[0], int) and squares[0] < 2**62 else 0


def _scores(left: list[int], right: list[int]) -> int:
    """Side of the square score matrix, which is the product's result or one of its operands; else
    0.
    """
    rows, inner, columns = left[-2], left[-1], right[-1]
    if rows in (inner, columns):
        return rows
    return inner if inner == columns else 0


Counted = tuple[float, float, float]


def _product(left: Shapes, right: Shapes) -> Counted:
    """Count a product of two matrices, or of two equal batches of them."""
    *batch, m, k = left
    n = right[-1]
    if right[-2] != k:
        raise ValueError("shapes do not fit")
    flops, elements = 2.0 * m * k * n, 1.0 * (m * k + k * n + m * n)
    for size in batch:
        flops, elements = flops * size, elements * size
    return flops, flops, elements


def _operands(first: int) -> Callable[[Shapes, list[Any]], Counted]:
    def count(shapes: Shapes, _: list[Any]) -> Counted:
        return _product(shapes[first], shapes[first + 1])

    return count


def _grouped(shapes: Shapes, _: list[Any]) -> Counted:
    """Count the product of one matrix's rows with the experts' matrices."""
    rows, k = shapes[0][-2:]
    n = shapes[1][-1]
    flops = 2.0 * rows * k * n
    return flops, flops, rows * (k + n) + _volume(shapes[1])


def _attention(
    query: int, causal: int, *, heads_first: bool, backward: bool = False
) -> Callable[[Shapes, list[Any]], Counted]:
    """Count attention; `query` and `causal` are argument positions, key and value follow the query."""

    def count(shapes: Shapes, values: list[Any]) -> Counted:
        q, k, v = shapes[query : query + 3]
        if heads_first:
            batch, heads, rows, width = q
            columns = k[2]
        else:
            batch, rows, heads, width = q
            columns = k[1]
        full = 2.0 * batch * heads * rows * columns * (width + v[3]) * (2 if backward else 1)
        is_causal = len(values) > causal and values[causal] == "True"
        elements = (_volume(q) + _volume(k) + _volume(v) + _volume(q)) * (2 if backward else 1)
        return full * (0.5 if is_causal else 1.0), full, elements

    return count


def _sizes(text: Any) -> list[int]:
    """A list of numbers from torch's text form, such as "[1, 1]"."""
    sizes = json.loads(text) if isinstance(text, str) else text
    if not isinstance(sizes, list) or not all(isinstance(size, int) for size in sizes):
        raise ValueError("no sizes")
    return sizes


def _convolution(shapes: Shapes, values: list[Any]) -> Counted:
    source, weight = shapes[0], shapes[1]
    stride, padding, dilation = (_sizes(values[i]) for i in (3, 4, 5))
    if (
        str(values[6]) == "True"
    ):  # transposed: every input element is multiplied by the whole kernel
        points = 1.0
        for size in (source[0], *source[2:]):
            points *= size
        flops = 2.0 * points * _volume(weight)
        return flops, flops, _volume(source) + _volume(weight)
    points = float(source[0])
    for axis, size in enumerate(source[2:]):
        reach = dilation[axis % len(dilation)] * (weight[axis + 2] - 1) + 1
        points *= (size + 2 * padding[axis % len(padding)] - reach) // stride[
            axis % len(stride)
        ] + 1
    flops = 2.0 * points * _volume(weight)
    return flops, flops, _volume(source) + _volume(weight) + points * weight[0]


def _convolution_backward(shapes: Shapes, _: list[Any]) -> Counted:
    """Count both gradients, by the input and by the weight, each as much as forward."""
    gradient, weight = shapes[0], shapes[2]
    points = float(gradient[0])
    for size in gradient[2:]:
        points *= size
    flops = 4.0 * points * _volume(weight)
    return flops, flops, 2 * (_volume(gradient) + _volume(shapes[1]) + _volume(weight))


def _volume(weight: list[int]) -> float:
    volume = 1.0
    for size in weight:
        volume *= size
    return volume


_BATCHED = {"aten::bmm": 0, "aten::baddbmm": 1}
"""Batched products, with the position of their first operand."""
COUNTED: dict[str, Callable[[Shapes, list[Any]], Counted]] = {
    "aten::mm": _operands(0),
    "aten::bmm": _operands(0),
    "aten::addmm": _operands(1),
    "aten::_addmm_activation": _operands(1),
    "aten::baddbmm": _operands(1),
    "aten::_scaled_mm": _operands(0),
    "aten::_int_mm": _operands(0),
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention": _attention(0, 4, heads_first=True),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, 6, heads_first=True),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, 6, heads_first=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(0, 4, heads_first=True),
    "aten::_flash_attention_forward": _attention(0, 8, heads_first=False),
    "aten::_efficient_attention_forward": _attention(0, 99, heads_first=False),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(
        1, 11, heads_first=True, backward=True
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(
        1, 11, heads_first=True, backward=True
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(
        1, 14, heads_first=True, backward=True
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention(
        1, 7, heads_first=True, backward=True
    ),
    "aten::_flash_attention_backward": _attention(1, 11, heads_first=False, backward=True),
    "flash_attn::_flash_attn_forward": _attention(0, 5, heads_first=False),
    "flash_attn::_flash_attn_backward": _attention(1, 11, heads_first=False, backward=True),
}
"""Counted operators, with argument orders of torch's native_functions.yaml (2.11) and flash-attn
2.8."""
