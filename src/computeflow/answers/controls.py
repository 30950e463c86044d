"""`control`: a controller that runs until it is told to stop."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from computeflow import codec
from computeflow.actions.control_limits import read_limits
from computeflow.actions.control_loop import ControlReport, run_controller
from computeflow.actions.controller import ControlOptions, Mode
from computeflow.actions.slurm.slurm_rest import RestReader
from computeflow.actions.slurm.slurm_session import this_user
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import File
from computeflow.errors import InputError
from computeflow.units import format_seconds
from computeflow.views.tables import Table, columns


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ControlAnswer(Answer):
    report: ControlReport

    def _data(self) -> dict[str, Any]:
        return {"schema": "computeflow.control/1", **codec.encode(self.report)}

    @property
    def headline(self) -> str:
        report = self.report
        states = ", ".join(f"{count} {state}" for state, count in sorted(report.actions.items()))
        return (
            f"{report.looks:,} looks in {format_seconds(report.seconds)}; "
            f"actions: {states or 'none'}."
        )

    def tables(self) -> list[Table]:
        report = self.report
        return [
            Table(
                title=f"actions in {report.store}",
                columns=columns("state", "actions"),
                rows=tuple((state, str(n)) for state, n in sorted(report.actions.items())),
            )
        ]


def _ignore(_: str) -> None:
    pass


@checked
def control(
    *,
    store: File,
    engine: Literal["slurm"] = "slurm",
    mode: Mode = "advise",
    limits: File | None = None,
    once: bool = False,
    seconds: float | None = None,
    slurmrestd: str | None = None,
    say: Callable[[str], None] = _ignore,
) -> ControlAnswer:
    """Decide on the jobs of a collector's store, and act as far as `mode` allows.

    `slurmrestd` is its address, by default that of SLURM_REST_URL; without one, Slurm's programs are
    asked. `say` gets each line of what is decided and done.
    """
    if mode == "auto" and limits is None:
        raise InputError(
            "--mode auto needs --limits FILE.toml: it acts within limits or not at all"
        )
    if seconds is not None and seconds <= 0:
        raise InputError(f"--seconds {seconds:g}: more than 0")
    options = ControlOptions(
        mode=mode,
        limits=None if limits is None else read_limits(Path(limits)),
        limits_name="" if limits is None else Path(limits).name,
    )
    report = run_controller(
        Path(store), options, say=say, once=once, seconds=seconds, reader=_rest_reader(slurmrestd)
    )
    return ControlAnswer(report=report)


def _rest_reader(address: str | None) -> RestReader | None:
    address = address or os.environ.get("SLURM_REST_URL", "")
    if not address:
        return None
    return RestReader(address=address, user=this_user(), token=os.environ.get("SLURM_JWT", ""))
