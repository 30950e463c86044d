"""The layouts that a framework can express, as a space: no advice is given that it cannot run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from computeflow.errors import InputError
from computeflow.planning.exports.config_formats import ConfigReading, Setup
from computeflow.planning.exports.frameworks import FRAMEWORKS
from computeflow.planning.review import PROVEN
from computeflow.planning.space import Space, space_of
from computeflow.prediction.stack import Stack
from computeflow.workload import Job, Layout
from computeflow.workload.layout import CHOICES


def allowed_shardings(framework: str) -> dict[str, tuple[str, ...]]:
    """The names that a framework has for sharding: DeepSpeed's zero3 is no FSDP, nor the reverse."""
    choices = FRAMEWORKS[framework].choices
    return {"sharding": choices["sharding"]} if "sharding" in choices else {}


def switchable(reading: ConfigReading) -> dict[str, Any]:
    """Fields of a stack that the file's release can switch, each at its fastest."""
    known = FRAMEWORKS[reading.format].capabilities
    return {name: known[name][-1] for name in reading.capabilities if name in known}


@dataclass(frozen=True, slots=True)
class FrameworkSpace:
    """Layouts that the framework of a plan's file can run; `setup` says the rest of the plan."""

    framework: str
    setup: Setup
    switchable: Mapping[str, Any] = field(default_factory=dict)

    def space(self, job: Job, layout: Layout) -> Space:
        """The search space; fields that the framework does not know stay as they are."""
        known = FRAMEWORKS[self.framework]
        names = {field.name for field in fields(Layout)} - {"gpus"}
        fixed = {name: getattr(layout, name) for name in names - known.expresses} | PROVEN
        allowed = {
            name: tuple(choice for choice in choices if choice in CHOICES[name])
            for name, choices in known.choices.items()
            if name in CHOICES
        }
        return space_of(job, layout.gpus, fixed, allowed)

    def switches(self, stack: Stack) -> list[tuple[str, Stack]]:
        """Capabilities that a file could still switch on, each with the stack it would make."""
        return [
            (name, replace(stack, **{name: value}))
            for name, value in self.switchable.items()
            if getattr(stack, name) != value
        ]

    def can_express(self, layout: Layout) -> bool:
        try:
            written = FRAMEWORKS[self.framework].write(replace(self.setup, layout=layout))
        except InputError:
            return False
        return not any(
            line.startswith(f"{name} = ") for line in written.left_out for name in _SIZES
        )


_SIZES = ("tp", "pp", "vp", "cp", "ep", "etp", *CHOICES)
