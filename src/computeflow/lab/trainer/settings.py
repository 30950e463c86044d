"""Every knob of the reference trainer, as one value; its command line is made from it."""

from __future__ import annotations

import argparse
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from computeflow.errors import InputError, UnknownNameError

FAULTS = {
    "slow-rank": "seconds of extra device work in each step",
    "slow-loader": "seconds that the data source sleeps for each sample",
    "pageable-copy": "megabytes copied from pageable memory in each micro-batch",
    "host-sync": "blocks after whose forward pass the host waits for the device",
    "gc-storm": "thousands of cyclic objects made and collected in each step",
    "checkpoint-stall": "seconds a checkpoint blocks beyond its writing",
    "unequal-lengths": "spread of sequence lengths: 0.5 is half to full length",
    "hang": "the rank stops for good (severity is not used)",
    "die": "the rank's process ends at once (severity is not used)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something to go wrong on purpose: `slow-loader:0.02`, `hang:1:rank=1:step=5`."""

    kind: str
    severity: float
    rank: int | None = None
    step: int = 0
    """From this step on."""

    @classmethod
    def parse(cls, text: str) -> Fault:
        kind, *rest = text.split(":")
        if kind not in FAULTS:
            raise UnknownNameError("fault", kind, FAULTS)
        try:
            severity = float(rest[0]) if rest else 1.0
            places = {name: int(value) for name, value in (part.split("=") for part in rest[1:])}
        except ValueError:
            raise InputError(f"fault {text!r}: write kind:severity[:rank=R][:step=S]") from None
        if unknown := set(places) - {"rank", "step"}:
            raise UnknownNameError("part of a fault", unknown.pop(), ["rank", "step"])
        return cls(kind=kind, severity=severity, **places)

    def hits(self, rank: int, step: int) -> bool:
        return self.rank in (None, rank) and step >= self.step


def _knob(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    layers: int = _knob(4, "transformer blocks")
    hidden: int = _knob(256, "width of the residual stream")
    heads: int = _knob(8, "attention heads")
    kv_heads: int = _knob(0, "key/value heads; 0: as many as heads")
    ffn: int = _knob(0, "width of the gated feed-forward part; 0: 8/3 of hidden, in 128s")
    vocab: int = _knob(4096, "rows of the embedding and of the head")
    seq_len: int = _knob(256, "tokens in a sequence")
    micro_batch: int = _knob(2, "sequences in a micro-batch")
    accumulation: int = _knob(1, "micro-batches in a step")
    steps: int = _knob(10, "steps to run")
    warmup: int = _knob(3, "first steps, kept out of the summary")
    precision: Literal["fp32", "tf32", "bf16", "amp", "fp8"] = _knob(
        "bf16",
        "bf16: everything in bf16; amp: fp32 weights under autocast; fp8: bf16 with fp8 "
        "linears, scaled by tensor",
    )
    attention: Literal["fused", "unfused"] = _knob("fused", "one kernel, or matmul-softmax-matmul")
    compile: Literal["off", "block", "whole"] = _knob(
        "off", "torch.compile: nothing, each block, the whole model"
    )
    optimizer: Literal["fused", "foreach", "for-loop"] = _knob("fused", "AdamW's implementation")
    recompute: Literal["none", "selective", "full"] = _knob(
        "none", "selective: keep matmul and attention outputs; full: keep block inputs only"
    )
    sharding: Literal["none", "ddp", "fsdp"] = _knob("none", "what the ranks share")
    clip: float = _knob(1.0, "gradient norm; 0: no clipping")
    data: str = _knob("synthetic", "synthetic, or a file of uint16/uint32 tokens")
    workers: int = _knob(0, "loader processes")
    pin: bool = _knob(True, "loader batches in pinned memory")
    checkpoint_every: int = _knob(0, "steps between checkpoints; 0: none")
    checkpoint_folder: str = _knob("", "where checkpoints go")
    profile_steps: int = _knob(0, "steps to trace, right after the warm-up; 0: none")
    trace_folder: str = _knob("", "where the Kineto traces go, one per rank")
    hang_seconds: float = _knob(
        0.0, "dump the flight recorder and stop when a step takes longer; 0: wait for ever"
    )
    flight_folder: str = _knob("", "where flight-recorder dumps go")
    device: Literal["auto", "cpu", "cuda"] = _knob("auto", "auto: cuda if there is one")
    seed: int = _knob(0, "of weights and data")
    output: str = _knob("", "where the JSON summary goes")
    quiet: bool = _knob(False, "no line per step")
    lengths_of: int = _knob(-1, "draw unequal lengths as this rank does; -1: every rank its own")
    fault: tuple[str, ...] = _knob((), "plant a fault: kind:severity[:rank=R][:step=S]; repeatable")

    def __post_init__(self) -> None:
        if self.hidden % self.heads or self.heads % (self.kv_heads or self.heads):
            raise InputError(
                f"{self.hidden} hidden, {self.heads} heads, {self.kv_heads} key/value heads do not "
                "divide"
            )
        if self.precision == "fp8" and (self.hidden % 16 or self.ffn_width % 16):
            raise InputError("fp8 linears need widths in multiples of 16")
        if min(self.layers, self.steps, self.seq_len, self.micro_batch, self.accumulation) < 1:
            raise InputError("layers, steps, seq_len, micro_batch and accumulation start at 1")
        if self.warmup >= self.steps:
            raise InputError(
                f"{self.warmup} warm-up steps leave nothing of {self.steps} to measure"
            )
        _ = self.faults

    @property
    def ffn_width(self) -> int:
        return self.ffn or -(-8 * self.hidden // 3 // 128) * 128

    @property
    def groups(self) -> int:
        return self.kv_heads or self.heads

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def faults(self) -> tuple[Fault, ...]:
        return tuple(Fault.parse(text) for text in self.fault)

    @property
    def parameters(self) -> int:
        return (
            self.vocab * self.hidden
            + self.hidden
            + self.matmul_parameters
            + (2 * self.layers * self.hidden)
        )

    @property
    def matmul_parameters(self) -> int:
        """Weights that a token is multiplied with: all but the embedding and the norms."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.groups)
        return self.layers * (attention + 3 * self.hidden * self.ffn_width) + (
            self.vocab * self.hidden
        )

    @property
    def flops_per_token(self) -> float:
        """Model FLOPs of forward and backward: 6 per matmul weight, plus causal attention at half.

        Scores and their product with the values cost 2 x 2 x seq x hidden forward without the mask
        (PaLM, arXiv:2204.02311, appendix B), half of it with; backward twice that.
        """
        return 6.0 * self.matmul_parameters + 6.0 * self.layers * self.seq_len * self.hidden


def parse_settings(arguments: Sequence[str] | None = None) -> Settings:
    """The command line: one flag per knob, `--seq-len 4096`; a bool takes `--pin` or `--no-pin`."""
    parser = argparse.ArgumentParser(
        prog="python -m computeflow.lab.trainer",
        description="A reference trainer whose every knob is known.",
    )
    hints = typing.get_type_hints(Settings)
    for knob in fields(Settings):
        flag = "--" + knob.name.replace("_", "-")
        kind, doc = hints[knob.name], f"{knob.metadata['doc']} [{knob.default}]"
        if kind is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag, action=action, default=knob.default, help=doc)
        elif isinstance(kind, types.GenericAlias):
            parser.add_argument(flag, action="append", default=[], help=doc)
        elif choices := typing.get_args(kind):
            parser.add_argument(flag, choices=choices, default=knob.default, help=doc)
        else:
            parser.add_argument(flag, type=kind, default=knob.default, help=doc)
    found = vars(parser.parse_args(arguments))
    found["fault"] = tuple(found["fault"])
    return Settings(**found)
