"""`open_directory`: what a page is asked about: a collector's store, or recordings.

Pages ask an `Opening` and do not care which it is; nothing is written to either. An answer is the
library's; None means that such a source does not know it, and the page says what to run instead.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from computeflow.answers.action_lists import ActionsAnswer
from computeflow.answers.audits import AuditAnswer, parse_accelerator
from computeflow.answers.inputs import open_catalog
from computeflow.answers.live_tops import TopAnswer
from computeflow.answers.run_histories import RunsAnswer
from computeflow.auditing.audit_request import AuditRequest
from computeflow.auditing.run_history import RunRanks
from computeflow.catalog.lookup import find_typed_model
from computeflow.collection.outputs.snapshots import STATE_FILE
from computeflow.errors import InputError, UnknownNameError
from computeflow.web.sources.reading_curves import ReadingCurves
from computeflow.web.sources.step_spans import StepSpans
from computeflow.web.sources.step_table import AttemptColumns

Kind = Literal["recording", "store"]
_NAMED = 8
"""Runs of one name whose ids an error lists."""
Table = Literal["steps", "spans", "leads", "collectives", "readings"]
"""Tables of a store that pictures are made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """What `serve` was told of the job, for the audits that it shows."""

    price: float | None = None
    on: str | None = None
    model: str | None = None
    global_batch: int | None = None
    seq_len: int | None = None
    expect: Path | None = None

    @property
    def audit_words(self) -> dict[str, Any]:
        """What of it was told, as `audit` takes it."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def device(self) -> str | None:
        """`on` without a count of GPUs."""
        return None if self.on is None else self.on.partition(":")[0]

    def request(self) -> AuditRequest:
        """An audit of nothing yet; names that no catalog has, and half a model, are refused."""
        catalog = open_catalog(())
        accelerator, gpus = parse_accelerator(self.on, catalog)
        return AuditRequest(
            paths=(),
            catalog=catalog,
            model=None if self.model is None else find_typed_model(catalog, self.model),
            global_batch=self.global_batch,
            seq_len=self.seq_len,
            accelerator=accelerator,
            gpus=gpus,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """A run as every page lists it; None is not known."""

    id: str
    name: str
    state: str
    silent_since: float | None = None
    """When a run that is not over was last heard of, where that is long ago; None else."""
    gpus: int
    device: str
    started: float | None
    """Unix time."""
    updated: float
    """Unix time of the last sign of it; of a trace, its file's date."""
    step: int
    step_seconds: float | None
    step_seconds_recorded: float | None = None
    """While a profiler recorded it, where `step_seconds` and `mfu` are without one."""
    basis: str = "whole recording"
    """What `step_seconds` and `mfu` are of."""
    tokens_per_second: float | None
    mfu: float | None
    mfu_palm: float | None
    """The MFU by the PaLM convention, which counts attention without its causal mask."""
    peak_precision: str
    """The precision of the dense peak that both are shares of; "" where they are not known."""
    goodput: float | None
    restarts: int
    usd_per_hour: float | None


class StepPictures(Protocol):
    """Step times of a run, made small for a screen."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Numbers of steps in the order of their columns."""

    @property
    def attempts(self) -> tuple[AttemptColumns, ...]:
        """In the order of their columns."""

    @property
    def waits_missing(self) -> str:
        """Why time without waits is not known; empty where it is."""

    def picture(self, which: str) -> dict[str, Any]:
        """A heat map of rank and step: the longest step of each cell."""

    def last_step(self, attempt: AttemptColumns) -> int:
        """The last step of an attempt that can be drawn: of a run that goes on, of all its ranks."""

    def slowest_step(self, attempt: AttemptColumns, judged: int | None) -> int:
        """The longest step of an attempt after its first; of its last ones, where so many are told."""

    def curve(self) -> dict[str, Any]:
        """The median over ranks and the slowest rank, step by step."""


class Opening(Protocol):
    @property
    def kind(self) -> Kind: ...

    @property
    def path(self) -> Path: ...

    def revision(self) -> Hashable:
        """A value that differs once something has changed."""

    def runs(self) -> list[RunLine]:
        """The latest first."""

    def runs_answer(self) -> RunsAnswer | TopAnswer | None:
        """The library's list of runs; None where the source is not one of runs."""

    def audit(self, run: str) -> AuditAnswer | None:
        """The audit of one run; None where its recording is not here."""

    def top(self) -> TopAnswer | None:
        """Runs, findings and nodes at this moment; None for recordings."""

    def actions(self) -> ActionsAnswer | None:
        """Decisions of a controller; None for recordings."""

    def steps(self, run: str) -> StepPictures | None:
        """Step times of all ranks; None where no step is known."""

    def spans(self, run: str, step: int, most: int, attempt: int | None = None) -> StepSpans | None:
        """One step along time, of at most so many ranks; None where that is not kept.

        Without an attempt it is that of the last one that has the step.
        """

    def ranks(self, run: str) -> RunRanks | None:
        """On which host each rank of a recorded run was; None where that is not recorded."""

    def readings(self, run: str) -> ReadingCurves | None:
        """Meters of the run's GPUs or ranks over time; None where such a source has none."""

    def left_out(self, run: str | None, *tables: Table) -> list[str]:
        """What could not be read or is not shown: of one run, or of all; and of these tables, when a
        picture was made of them last.
        """


def open_directory(path: Path, options: AuditOptions) -> Opening:
    from computeflow.web.sources.recordings.recorded_runs import RecordingOpening
    from computeflow.web.sources.store.store_runs import StoreOpening

    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder")
    if (path / STATE_FILE).is_file():
        return StoreOpening(path, options)
    return RecordingOpening(path, options)


def find_run(opening: Opening, run: str | None) -> RunLine | None:
    """The run of this id, or the only one of this name; without either, the one that was heard of last.
    None where there is none.
    """
    lines = opening.runs()
    if run is None:
        return lines[0] if lines else None
    found = [line for line in lines if line.id == run] or [
        line for line in lines if line.name == run
    ]
    if not found:
        names = [name for line in lines for name in (line.id, line.name)]
        raise UnknownNameError("run", run, [*dict.fromkeys(names)])
    if len(found) > 1:
        several = ", ".join(line.id for line in found[:_NAMED])
        raise InputError(f"{len(found):,} runs are called {run}: ask for one by its id ({several})")
    return found[0]
