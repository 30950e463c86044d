"""Process groups and operations of a flight recorder, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["scheduled", "started", "completed"]
Site = tuple[object, ...]
_SYNCHRONISING = (
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "all_to_all",
    "alltoall",
    "barrier",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """A process group, identified by its name and its ranks."""

    name: str
    ranks: tuple[int, ...]
    """Ranks in the group's own order, by which messages name their ends; () if unknown."""
    desc: str = ""

    def __hash__(self) -> int:
        """Hash without the ranks, of which there may be thousands."""
        return hash((self.name, len(self.ranks)))

    @property
    def label(self) -> str:
        return f"{self.desc} ({self.name})" if self.desc and self.desc != self.name else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    record: int
    """Counter on its rank: the order in which the program entered operations."""
    group: ProcessGroup
    sequence: int
    """Number among the collectives, or the messages, of its group."""
    name: str
    state: State
    timed_out: bool = False
    source: int | None = None
    """The global rank that sends a message; None for a collective."""
    target: int | None = None
    sizes: tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]] = ((), ())
    """Shapes of inputs and of outputs."""
    dtypes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    created: float | None = None
    """Unix seconds."""
    completed: float | None = None
    timeout: float | None = None
    """Seconds."""
    pg_id: int | None = None
    frames: tuple[str, ...] = ()
    """Stack, innermost frame first."""
    gloo: bool = False
    messages: int = 0
    """Messages of its group that the rank had begun before it: gloo counts them and records none."""

    @property
    def is_message(self) -> bool:
        return self.source is not None

    @property
    def synchronises(self) -> bool:
        """Whether no rank completes before all enter; a broadcast's root may, and a gather's leaves."""
        return not self.is_message and any(word in self.name for word in _SYNCHRONISING)

    @property
    def site(self) -> Site:
        """Where the program calls it: by the stack, else by the group and the shapes."""
        return (self.name, self.frames) if self.frames else (self.name, self.group.name, self.sizes)

    @property
    def done(self) -> bool:
        return self.state == "completed"

    @property
    def label(self) -> str:
        if self.is_message:
            return f"{self.name} {self.source}->{self.target} in {self.group.label}"
        return f"{self.name} number {self.sequence} of {self.group.label}"
