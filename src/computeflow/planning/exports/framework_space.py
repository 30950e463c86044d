"""The layouts that a framework can express, as a space: no advice is given that it cannot run."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from computeflow.errors import InputError
from computeflow.planning.explain import changed_fields
from computeflow.planning.exports.config_formats import Setup
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


def switched_on(framework: str, stack: Stack) -> Stack:
    """The stack with everything that a file of the framework can switch at its fastest."""
    known = FRAMEWORKS[framework].capabilities
    return replace(stack, **{name: values[-1] for name, values in known.items()})


@dataclass(frozen=True, slots=True)
class FrameworkSpace:
    """Layouts that the framework of a plan's file can run; `setup` says the rest of the plan."""

    framework: str
    setup: Setup

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
        faster = switched_on(self.framework, stack)
        return [
            (name, replace(stack, **{name: after}))
            for name, (_, after) in changed_fields(stack, faster).items()
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
