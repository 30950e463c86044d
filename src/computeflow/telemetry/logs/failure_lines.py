"""Lines that report a failure, with the rank and node that they name."""

from __future__ import annotations

import re

from computeflow.telemetry.logs.launcher_reports import LauncherReports
from computeflow.telemetry.logs.line_events import Event, Failure

_RANK = re.compile(
    r"\[Rank (\d{1,15})\]|\bRank (\d{1,15})\b|\brank (\d{1,15})\b|\brank=(\d{1,15})\b"
)
_RAN_FOR = re.compile(r"ran for (\d{1,15}) milliseconds")
_OP = re.compile(r"OpType=(\w+)")
_NCCL_WARN = re.compile(
    r"(?<![\w.-])([\w.-]{1,255}):\d{1,10}:\d{1,10} \[(\d{1,15})\] (?:.{0,200}? )?NCCL WARN (.*)"
)
_NCCL_ERROR = re.compile(
    r"nccl(?:System|Internal|Remote|UnhandledCuda|InvalidUsage)Error|NCCL error"
)
_ERROR = re.compile(r"(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Exit|Failure))(?::\s*(.*))?$")
_EXIT = re.compile(r"exits with return code = (-?\d+)")
_CHILD = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d{1,15})")
_CANCELLED = re.compile(
    r" ON (\S{1,255}) CANCELLED AT \S{1,64}(?: due to (.{1,200}?))? \*\*\*", re.IGNORECASE
)
_TASK = re.compile(r"srun: error: ([\w.-]+): tasks? ([\d,\[\]-]+): (.*)")
_NODE = re.compile(r"Node failure on (\S+)")
_OPEN_TRACES = 4096


def _memory(text: str) -> Event | None:
    lower = text.lower()
    if "cuda out of memory" in lower or "hip out of memory" in lower or "outofmemoryerror" in lower:
        return Failure(what="out of GPU memory", detail=text, rank=_rank(text))
    if "RESOURCE_EXHAUSTED" in text and "memory" in lower:
        return Failure(what="out of GPU memory", detail=text, rank=_rank(text))
    if "oom-kill" in lower or "oom_kill" in lower or "Out of memory: Kill" in text:
        return Failure(what="out of host memory", detail=text, rank=_rank(text))
    return None


def _watchdog(text: str) -> Event | None:
    waited, op = _RAN_FOR.search(text), _OP.search(text)
    what = f"NCCL timeout: {op[1]}" if op else "NCCL timeout"
    seconds = int(waited[1]) / 1e3 if waited and len(waited[1]) < 13 else None
    return Failure(what=what, detail=text, rank=_rank(text), waited_seconds=seconds)


def _nccl(text: str) -> Event | None:
    if match := _NCCL_WARN.search(text):  # NCCL warns of much that stops nothing
        return Failure(what="NCCL warning", detail=match[3], node=match[1], fault=False)
    if _NCCL_ERROR.search(text):
        return Failure(what="NCCL error", detail=text, rank=_rank(text))
    return None


def _exit(text: str) -> Event | None:
    if match := _EXIT.search(text):
        failed = match[1] != "0"
        return Failure(what=f"exit code {match[1]}", detail=text) if failed else None
    if match := _CHILD.search(text):
        return Failure(what=f"exit code {match[1]}", detail=text)
    return None


def _slurm(text: str) -> Event | None:
    if match := _CANCELLED.search(text):
        cause = f": {match[2].lower()}" if match[2] else ""
        return Failure(what=f"cancelled{cause}", node=match[1], detail=text)
    if match := _NODE.search(text):
        return Failure(what="node failure", node=match[1], detail=text)
    if match := _TASK.search(text):
        return Failure(what=f"task ended: {match[3][:40]}", node=match[1], detail=text)
    return None


def _slice(text: str) -> Event | None:
    return Failure(what="slice down", detail=text) if "Slice down event" in text else None


_READERS = (
    ("emory", _memory),
    ("oom", _memory),
    ("RESOURCE_EXHAUSTED", _memory),
    ("Watchdog caught collective operation timeout", _watchdog),
    ("NCCL WARN", _nccl),
    ("nccl", _nccl),
    ("NCCL error", _nccl),
    ("exits with return code", _exit),
    ("failed (exitcode", _exit),
    ("CANCELLED AT", _slurm),
    ("Node failure on", _slurm),
    ("srun: error", _slurm),
    ("Slice down event", _slice),
)


class FailureLines:
    """Finds failures in lines; a traceback is named by its last line, further on in the stream."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._reports = LauncherReports()

    def event(self, text: str, stream: str) -> Event | None:
        first = self._reports.event(text, stream)
        if first is not None:
            return first
        if "Traceback (most recent call last)" in text:
            if len(self._open) < _OPEN_TRACES:
                self._open[stream] = 400  # lines that a traceback may have
            return None
        ended = self._ended(text, stream) if stream in self._open else None
        for needle, reader in _READERS:
            if needle in text and (event := reader(text)) is not None:
                return event
        return ended

    def _ended(self, text: str, stream: str) -> Event | None:
        match = None if text.startswith((" ", "\t")) else _ERROR.match(text)
        if match is None:
            self._open[stream] -= 1
            if not self._open[stream]:
                del self._open[stream]
            return None
        del self._open[stream]
        return Failure(what=f"traceback: {match[1]}", detail=match[2] or "")


def _rank(text: str) -> int | None:
    match = _RANK.search(text)
    number = next(filter(None, match.groups()), None) if match else None
    return int(number) if number and len(number) < 8 else None
