"""The report of a source on a run, in one shape for all kinds: `SourceReport`; a kind of file is a
`Source`.

A source recognises its files by their content, reads them in bounded memory, and reports what is in
them: facts of its own kind, a ledger where it has enough times for one (or why not), and events, by
which sources are correlated. It judges nothing: findings are made in `diagnosis`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from computeflow.catalog import Accelerator, Catalog
from computeflow.engines import Engine
from computeflow.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event at a moment, on a node, a rank or a device: the key by which sources are correlated."""

    seconds: float | None
    """Unix time; None where the source has no absolute clock."""
    what: str
    """A short description that can be counted: "xid 79", "restart", "throttled: power cap"."""
    node: str = ""
    rank: int | None = None
    gpu: str = ""
    """Index or UUID, as the source writes it."""
    job: str = ""
    detail: str = ""
    fault: bool = False
    """Whether it can stop or slow a job; other events are only context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    kind: str
    """Kind of source: flight-recorder, op-timeline, log, metrics, ..."""
    sources: tuple[str, ...]
    """Files or addresses that were read."""
    facts: Any
    """A dataclass that depends on the kind; JSON has it field for field."""
    ledger: Ledger | None = None
    ledger_reason: str = ""
    """Why there is no ledger."""
    happenings: tuple[Event, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    columns: Any = None
    """What sources are joined by, too large for JSON: the attempts of an accounting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """FLOPs that the model needs in one step of all ranks, where no recording states them."""

    flops_per_step: float
    full_flops_per_step: float
    """FLOPs with attention counted in full, not causal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRequest:
    """The request to a source beside its files: catalog, period, and what the user states."""

    catalog: Catalog
    start: float | None = None
    """Start of the requested period, Unix time."""
    end: float | None = None
    work: ModelWork | None = None
    accelerator: Accelerator | None = None
    """The device as the user names it, where a source does not."""
    gpus: int | None = None
    """The number of GPUs as the user states it, where a source does not."""
    engine: Engine = "local"
    """Where recorded runs are read, each by itself."""

    def covers(self, seconds: float) -> bool:
        """Whether a moment lies in the requested period."""
        return (self.start is None or seconds >= self.start) and (
            self.end is None or seconds <= self.end
        )


class Source(Protocol):
    @property
    def kind(self) -> str: ...

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether a file is of this kind, by the beginning of its decompressed content."""
        ...

    def observe(self, paths: Sequence[Path], request: SourceRequest) -> list[SourceReport]:
        """Read all files of this kind in one call: ranks of a hang belong together."""
        ...
