"""What a source says of a run, in one shape for all kinds: `Observed`; a kind of file is a `Source`.

A source knows its files by their content, reads them in bounded memory, and says what is in them: facts
of its own kind, a ledger where it has times enough for one (or why not), and happenings, which are
what sources are joined on. It judges nothing: findings are made in `diagnosis`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from computeflow.catalog import Accelerator, Catalog
from computeflow.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something at a moment, on a node, a rank or a device: the key that sources share."""

    seconds: float | None
    """Unix time; None where the source has no absolute clock."""
    what: str
    """Short and countable: "xid 79", "restart", "throttled: power cap"."""
    node: str = ""
    rank: int | None = None
    gpu: str = ""
    """Index or UUID, as the source writes it."""
    job: str = ""
    detail: str = ""
    fault: bool = False
    """It can stop or slow a job; else it is only worth knowing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    kind: str
    """Of the source: flight-recorder, op-timeline, log, metrics, ..."""
    sources: tuple[str, ...]
    """Files or addresses."""
    facts: Any
    """A dataclass of the kind; JSON has it field for field."""
    ledger: Ledger | None = None
    ledger_reason: str = ""
    """Why there is no ledger."""
    happenings: tuple[Happening, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """FLOPs that the model asks for in one step of all ranks, where no recording states them."""

    flops_per_step: float
    full_flops_per_step: float
    """With attention counted whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What every source may need to know beside its files."""

    catalog: Catalog
    start: float | None = None
    """Unix time; earlier is not asked for."""
    end: float | None = None
    work: ModelWork | None = None
    accelerator: Accelerator | None = None
    """As the user names it, where a source does not."""
    gpus: int | None = None
    """As the user states it, where a source does not."""

    def covers(self, seconds: float) -> bool:
        """Whether a moment lies in the period asked for."""
        return (self.start is None or seconds >= self.start) and (
            self.end is None or seconds <= self.end
        )


class Source(Protocol):
    @property
    def kind(self) -> str: ...

    def recognises(self, path: Path, head: bytes) -> bool:
        """By content; `head` is the beginning of the file, decompressed."""
        ...

    def observe(self, paths: Sequence[Path], asked: Asked) -> list[Observed]:
        """Of all its files in one call: ranks of a hang belong together."""
        ...
