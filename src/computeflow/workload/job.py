"""`Job`: what is trained, on how much, in which precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from computeflow.catalog.models import Model
from computeflow.errors import InputError, UnknownNameError

Training = Literal["full", "lora", "qlora"]
Targets = Literal["all", "attention"]
TRAININGS: tuple[str, ...] = get_args(Training)
MAX_SIZE = 10**9
"""Limit of every size of a job or layout: far above what exists, far below what overflows."""
PRECISIONS = (
    "fp32", "tf32", "fp16", "bf16", "fp8", "fp8-rowwise", "fp8-block", "mxfp8", "nvfp4", "int8",
)  # fmt: skip
OPTIMIZERS = ("adamw", "adam8bit", "muon", "sgd")
_CHOICES = {
    "training": TRAININGS,
    "precision": PRECISIONS,
    "optimizer": OPTIMIZERS,
    "lora_targets": get_args(Targets),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    model: Model
    global_batch: int
    """Sequences in a step."""
    seq_len: int
    precision: str = "bf16"
    optimizer: str = "adamw"
    bytes_per_token: float = 4.0
    """Bytes read from storage; 4 is one token number, images and sound are far more."""
    training: Training = "full"
    """lora: frozen bf16 weights with low-rank updates beside them; qlora: 4-bit weights."""
    lora_rank: int = 16
    lora_targets: Targets = "all"
    """Matrices with such updates: those of every layer, or of its attention alone."""
    loss_chunks: int = 1
    """Parts in which logits are made and dropped again; long sequences need it."""
    expert_spread: float = 0.0
    """Deviation of single experts' load, as a fraction of the mean load; 0: balanced by force."""
    multi_token: bool = False
    """The model's multi-token-prediction modules are trained too."""
    checkpoint_steps: int | None = None
    """Steps between two checkpoints; none are written where it is not given."""
    tokens: float | None = None
    """Tokens to train on, where a whole run is requested."""

    def __post_init__(self) -> None:
        if not all(1 <= size <= MAX_SIZE for size in (self.global_batch, self.seq_len)):
            raise InputError(f"global_batch and seq_len lie between 1 and {MAX_SIZE:,}")
        if not 0 <= self.bytes_per_token < float("inf"):
            raise InputError(f"bytes_per_token = {self.bytes_per_token}: zero or more")
        for field, names in _CHOICES.items():
            if getattr(self, field) not in names:
                raise UnknownNameError(field, getattr(self, field), names)
        if not 1 <= self.loss_chunks <= MAX_SIZE:
            raise InputError(f"loss_chunks = {self.loss_chunks}: one or more")
        if self.checkpoint_steps is not None and self.checkpoint_steps < 1:
            raise InputError(f"checkpoint_steps = {self.checkpoint_steps}: one step or more")
        self._check_model()

    def _check_model(self) -> None:
        """Check what depends on the model."""
        model = self.model
        if not 1 <= self.lora_rank <= model.hidden:
            raise InputError(f"lora_rank = {self.lora_rank}: from 1 to the width {model.hidden}")
        if not 0 <= self.expert_spread <= 100:
            raise InputError(f"expert_spread = {self.expert_spread}: between 0 and 100")
        if self.expert_spread and not any(block.experts for block in model.blocks):
            raise InputError(f"expert_spread = {self.expert_spread}: {model.name} has no experts")
        if self.multi_token and not model.prediction_blocks:
            raise InputError(f"{model.name} has no multi-token-prediction module")

    @property
    def step_tokens(self) -> int:
        return self.global_batch * self.seq_len
