"""The job behind a trace: its model, batch and stack, read from the shapes of its products: `infer`.

    forward, for every block:   (tokens x hidden) (hidden x q, k, v)      attention      output
                                (tokens x hidden) (hidden x gates, up)    down
    once for a micro-batch:     (tokens x hidden) (hidden x vocabulary)

Projections may be fused or apart: only sums of widths are used. A job whose FLOPs do not come out as
the trace counts them is not understood, and `infer` says so instead of guessing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from computeflow.catalog.models import Attention, Block, Dense, Model
from computeflow.errors import ComputeFlowError
from computeflow.prediction import Stack, find_stack
from computeflow.telemetry.traces.job_ledgers import TYPES
from computeflow.telemetry.traces.rank_measurements import RankMeasurement, ShapeRow
from computeflow.workload import Job, Layout, flops_per_token

CLOSE = 0.03
"""Largest relative difference between the model's FLOPs and the trace's."""
COMPILED = 0.25
"""Least share of a step's other kernels from a compiler in a compiled run: compiling block by block
leaves out the loss and the optimizer (0.37 to 0.51 in our H200 recordings); eager runs have none."""
_HEADS_FIRST = ("aten::_scaled_dot_product",)
_FUSED = (
    "_scaled_dot_product_",
    "_flash_attention_forward",
    "_efficient_attention_forward",
    "flash_attn::_flash_attn_forward",
)
_LINEAR = {"aten::mm": 0, "aten::addmm": 1, "aten::_addmm_activation": 1, "aten::_scaled_mm": 0}
"""Products with weights, and the index of their first operand."""
_BATCHED = {"aten::bmm": 0, "aten::baddbmm": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredJob:
    job: Job
    layout: Layout
    stack: Stack
    assumed: tuple[str, ...]

    @property
    def text(self) -> str:
        block, model = self.job.model.blocks[0], self.job.model
        attention, dense = block.attention, block.dense
        assert attention is not None and dense is not None
        rounds = self.job.global_batch // (self.layout.micro_batch * self.layout.gpus)
        return (
            f"{model.layers} layers of {model.hidden}, {attention.heads} heads "
            f"({attention.kv_heads} of keys), feed-forward {dense.width}, vocabulary {model.vocab}; "
            f"{rounds} x {self.layout.micro_batch} sequences of {self.job.seq_len}, "
            f"{self.job.precision}"
        )


class NotInferredError(ComputeFlowError):
    """The trace's shapes are not of a job that the predictor knows."""


def infer(ranks: Sequence[RankMeasurement]) -> InferredJob:
    """The job of all ranks, which must do the same: data parallelism, sharded or not."""
    first = ranks[0]
    if not first.steps:
        raise NotInferredError("steps (profile with a schedule, or call step())")
    if not first.signals.shapes:
        raise NotInferredError("shapes of operators (profile with record_shapes=True)")
    split = [n for n in ("comm.tp", "comm.pp", "comm.cp", "comm.ep") if n in first.account_names]
    if split:
        raise NotInferredError(
            f"a plan (--expect): the model is cut over ranks ({', '.join(split)})"
        )
    seen = _Shapes(first)
    model = seen.model()
    world = max(max(rank.world or 0 for rank in ranks), len(ranks))
    job = Job(
        model=model,
        global_batch=seen.micro_batch * seen.rounds * world,
        seq_len=seen.seq_len,
        precision=seen.precision,
    )
    each = (
        flops_per_token(model, seen.seq_len).total * seen.micro_batch * seen.rounds * seen.seq_len
    )
    counted = first.flops / len(first.steps)
    if abs(each / counted - 1) > CLOSE:
        raise NotInferredError(
            f"a plan (--expect): the trace counts {counted:.4g} FLOPs in a step, a plain transformer "
            f"of its shapes {each:.4g}"
        )
    return InferredJob(
        job=job,
        layout=Layout(
            gpus=world,
            micro_batch=seen.micro_batch,
            recompute="full" if seen.recomputes else "none",
            sharding=_sharding(first, world),
        ),
        stack=seen.stack(),
        assumed=("the head has weights of its own", "AdamW"),
    )


def _sharding(rank: RankMeasurement, world: int) -> Any:
    """Sharded runs gather weights; unsharded ones only reduce gradients."""
    if world == 1:
        return "ddp"
    gathers = any("gather" in group.lower() for group in rank.groups)
    return "fsdp" if gathers else "ddp"


