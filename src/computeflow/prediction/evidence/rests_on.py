"""How many measured runs stand behind a prediction, and how far from it they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import compress
from typing import Any

from computeflow.prediction.evidence.seen_runs import SeenRun, Traits, seen_runs
from computeflow.units import format_count

CLASSES = ("together", "apart", "one seen", "none seen")
"""Device and stack seen together; both, but never together; one of them; neither."""
_NEAREST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    device: str
    stack: str
    same_device_and_stack: int
    same_device: int
    same_stack: int
    nearest: tuple[str, ...]
    """Rows of the packaged tables that are most alike."""
    distance: str
    """One of `CLASSES`."""
    largest_gpus: int
    """GPUs of the largest run of device and stack, or of the device where there is none of both; 0
    without a run of the device."""

    @property
    def proven(self) -> bool:
        """Whether any run of the device was measured."""
        return self.same_device > 0

    def to_dict(self) -> dict[str, Any]:
        counts = ("same_device_and_stack", "same_device", "same_stack", "largest_gpus")
        return {
            **{name: getattr(self, name) for name in counts},
            "nearest": list(self.nearest),
            "class": self.distance,
        }

    @property
    def line(self) -> str:
        """One line for people."""
        stack, device = self.stack, self.device
        if self.distance == "together":
            return f"rests on {_runs(self.same_device_and_stack)} of {stack} on {device}"
        if self.distance == "apart":
            return (
                f"no run of {stack} on {device} is known: rests on {_runs(self.same_device)} of "
                f"the device with other stacks, and {_runs(self.same_stack)} of the stack on others"
            )
        if self.same_device:
            return f"no run of {stack} is known: rests on {_runs(self.same_device)} of {device}"
        if self.same_stack:
            return f"no run of {device} is known: rests on {_runs(self.same_stack)} of {stack}"
        return f"no run of {device} or of {stack} is known: range from others like them"

    def line_at(self, gpus: int) -> str:
        """The line, with a caution where `gpus` are more than any of these runs had."""
        if not 0 < self.largest_gpus < gpus:
            return self.line
        largest = format_count(self.largest_gpus, "device")
        return f"{self.line}. Caution: the largest of them had {largest}, this run has {gpus:,}"


def _runs(count: int) -> str:
    return f"{count:,} measured run{'' if count == 1 else 's'}"


def evidence_for(traits: Traits, runs: Sequence[SeenRun]) -> RunEvidence:
    device = [run.traits.device == traits.device for run in runs]
    stack = [run.traits.stack == traits.stack for run in runs]
    together = [d and s for d, s in zip(device, stack, strict=True)]
    both = sum(together)
    seen = (any(device), any(stack))
    distance = CLASSES[0] if both else CLASSES[1 + sum(not found for found in seen)]
    return RunEvidence(
        device=traits.device,
        stack=traits.stack,
        same_device_and_stack=both,
        same_device=sum(device),
        same_stack=sum(stack),
        nearest=tuple(run.row_id for run in _most_alike(traits, runs)[:_NEAREST]),
        distance=distance,
        largest_gpus=max((r.gpus for r in compress(runs, together if both else device)), default=0),
    )


@cache
def packaged_evidence(traits: Traits) -> RunEvidence:
    """The packaged runs behind a kind of run; counted once for each kind."""
    return evidence_for(traits, seen_runs())


def _most_alike(traits: Traits, runs: Sequence[SeenRun]) -> list[SeenRun]:
    return sorted(runs, key=lambda run: -_likeness(traits, run.traits))


def _likeness(one: Traits, other: Traits) -> int:
    """Traits in common, the telling ones counted more."""
    weights = {"stack": 4, "device": 4, "family": 2, "generation": 2, "kind": 2, "young": 1}
    return sum(
        weight for name, weight in weights.items() if getattr(one, name) == getattr(other, name)
    )
