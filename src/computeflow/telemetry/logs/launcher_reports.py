"""The report that torchrun prints when a rank fails: which one failed first, where and how.

Format after torch/distributed/elastic/multiprocessing/errors/__init__.py of torch 2.13.
"""

from __future__ import annotations

import re
import signal

from computeflow.telemetry.logs.line_events import Failure, FirstFailure

_ROOT = "Root Cause (first observed failure):"
_FIELD = re.compile(r"\s{1,8}(time|host|rank|exitcode|error_file|traceback)\s{0,8}: (.*)")
_RANK = re.compile(r"(\d{1,7}) \(local_rank: (\d{1,7})\)")
_CODE = re.compile(r"(-?\d{1,7})")
_STREAMS = 4096
_MAX_LINES = 400
"""Lines that a report may have; tracebacks are cut by Python long before."""
_MAX_ERROR = 300


class LauncherReports:
    """Follows the report's lines, per stream, from its last heading to the line that closes it."""

    def __init__(self) -> None:
        self._open: dict[str, dict[str, str]] = {}
        self._left: dict[str, int] = {}

    def event(self, text: str, stream: str) -> Failure | None:
        if _ROOT in text:
            if len(self._open) < _STREAMS:
                self._open[stream], self._left[stream] = {}, _MAX_LINES
            return None
        fields = self._open.get(stream)
        if fields is None:
            return None
        self._left[stream] -= 1
        if match := _FIELD.match(text):
            fields[match[1]] = match[2].strip()
        elif text.strip("= ") and "traceback" in fields:
            fields["error"] = text.strip()[:_MAX_ERROR]
        if not text.startswith("=====") and self._left[stream]:
            return None
        del self._open[stream], self._left[stream]
        return _failure(fields)


def _failure(fields: dict[str, str]) -> Failure | None:
    rank, code = _RANK.match(fields.get("rank", "")), _CODE.match(fields.get("exitcode", ""))
    if rank is None:
        return None
    exit_code = int(code[1]) if code else None
    name = _signal_name(exit_code)
    error = (
        fields.get("error", "") if "most recent call last" in fields.get("traceback", "") else ""
    )
    how = f"was ended by {name}" if name else f"exited with code {exit_code}"
    host, error_file = fields.get("host", ""), fields.get("error_file", "")
    return Failure(
        what=f"rank {rank[1]} {how}",
        detail=error,
        rank=int(rank[1]),
        node=host,
        first=FirstFailure(
            local_rank=int(rank[2]),
            exit_code=exit_code,
            signal=name,
            error=error,
            error_file="" if error_file == "<N/A>" else error_file,
        ),
    )


def _signal_name(code: int | None) -> str:
    """The signal of a negative exit code."""
    if code is None or code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
