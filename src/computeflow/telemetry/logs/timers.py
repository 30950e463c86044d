"""Timers that Megatron and DeepSpeed print after a step, and the accounts that they measure.

Megatron (megatron/core/timers.py) prints per iteration, in ms: all on one line (one rank's),
"(min, max) time across ranks", "max time across ranks", or "times across ranks" rank by rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from computeflow.files.limits import LOG_TIMERS
from computeflow.telemetry.logs.line_events import Timers

_ONE = re.compile(r"time \(ms\) \|(.*)")
_MIN_MAX_LINE = re.compile(r" {4}(\S+) \.*: \(([\d.]+), ([\d.]+)\)\s*$")
_MAX_LINE = re.compile(r" {4}(\S+) \.+: ([\d.]+)\s*$")
_RANK = re.compile(r" {5}rank +(\d+): ([\d.]+)\s*$")
_NAME = re.compile(r"  (\S+):\s*$")
_ACCOUNTS = {
    "optimizer": "optimizer", "step": "optimizer", "step_microstep": "optimizer",
    "batch-generator": "input",
    "backward-params-all-reduce": "comm.dp", "grads-all-reduce": "comm.dp",
    "all-grads-sync": "comm.dp", "params-all-gather": "comm.dp", "bwd_allreduce": "comm.dp",
    "bwd_allreduce_microstep": "comm.dp", "grads-reduce-scatter": "comm.dp",
    "layernorm-grads-all-reduce": "comm.tp", "backward-layernorm-all-reduce": "comm.tp",
    "embedding-grads-all-reduce": "comm.other", "backward-embedding-all-reduce": "comm.other",
    "forward-recv": "comm.pp", "forward-send": "comm.pp", "backward-recv": "comm.pp",
    "backward-send": "comm.pp", "forward-send-forward-recv": "comm.pp",
    "forward-send-backward-recv": "comm.pp", "backward-send-forward-recv": "comm.pp",
    "backward-send-backward-recv": "comm.pp",
    "forward-backward-send-forward-backward-recv": "comm.pp",
    "pipe_send_output": "comm.pp", "pipe_send_grad": "comm.pp", "pipe_recv_input": "comm.pp",
    "pipe_recv_grad": "comm.pp",
}  # fmt: skip
SAVE = "save-checkpoint"
_STREAMS = 4096
_FOREIGN = 64
"""Lines of other ranks that may stand between the lines of one printout."""
_SETUP = ("load-checkpoint", "model-and-optimizer-setup", "train/valid/test-data-iterators-setup")


def accounts_of(milliseconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of an iteration by account; timers that lie within others are not counted twice.

    DeepSpeed's micro-step timers cover one micro-step, its global ones the iteration.
    """
    booked: dict[str, float] = {}
    for name, value in milliseconds.items():
        account = _ACCOUNTS.get(name)
        if account and not name.endswith("_microstep"):
            booked[account] = booked.get(account, 0.0) + value / 1e3
    return booked


class TimerLines:
    """Finds timers in lines; printouts of several lines are followed per stream."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, int]] = {}  # stream: form, lines it may still have
        self._ranks: dict[str, tuple[str, float, int]] = {}  # stream: timer, sum, ranks

    def event(self, text: str, stream: str) -> Timers | None:
        if "time (ms) |" in text and (match := _ONE.search(text)):
            pairs = (part.rpartition(":") for part in match[1].split("|"))
            values = {n.strip(): _float(v) for n, colon, v in pairs if colon}
            return _timers("one", values)
        if "across ranks (ms):" in text:
            self._begin(stream, "all" if "times across" in text else "lines")
            return None
        return self._continue(text, stream) if stream in self._open else None

    def _begin(self, stream: str, form: str) -> None:
        if len(self._open) >= _STREAMS:
            self._open.clear()
            self._ranks.clear()
        self._open[stream] = (form, _FOREIGN)

    def _continue(self, text: str, stream: str) -> Timers | None:
        form, left = self._open[stream]
        event = _across_ranks(text) if form == "lines" else self._rank_by_rank(text, stream)
        if event is None:
            self._open[stream] = (form, left - 1)
            if left <= 1:
                del self._open[stream]
        return event

    def _rank_by_rank(self, text: str, stream: str) -> Timers | None:
        if match := _NAME.match(text):
            self._ranks[stream] = (match[1], 0.0, 0)
        match = _RANK.match(text)
        if match is None or stream not in self._ranks:
            return None
        name, total, ranks = self._ranks[stream]
        total, ranks = total + (_float(match[2]) or 0.0), ranks + 1
        self._ranks[stream] = (name, total, ranks)
        return Timers(form="mean", milliseconds={name: total / ranks}, ranks=ranks)


class TimerMeans:
    """Means over the lines that print a timer."""

    def __init__(self) -> None:
        self.form = ""
        self._sums: dict[str, tuple[float, int, float]] = {}  # sum, count, the last value

    def take(self, event: Timers) -> None:
        self.form = event.form
        for name, value in event.milliseconds.items():
            if len(self._sums) >= LOG_TIMERS and name not in self._sums:
                continue
            total, count, last = self._sums.get(name, (0.0, 0, 0.0))
            if event.form == "mean" and event.ranks > 1:  # corrects what one rank less gave
                total, count = total - last, count - 1
            self._sums[name] = (total + value, count + 1, value)

    def facts(self) -> dict[str, float]:
        return {name: total / count for name, (total, count, _) in self._sums.items()}


def _across_ranks(text: str) -> Timers | None:
    if match := _MIN_MAX_LINE.match(text):
        return _timers("least", {match[1]: _float(match[2])})
    match = _MAX_LINE.match(text)
    return _timers("most", {match[1]: _float(match[2])}) if match else None


def _timers(form: str, values: Mapping[str, float | None]) -> Timers | None:
    known = {name: value for name, value in values.items() if value is not None}
    return Timers(form=form, milliseconds=known) if known else None  # type: ignore[arg-type]


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e12 else None
