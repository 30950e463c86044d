"""Traffic of a step, group by group: `traffic`.

Ranks are numbered as frameworks do: tensor-parallel ranks next to each other, then context, data,
pipeline; expert-parallel ranks count through the first three. So every parallel group is `ranks` ranks
that lie `stride` apart, and a few numbers describe the whole communication graph. Sizes of
messages are those of `prediction.communication`; tests hold the sums against `prediction.step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from computeflow.cluster import Cluster
from computeflow.cluster.wiring import Ints
from computeflow.errors import InputError
from computeflow.prediction import Stack, communication, find_stack, weights
from computeflow.prediction.blocks import BlockArrays, local_experts
from computeflow.prediction.stack import DEFAULT
from computeflow.prediction.step_inputs import StepInputs, of_job
from computeflow.workload import Job, Layout, Layouts, check_layout

Floats = NDArray[np.float64]
Pattern = Literal["ring", "chain", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Traffic of all groups of one kind in a step."""

    account: str
    """Account of the ledger where its time is booked."""
    ranks: int
    """Ranks in one group."""
    stride: int
    """Distance from one rank of a group to the next."""
    pattern: Pattern
    """ring: to the next rank; chain: to the next rank and back; all: to all others alike."""
    bytes: float
    """Bytes that a device sends to the next rank of a ring, to each neighbour in a chain, or to all
    others together."""
    closing: float = 0.0
    """Bytes from a chain's last rank to the first, and back (interleaved stages)."""
    copies: float = 0.0
    """Copies of a token, where a dispatcher sends only one of them to each NVLink domain; else 0."""

    def __post_init__(self) -> None:
        if self.ranks < 2 or self.stride < 1 or not min(self.bytes, self.closing, self.copies) >= 0:
            raise InputError(f"a flow of {self.bytes} bytes in groups of {self.ranks}")

    def pairs(self, gpus: int) -> Iterator[tuple[Ints, Ints, float]]:
        """Sender, receiver and bytes of every message, many at a time."""
        rank = np.arange(gpus)
        position = rank // self.stride % self.ranks
        if self.pattern == "all":
            for offset in range(1, self.ranks):
                yield rank, self._shifted(rank, position, offset), self.bytes / (self.ranks - 1)
        elif self.pattern == "ring":
            yield rank, self._shifted(rank, position, 1), self.bytes
        else:
            inner = rank[position < self.ranks - 1]
            last = rank[position == self.ranks - 1]
            for low, high, size in (
                (inner, inner + self.stride, self.bytes),
                (last, last - (self.ranks - 1) * self.stride, self.closing),
            ):
                if size > 0:
                    yield low, high, size
                    yield high, low, size

    def _shifted(self, rank: Ints, position: Ints, offset: int) -> Ints:
        return rank + ((position + offset) % self.ranks - position) * self.stride

    def groups(self, gpus: int) -> Ints:
        """The group's number of every rank: its lowest rank."""
        rank = np.arange(gpus)
        return rank - rank // self.stride % self.ranks * self.stride


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    gpus: int
    flows: tuple[Flow, ...]

    def __post_init__(self) -> None:
        if odd := [f for f in self.flows if self.gpus % (f.ranks * f.stride)]:
            raise InputError(
                f"groups of {odd[0].ranks} x {odd[0].stride} do not divide {self.gpus} ranks"
            )

    @property
    def bytes_by_account(self) -> dict[str, float]:
        """Bytes that one device sends in a step; fewer at the ends of a chain."""
        total: dict[str, float] = {}
        for flow in self.flows:
            total[flow.account] = total.get(flow.account, 0.0) + flow.bytes
        return total


def traffic(job: Job, cluster: Cluster, layout: Layout, stack: Stack | None = None) -> Traffic:
    """Traffic of one step. Gradients are those of the fullest stage, blocks those of the mean one."""
    check_layout(job, layout)
    b = of_job(job, cluster, Layouts.of([layout]), stack or find_stack(DEFAULT))
    flows = [*_blocks(b), *_pipeline(b), *_gradients(b)]
    return Traffic(
        gpus=layout.gpus, flows=tuple(flow for flow in flows if flow is not None and flow.bytes > 0)
    )


