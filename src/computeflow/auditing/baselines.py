"""Baselines: a file per job name, to compare its next recording with."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from computeflow import codec
from computeflow.auditing.audit_request import AuditRequest
from computeflow.auditing.equal_work import WorkDone, compare_ledgers, work_of_traces
from computeflow.errors import InputError
from computeflow.files.parsing import parse_json
from computeflow.files.reading import read_text
from computeflow.files.writing import write_file
from computeflow.ledger import Gap, Ledger, ledger_from_data, ledger_to_data
from computeflow.telemetry.traces.job_ledgers import TracedJob

_NAME = re.compile(r"[\w.-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    ledger: Ledger
    work: WorkDone


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
    ledger = ledger_from_data(data.get("ledger"), str(path))
    marked = ledger.window.first_step is not None
    old = {"steps": data["steps"] if marked else 0, "traced": True}
    work = data.get("work", old)
    return Baseline(ledger=ledger, work=codec.decode(WorkDone, work, str(path)))


def compare_baseline(
    request: AuditRequest, traces: TracedJob, kept: Baseline
) -> tuple[list[Gap], str]:
    """Gaps line by line, and what is equal in the comparison."""
    work = work_of_traces(traces, request)
    return compare_ledgers(traces.job.ledger, work, kept.ledger, kept.work)


def keep_baseline(request: AuditRequest, name: str, traces: TracedJob) -> None:
    path, work = baseline_path(name), work_of_traces(traces, request)
    steps = sum(max(len(rank.steps), 1) for rank in traces.ranks)
    data = {
        "ledger": ledger_to_data(traces.job.ledger),
        "steps": steps,
        "work": codec.encode(work),
    }
    text = codec.to_json(data) + "\n"
    write_file(path, text, f"--baseline {name}:", force=True, make_folder=True)
