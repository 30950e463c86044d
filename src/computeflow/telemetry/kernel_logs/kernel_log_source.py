"""The source `kernel-log`: faults of nodes, folded, with what they mean and what to do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from computeflow.errors import InputError
from computeflow.files.limits import FAULTS, NODES
from computeflow.telemetry.kernel_logs.line_stamps import Clock, Stamp, stamp_of
from computeflow.telemetry.kernel_logs.messages import classify_message, hints
from computeflow.telemetry.kernel_logs.node_faults import Folding, LogSpan, NodeFault
from computeflow.telemetry.lines import read_lines
from computeflow.telemetry.source_reports import Event, SourceReport, SourceRequest

MAX_HAPPENINGS = 10_000
_UUID = re.compile(r"NVRM: GPU at (?:PCI:)?([0-9a-fA-F:.]+): (GPU-[0-9a-f-]{36})")
_REPEATED = re.compile(r"(?:last )?message repeated (\d{1,6}) times(?:: \[ ?(.*)\])?")
_LEVEL = re.compile(r"[a-z]+ *:[a-z]+ *:")
_LOOKED = 400
"""Lines at the start of a file by which it is recognised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A file that was read."""

    path: str
    lines: int
    clocks: tuple[Clock, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLogs:
    """The facts from kernel logs."""

    faults: tuple[NodeFault, ...]
    """Faults that stop a job first, then the most frequent; harmless messages last."""
    logs: tuple[Log, ...]
    spans: tuple[LogSpan, ...]


def _is_kernel_log(head: str) -> bool:
    """Whether enough lines have a form of kernel logs, and one of them is theirs alone."""
    lines = [line for line in head.split("\n")[:_LOOKED] if line.strip()]
    forms: Counter[str] = Counter()
    for line in lines:
        stamp = stamp_of(line.rstrip("\r"))
        if stamp is not None:
            forms[_form(line, stamp)] += 1
    own = forms["kernel"] + forms["journal"] + forms["syslog"]
    return own > 0 and 5 * (own + forms["dated"]) >= 2 * len(lines)


def _form(line: str, stamp: Stamp) -> str:
    if line.startswith("{"):
        return "journal" if "__REALTIME_TIMESTAMP" in line or stamp.tag == "kernel" else "json"
    if stamp.clock == "no year":
        return "syslog" if stamp.tag else "dated"
    if stamp.tag in ("kernel", "fabric") or stamp.clock == "boot" or line.startswith("["):
        return "kernel"
    return "kernel" if _LEVEL.match(line) else _shared_form(stamp)


def _shared_form(stamp: Stamp) -> str:
    return "kernel" if classify_message(stamp.text) is not None else "dated"


@dataclass(frozen=True, slots=True)
class KernelLogSource:
    kind: str = "kernel-log"

    def recognises(self, path: Path, head: bytes) -> bool:
        return _is_kernel_log(head.decode("utf-8", "replace"))

    def observe(self, paths: Sequence[Path], request: SourceRequest) -> list[SourceReport]:
        folding = Folding(start=request.start, end=request.end)
        logs: list[Log] = []
        left_out: list[str] = []
        for path in paths:
            try:
                logs.append(_read(path, folding, left_out))
            except InputError as error:
                left_out.append(str(error))
        if not logs:
            raise InputError("; ".join(left_out) or "no log to read")
        faults = folding.faults()
        happenings = _happenings(folding, faults)
        if len(happenings) > MAX_HAPPENINGS:
            more = len(happenings) - MAX_HAPPENINGS
            left_out.append(f"{more:,} more events: their faults are counted")
        if folding.crowded:
            left_out.append(f"the times of {folding.crowded:,} messages: they are counted")
        if folding.beyond:
            left_out.append(
                f"{folding.beyond:,} messages of faults, nodes or devices beyond the limits "
                f"({FAULTS:,} and {NODES:,}): take fewer logs"
            )
        return [
            SourceReport(
                kind=self.kind,
                sources=tuple(log.path for log in logs),
                facts=KernelLogs(faults=faults, logs=tuple(logs), spans=folding.spans()),
                ledger_reason="a kernel log has faults, but no GPU times",
                happenings=tuple(happenings[:MAX_HAPPENINGS]),
                left_out=tuple(left_out),
                notes=_notes(logs, faults),
            )
        ]


def _read(path: Path, folding: Folding, left_out: list[str]) -> Log:
    """Read a log: lines that have a known substring, and the first and the last for their times."""
    wanted = (*hints(), "NVRM: GPU at", "message repeated", '"MESSAGE":[', '"MESSAGE" : [')
    clocks: dict[Clock, None] = {}
    nodes: dict[str, None] = {}
    count, last, known = 0, "", False
    file = folding.file(str(path))
    for line in read_lines(path, left_out):
        count += 1
        if not line.strip():
            continue
        if known and not any(word in line for word in wanted):
            if line[:1] not in " \t":
                last = line
            continue
        stamp = stamp_of(line)
        if stamp is None:
            continue
        known = True
        clocks[stamp.clock] = None
        if stamp.node and len(nodes) < 1000:
            nodes[stamp.node] = None
        file.saw(stamp)
        _take(stamp, file)
    if (stamp := stamp_of(last)) is not None:
        file.saw(stamp)
    file.close()
    return Log(path=str(path), lines=count, clocks=tuple(clocks), nodes=tuple(nodes))


def _take(stamp: Stamp, file: Folding.File) -> None:
    text, times = stamp.text, 1
    if repeated := _REPEATED.search(text):
        if repeated[2] is None:
            file.again(int(repeated[1]))
            return
        text, times = repeated[2], int(repeated[1])
    if uuid := _UUID.search(text):
        file.uuid(stamp, uuid[1], uuid[2])
        return
    read = classify_message(text)
    if read is not None:
        file.add(stamp, text, read, times)


def _happenings(folding: Folding, faults: Sequence[NodeFault]) -> list[Event]:
    events = []
    for fault in faults:
        for first, count in folding.bursts(fault):
            times = f", {count:,} times" if count > 1 else ""
            events.append(
                Event(
                    seconds=first if fault.clock == "unix" else None,
                    what=fault.what,
                    node=fault.node,
                    gpu=fault.gpu,
                    fault=fault.fault,
                    detail=f"{fault.meaning or fault.example}{times}",
                )
            )
    return sorted(events, key=lambda event: (event.seconds is None, event.seconds or 0.0))


def _notes(logs: Sequence[Log], faults: Sequence[NodeFault]) -> tuple[str, ...]:
    clocks = {clock for log in logs for clock in log.clocks}
    kinds = {fault.what for fault in faults}
    notes = (
        (
            "no year" in clocks,
            "syslog dates have no year: in which year something happened is unknown",
        ),
        ("boot" in clocks, "times in seconds since boot: when the node booted is unknown"),
        ("unix" in clocks, "times without a zone are taken as UTC"),
        (
            not all(log.nodes for log in logs),
            "logs that do not name their node: faults carry the file's name instead",
        ),
        (
            "gsp messages held back" in kinds,
            "the driver held messages back: counts of Xid 119 and 120 are too low",
        ),
        (
            not any(fault.fault for fault in faults),
            f"no fault in {sum(log.lines for log in logs):,} lines",
        ),
    )
    return tuple(text for holds, text in notes if holds)