def _flow(
    account: str,
    ranks: Floats,
    stride: Floats,
    size: Floats,
    pattern: Pattern = "ring",
    **more: float,
) -> Flow | None:
    """Flow from arrays of one row; None where the group is a single rank."""
    if ranks[0] < 2:
        return None
    return Flow(
        account=account,
        ranks=round(float(ranks[0])),
        stride=round(float(stride[0])),
        pattern=pattern,
        bytes=float(size[0]),
        **more,
    )


def _blocks(b: StepInputs) -> Iterator[Flow | None]:
    """Tensor, context and expert parallelism: forward, backward and what is computed again."""
    ones = np.ones(1)
    passes = 2 + b.recompute_full
    tp = (passes + 0.5 * b.sequence_parallel) * _summed(
        b, lambda b, k: communication.tensor_collectives(k) * communication.tensor_bytes(b)
    )
    yield _flow("comm.tp", b.tp, ones, tp)
    exchange = b.context_exchange[0] > 0
    if exchange:
        cp = 3 * _summed(b, communication.exchange_bytes) * (b.cp - 1) / b.cp
    else:
        cp = 3 * _summed(b, communication.ring_bytes)
    yield _flow("comm.cp", b.cp, b.tp, cp, "all" if exchange else "ring")
    sent = 2 * passes * _summed(b, communication.routed_bytes)
    copies = max((float(k.top_k[0]) for k in b.present), default=0.0) * float(b.dedup[0])
    yield _flow("comm.ep", b.ep, b.etp, sent * (b.ep - 1) / b.ep, "all", copies=copies)
    yield _flow("comm.ep", b.etp, ones, sent * (b.etp - 1))


def _summed(b: StepInputs, size: Callable[[StepInputs, BlockArrays], Floats]) -> Floats:
    """Sum over the blocks of a stage and the micro-batches of a step."""
    blocks = sum((k.count * size(b, k) for k in b.present), start=np.zeros(1))
    return b.micro_batches * blocks / b.pp


def _pipeline(b: StepInputs) -> Iterator[Flow | None]:
    """Activations to the next stage, gradients back: every micro-batch, once per chunk of a stage."""
    once = b.micro_batches * communication.stage_bytes(b)
    closing = float((once * (b.vp - 1))[0])
    yield _flow("comm.pp", b.pp, b.tp * b.cp * b.dp, b.vp * once, "chain", closing=closing)


def _gradients(b: StepInputs) -> Iterator[Flow | None]:
    """Gradients reduced and weights gathered: once a step, or block by block where fully sharded."""
    whole = (b.sharded[0] == 0) or (b.pp[0] > 1)
    experts = b.ep * b.etp
    copies = weights.expert_replicas(b)
    if not whole:
        # gathered before both passes, gradients scattered after the second
        each = 2 * weights.gathered_bytes(b) + b.grad_bytes * b.trained_share
        ends = 2 * weights.gathered_bytes(b) + b.grad_bytes * (1 - b.frozen)
        n = weights.shards(b)
        size = each * _summed(b, weights.kind_parameters)
        size = size + ends * b.micro_batches * weights.end_parameters(b)
        yield _flow("comm.dp", n, b.tp, size * (n - 1) / n)
        held = _summed(b, lambda b, k: local_experts(k, b.tp, b.ep, b.etp).weights)
        yield _flow("comm.dp", copies, experts, each * held * (copies - 1) / copies)
    n = b.dp * b.cp if whole else b.replicas
    shards = np.ones(1) if whole else weights.shards(b)
    back = b.param_bytes if whole and b.split_optimizer[0] > 0 else b.grad_bytes
    times = b.micro_batches if b.zero2[0] > 0 else 1.0
    each = (times * b.grad_bytes + back) * b.trained_share
    yield _flow(
        "comm.dp", n, b.tp * shards, each * weights.stage_parameters(b) / shards * (n - 1) / n
    )
    if whole:
        held = b.layers / b.pp * weights.expert_parameters(b)
        yield _flow("comm.dp", copies, experts, each * held * (copies - 1) / copies)
