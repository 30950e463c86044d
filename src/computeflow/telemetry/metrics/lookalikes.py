"""Files that lie beside metrics but hold no samples, and what they are."""

from __future__ import annotations

import re
from pathlib import Path

from computeflow.telemetry.lines import read_lines
from computeflow.telemetry.metrics.exporter_fields import NEEDED
from computeflow.telemetry.metrics.samples import gpu_field

_COUNTER = re.compile(
    r"^\s*(#\s*)?(DCGM_\w+|dcgm_\w+)\s*,\s*(gauge|counter|label|histogram)\s*,", re.M
)
_WANTED = ("utilisation", "sm_active", "tensor_active", "power", "clock", "reasons", "memory_used")
_SUMMARIES = (
    (
        re.compile(rb"\A[\w, ]*power_limit,time_per_epoch,average_power\b"),
        "a summary of trainings under power limits (zeus), not samples over time",
    ),
    (
        re.compile(rb"\A[\w, ]*target_metric,target_epoch\b"),
        "a summary of epochs to a target (zeus), not samples over time",
    ),
    (re.compile(rb"openei\.org/IURDB"), "an electricity tariff (OpenEI), not samples"),
)


def is_counters(head: bytes) -> bool:
    """Whether its first line that is not a comment is a counter."""
    lines = head.decode("utf-8", "replace").splitlines()
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    return _COUNTER.match(first) is not None


def is_summary(head: bytes) -> bool:
    return any(pattern.search(head) for pattern, _ in _SUMMARIES)


def describe_lookalike(path: Path, head: bytes) -> str:
    for pattern, what in _SUMMARIES:
        if pattern.search(head):
            return f"{path}: {what}"
    return counters(path)


def counters(path: Path) -> str:
    """Describe a dcgm-exporter counter list: how many it turns on, and which of ours it lacks."""
    on: set[str] = set()
    total = 0
    broken: list[str] = []
    for line in read_lines(path, broken):
        match = _COUNTER.match(line)
        if match and not match[1]:
            total += 1
            known = gpu_field(match[2])
            on |= {known.name} if known else set()
    absent = [NEEDED[name].split(" (")[0] for name in _WANTED if name not in on]
    lacks = f"; without {', '.join(absent)}" if absent else ""
    text = f"{path}: a list of {total} counters for dcgm-exporter, not samples{lacks}"
    return "; ".join([text, *broken])
