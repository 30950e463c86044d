"""What only a profiler window shows of a run's phases: `read_window`, then `split_entries`.

A profiler costs time of the host, none of the device. So the device's times in the latest window are
taken as they are, for every step: kernels, copies, exposed transfers and waits. What the exact phases
took beyond them is the host's: launches that came too late.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from computeflow.catalog import Catalog
from computeflow.errors import ComputeFlowError
from computeflow.ledger import Entry

_STEP = re.compile(r"step-(\d{1,12})")
_TAKEN = ("compute", "copy", "comm", "straggler", "imbalance")
"""Accounts of a window whose seconds lie inside forward and backward passes, in the order in which they
are taken out of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSplit:
    step: int
    """The step at which the window begins."""
    seconds: dict[str, float]
    """Seconds of a step of one rank, by account."""
    unavailable: dict[str, str]
    """Accounts that the window does not show, either."""


def read_window(paths: Sequence[Path], catalog: Catalog, left_out: list[str]) -> WindowSplit | None:
    """The latest window of a run folder; None where there is none, or no device in it."""
    by_step: dict[int, list[Path]] = {}
    for path in paths:
        found = _STEP.search(path.name)
        by_step.setdefault(int(found[1]) if found else 0, []).append(path)
    if not by_step:
        return None
    from computeflow.telemetry.trace_audit import audit

    latest = max(by_step)
    try:
        traced = audit(by_step[latest], catalog)
    except ComputeFlowError as error:
        left_out.append(f"the window at step {latest:,}: {error}")
        return None
    left_out += traced.left_out
    steps = sum(len(rank.steps) for rank in traced.ranks)
    if not steps or not all(rank.on_device for rank in traced.ranks):
        why = "no device in it" if steps else "no whole step in it"
        left_out.append(f"the window at step {latest:,} does not split phases: {why}")
        return None
    ledger = traced.job.ledger
    return WindowSplit(
        step=latest,
        seconds={name: ledger.booked(name) / steps for name in _TAKEN},
        unavailable={name: why for name, why in ledger.unavailable.items() if name in _TAKEN[1:]},
    )


def split_entries(entries: Sequence[Entry], split: WindowSplit, steps: int) -> list[Entry]:
    """The entries of a run with its compute split; what the recorder knows itself stays as it is."""
    left = sum(entry.gpu_seconds for entry in entries if entry.account == "compute")
    known = {entry.account for entry in entries}
    made = [entry for entry in entries if entry.account != "compute"]
    for account in _TAKEN:
        if account in known - {"compute"}:
            continue
        taken = min(split.seconds[account] * steps, left)
        left -= taken
        if taken > 0:
            made.append(Entry(account=account, gpu_seconds=taken))
    if left > 0:
        made.append(Entry(account="host", gpu_seconds=left))
    return made