class _Shapes:
    """Facts inferred from the shapes of one rank, in order."""

    def __init__(self, rank: RankMeasurement) -> None:
        self.rank = rank
        self.steps = len(rank.steps)
        forward = [row for row in rank.signals.shapes if row.phase == "forward"]
        self.recomputes = any(row.phase == "recompute" for row in rank.signals.shapes)
        self.linear: Counter[tuple[int, int, int]] = Counter()
        for row in forward:
            if row.name in _LINEAR:
                one, other = _operands(row, _LINEAR[row.name])
                self.linear[one[-2], one[-1], other[-1]] += row.count
        if not self.linear:
            raise NotInferredError("a plan (--expect): no products of weights in the forward pass")
        weights: Counter[int] = Counter()
        for (rows, inner, columns), count in self.linear.items():
            weights[rows] += count * inner * columns
        self.tokens = weights.most_common(1)[0][0]
        self._attention(forward)
        self._head()

    def _attention(self, forward: list[ShapeRow]) -> None:
        """Calls, heads and their size, sequences and their length."""
        fused = [row for row in forward if any(name in row.name for name in _FUSED)]
        self.fused = bool(fused)
        if fused:
            shapes = {row.shape for row in fused}
            query, key = _parsed(fused[0])[:2]
            if len(query) != 4:
                raise NotInferredError("a plan (--expect): attention over packed sequences")
            if not fused[0].name.startswith("aten::_scaled_dot"):
                query, key = ([s[0], s[2], s[1], s[3]] for s in (query, key))
            self.micro_batch, self.heads, self.seq_len, self.head_dim = query
            calls = sum(row.count for row in fused)
            if len(shapes) > 1:
                raise NotInferredError("a plan (--expect): attention of several shapes")
        else:
            pairs = [row for row in forward if row.name in _BATCHED]
            wide = [
                row
                for row in pairs
                if _operands(row, _BATCHED[row.name])[1][-1]
                == _operands(row, _BATCHED[row.name])[0][-2]
            ]
            if not wide:
                raise NotInferredError("a plan (--expect): no attention in the forward pass")
            one, _ = _operands(wide[0], _BATCHED[wide[0].name])
            together, self.seq_len, self.head_dim = one[-3:]
            self.micro_batch = max(self.tokens // self.seq_len, 1)
            self.heads = together // self.micro_batch
            calls = sum(row.count for row in wide)
        if self.micro_batch * self.seq_len != self.tokens:
            raise NotInferredError("a plan (--expect): attention and projections see other tokens")
        self.calls = calls

    def _head(self) -> None:
        """The product with the vocabulary: the widest of the least frequent products."""
        mine = {key: n for key, n in self.linear.items() if key[0] == self.tokens}
        least = min(mine.values())
        rows, self.hidden, self.vocab = max(
            (key for key, n in mine.items() if n == least), key=lambda key: key[2]
        )
        self.rounds, rest = divmod(least, self.steps)
        layers, uneven = divmod(self.calls, max(least, 1))
        if rest or uneven or not layers or not self.rounds:
            raise NotInferredError(
                "a plan (--expect): blocks and head are not called in whole rounds"
            )
        self.layers = layers
        self.blocks = {
            key[1:]: n / (layers * least)
            for key, n in mine.items()
            if key != (rows, self.hidden, self.vocab)
        }

    def model(self) -> Model:
        """Widths out of the residual stream are q, k, v, gates and up; into it, output and down."""
        out = sum(
            n * columns for (inner, columns), n in self.blocks.items() if inner == self.hidden
        )
        into = sum(
            n * inner for (inner, columns), n in self.blocks.items() if columns == self.hidden
        )
        width = self.heads * self.head_dim
        same = sum(
            n * self.hidden
            for (inner, columns), n in self.blocks.items()
            if inner == columns == self.hidden
        )
        for shared in range(round(same / self.hidden) + 1) if same else (0,):
            # square projections go both ways: so many of them lead out
            found = self._widths(
                out - same + shared * self.hidden, into - shared * self.hidden, width
            )
            if found is not None:
                dense, gated, groups = found
                break
        else:
            raise NotInferredError("a plan (--expect): its widths are not those of a plain block")
        return Model(
            name="the traced model",
            family="transformer",
            source="the trace's shapes",
            as_of="2026",
            hidden=self.hidden,
            vocab=self.vocab,
            blocks=(
                Block(
                    count=self.layers,
                    attention=Attention(heads=self.heads, kv_heads=groups, head_dim=self.head_dim),
                    dense=Dense(width=dense, gated=gated),
                ),
            ),
        )

    def _widths(self, out: float, into: float, width: int) -> tuple[int, bool, int] | None:
        """Feed-forward width, whether it is gated, key and value heads."""
        dense = round(into) - width
        if dense <= 0:
            return None
        for gates in (2, 1):
            keys = (out - width - gates * dense) / (2 * self.head_dim)
            groups = round(keys)
            if groups >= 1 and abs(keys - groups) < 1e-6 and self.heads % groups == 0:
                return dense, gates == 2, groups
        return None

    @property
    def precision(self) -> str:
        types = self.rank.types
        kind = max(types, key=lambda name: types[name])
        found = TYPES.get(kind, "bf16")
        if found == "fp32" and self.rank.precision_hint == "tf32":
            return "tf32"
        return "bf16" if found == "fp16" else found

    def stack(self) -> Stack:
        """Plain PyTorch, with what the trace shows of the stack."""
        compiled = self.rank.signals.compiled >= COMPILED
        base = replace(
            find_stack("lab"),
            kernels="compiled" if compiled else "eager",
            attention="latest" if self.fused else "unfused",
        )
        if self.precision in ("fp32", "tf32"):
            return replace(base, param_bytes=4.0, grad_bytes=4.0, state_bytes=8.0)
        return base


def _parsed(row: ShapeRow) -> list[Any]:
    try:
        shapes = json.loads(row.shape)
    except ValueError:
        raise NotInferredError(f"a plan (--expect): shapes of {row.name} are too long") from None
    return list(shapes)


def _operands(row: ShapeRow, first: int) -> tuple[list[int], list[int]]:
    shapes = _parsed(row)
    return shapes[first], shapes[first + 1]
