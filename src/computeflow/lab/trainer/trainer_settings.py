"""Settings of the reference trainer, as one value; its command line is generated from it."""

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
    "hang": "the rank hangs (severity is not used)",
    "die": "the rank's process ends at once (severity is not used)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """A fault to inject: `slow-loader:0.02`, `hang:1:rank=1:step=5`."""

    kind: str
    severity: float
    rank: int | None = None
    step: int = 0
    """First step with the fault."""

    @classmethod
    def parse(cls, text: str) -> InjectedFault:
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


def _setting(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    layers: int = _setting(4, "transformer blocks")
    hidden: int = _setting(256, "width of the residual stream")
    heads: int = _setting(8, "attention heads")
    kv_heads: int = _setting(0, "key/value heads; 0: as many as heads")
    ffn: int = _setting(0, "width of the gated feed-forward part; 0: 8/3 of hidden, in 128s")
    vocab: int = _setting(4096, "rows of the embedding and of the head")
    seq_len: int = _setting(256, "tokens in a sequence")
    micro_batch: int = _setting(2, "sequences in a micro-batch")
    accumulation: int = _setting(1, "micro-batches in a step")
    steps: int = _setting(10, "steps to run")
    warmup: int = _setting(3, "first steps, kept out of the summary")
    precision: Literal["fp32", "tf32", "bf16", "amp", "fp8"] = _setting(
        "bf16",
        "bf16: everything in bf16; amp: fp32 weights under autocast; fp8: bf16 with fp8 "
        "linears, scaled by tensor",
    )
    attention: Literal["fused", "unfused"] = _setting(
        "fused", "one kernel, or matmul-softmax-matmul"
    )
    compile: Literal["off", "block", "whole"] = _setting(
        "off", "torch.compile: nothing, each block, the whole model"
    )
    optimizer: Literal["fused", "foreach", "for-loop"] = _setting("fused", "AdamW's implementation")
    recompute: Literal["none", "selective", "full"] = _setting(
        "none", "selective: keep matmul and attention outputs; full: keep block inputs only"
    )
    sharding: Literal["none", "ddp", "fsdp"] = _setting(
        "none", "how ranks share the model: replicated (ddp) or sharded (fsdp)"
    )
    clip: float = _setting(1.0, "largest gradient norm; 0: no clipping")
    data: str = _setting("synthetic", "synthetic, or a file of uint16/uint32 tokens")
    workers: int = _setting(0, "loader processes")
    pin: bool = _setting(True, "loader batches in pinned memory")
    checkpoint_every: int = _setting(0, "steps between checkpoints; 0: none")
    checkpoint_folder: str = _setting("", "folder of checkpoints")
    profile_steps: int = _setting(0, "steps to trace, right after the warm-up; 0: none")
    trace_folder: str = _setting("", "folder of the Kineto traces, one per rank")
    hang_seconds: float = _setting(
        0.0, "dump the flight recorder and stop when a step takes longer; 0: no limit"
    )
    flight_folder: str = _setting("", "folder of flight-recorder dumps")
    device: Literal["auto", "cpu", "cuda"] = _setting("auto", "auto: cuda if there is one")
    seed: int = _setting(0, "random seed of weights and data")
    output: str = _setting("", "file of the JSON summary")
    quiet: bool = _setting(False, "no line per step")
    lengths_of: int = _setting(
        -1, "rank whose random sequence lengths all ranks use; -1: each its own"
    )
    fault: tuple[str, ...] = _setting(
        (), "inject a fault: kind:severity[:rank=R][:step=S]; repeatable"
    )

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
    def faults(self) -> tuple[InjectedFault, ...]:
        return tuple(InjectedFault.parse(text) for text in self.fault)

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
        """Weights in matmuls: all but the embedding and the norms."""
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


def parse_settings(arguments: Sequence[str] | None = None) -> TrainerSettings:
    """Settings from the command line: one flag per setting, `--seq-len 4096`; a bool takes `--pin`
    or `--no-pin`.
    """
    parser = argparse.ArgumentParser(
        prog="python -m computeflow.lab.trainer",
        description="A reference trainer with an option for every setting.",
    )
    hints = typing.get_type_hints(TrainerSettings)
    for setting in fields(TrainerSettings):
        flag = "--" + setting.name.replace("_", "-")
        kind, doc = hints[setting.name], f"{setting.metadata['doc']} [{setting.default}]"
        if kind is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag, action=action, default=setting.default, help=doc)
        elif isinstance(kind, types.GenericAlias):
            parser.add_argument(flag, action="append", default=[], help=doc)
        elif choices := typing.get_args(kind):
            parser.add_argument(flag, choices=choices, default=setting.default, help=doc)
        else:
            parser.add_argument(flag, type=kind, default=setting.default, help=doc)
    values = vars(parser.parse_args(arguments))
    values["fault"] = tuple(values["fault"])
    return TrainerSettings(**values)
