"""Baselines: a file per job name, to compare its next recording with."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from computeflow import codec
from computeflow.auditing.recordings import steps_done
from computeflow.errors import InputError
from computeflow.files.parsing import parse_json
from computeflow.files.reading import read_text
from computeflow.files.writing import write_file
from computeflow.ledger import Gap, Ledger, gaps, ledger_from_data, ledger_to_data
from computeflow.telemetry.traces.job_ledgers import TracedJob

_NAME = re.compile(r"[\w.-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    ledger: Ledger
    steps: int
    """Number of steps, summed over ranks."""


def baseline_path(name: str) -> Path:
    """The baseline file of a job, in the user's state folder."""
    if not _NAME.fullmatch(name):
        raise InputError(f"--baseline {name}: letters, digits, dots and dashes, at most 100")
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "computeflow" / "baselines" / f"{name}.json"


def read_baseline(name: str) -> Baseline | None:
    path = baseline_path(name)
    if not path.exists():
        return None
    data = parse_json(read_text(path), str(path))
    if not isinstance(data, dict) or not isinstance(data.get("steps"), int) or data["steps"] < 1:
        raise InputError(f"{path}: no baseline of this program; keep one anew with --keep")
    return Baseline(ledger=ledger_from_data(data.get("ledger"), str(path)), steps=data["steps"])


def compare_baseline(traces: TracedJob, kept: Baseline) -> tuple[list[Gap], str]:
    """Gaps line by line, and what is equal in the comparison."""
    ledger = traces.job.ledger
    if ledger.mfu is not None and kept.ledger.mfu is not None:
        return gaps(ledger, kept.ledger), "equal model FLOPs"
    ratio = steps_done(traces) / kept.steps
    return gaps(ledger, kept.ledger, work_ratio=ratio), "equal steps"


def keep_baseline(name: str, traces: TracedJob) -> None:
    path = baseline_path(name)
    data = {"ledger": ledger_to_data(traces.job.ledger), "steps": steps_done(traces)}
    text = codec.to_json(data) + "\n"
    write_file(path, text, f"--baseline {name}:", force=True, make_folder=True)
