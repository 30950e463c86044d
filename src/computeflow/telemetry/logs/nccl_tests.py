"""Output of collective benchmarks, which has facts of its own and no ledger.

nccl-tests (NVIDIA/nccl-tests, src/util.cu): lines of sizes with times and bandwidths, out of place and
in place. all_reduce_bench of bigscience: rounds, rank by rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import takewhile

from computeflow.files.limits import BANDWIDTH_ROWS
from computeflow.telemetry.logs.line_events import finite
from computeflow.telemetry.logs.log_facts import Bandwidth, BandwidthRow

_DEVICE = re.compile(
    r"#\s+Rank\s+(\d{1,15}) (?:Group\s+\d+ )?Pid\s+\d+ on\s+(\S+) device\s+\d+ \[\S+\] (.*)"
)
_PROGRAM = re.compile(r"# Collective test starting: (\S+)")
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*: ([\d.eE+-]+)")
_WRONG = re.compile(r"# Out of bounds values\s*: (\d{1,15})")
_ROW = re.compile(r"\s*(\d{1,15})\s+(\d{1,15})\s+([a-z]\w+)\s+(.*)")
_SIZE = re.compile(r"(?:\S+ )?(\d{1,15}) data size: ([\d.]+) GB")
_DURATION = re.compile(r"duration: ([\d.]+) sec")
_BUS = re.compile(r"busbw: ([\d.]+)\s+Gbps")
_GIGA = 1e9


class Benchmark:
    """Reads the lines of a benchmark, then gives `facts`; no rows where there are no figures."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._ranks: set[int] = set()
        self._devices: dict[str, None] = {}
        self._program = ""
        self._average: float | None = None
        self._wrong: int | None = None
        self._rows: list[BandwidthRow] = []
        self.more = 0
        self._per_iteration = False
        self._header = False
        self._payload: float | None = None
        self._members: set[int] = set()
        self._rounds: list[float] = []
        self._buses: list[float] = []

    def read(self, lines: Iterable[str]) -> None:
        for text in lines:
            if text.startswith("#"):
                self._comment(text)
            elif self._header and (match := _ROW.match(text)):
                self._row(match)
            elif "data size:" in text and (match := _SIZE.match(text)):
                self._payload = _scaled(_number(match[2]), _GIGA)
                self._members.add(int(match[1]))
            elif self._payload:
                self._round(text)

    def _comment(self, text: str) -> None:
        if match := _DEVICE.match(text):
            self._ranks.add(int(match[1]))
            self._devices[match[3].strip()] = None
        elif match := _PROGRAM.match(text):
            self._program = match[1].rpartition("/")[2]
        elif match := _AVERAGE.match(text):
            self._average = _scaled(_number(match[1]), _GIGA)
        elif match := _WRONG.match(text):
            self._wrong = int(match[1])
        elif "algbw" in text and "busbw" in text:
            self._header = True
            self._per_iteration = "i_min" in text

    def _row(self, match: re.Match[str]) -> None:
        words = match[4].split()
        names = list(takewhile(lambda word: not _is_number(word), words))
        parts = self._parts(words[len(names) :])
        if not parts:
            return
        if len(self._rows) >= BANDWIDTH_ROWS:
            self.more += 1
            return
        out_of_place, in_place = parts[0], parts[1] if len(parts) > 1 else [None] * 4
        wrong = [part[3] for part in parts if part[3] is not None]
        self._rows.append(
            BandwidthRow(
                bytes=int(match[1]),
                kind=match[3],
                operation=names[0] if names and names[0] != "none" else "",
                out_of_place_seconds=_scaled(out_of_place[0], 1e-6),
                out_of_place_bus=_scaled(out_of_place[2], _GIGA),
                in_place_seconds=_scaled(in_place[0], 1e-6),
                in_place_bus=_scaled(in_place[2], _GIGA),
                algorithm=_scaled(
                    max(filter(None, (out_of_place[1], in_place[1])), default=None), _GIGA
                ),
                wrong=int(sum(wrong)) if wrong else None,
            )
        )

    def _parts(self, words: list[str]) -> list[list[float | None]]:
        """Time, bandwidth, bus bandwidth and wrong values: out of place, then in place."""
        width = 8 if self._per_iteration else 4
        skipped = int(len(words) % width == 1)  # a root, or a time stamp's first word
        parts = (words[skipped:][start : start + width] for start in (0, width))
        return [[_number(word) for word in (*part, "")[:4]] for part in parts if len(part) >= 3]

    def _round(self, text: str) -> None:
        if match := _DURATION.search(text):
            self._rounds += _known(_number(match[1]))
        elif match := _BUS.search(text):
            self._buses += _known(_scaled(_number(match[1]), _GIGA / 8))

    def facts(self) -> Bandwidth:
        if self._rows or not self._rounds:
            return Bandwidth(
                tool="nccl-tests",
                file=self.file,
                collective=self._program.removesuffix("_perf"),
                ranks=len(self._ranks) or None,
                devices=tuple(self._devices),
                rows=tuple(self._rows),
                average_bus=self._average,
                wrong_values=self._wrong,
            )
        mean = math.fsum(self._rounds) / len(self._rounds)
        bus = math.fsum(self._buses) / len(self._buses) if self._buses else None
        row = BandwidthRow(
            bytes=int(self._payload or 0),
            out_of_place_seconds=None,
            out_of_place_bus=None,
            in_place_seconds=mean,
            in_place_bus=bus,
            algorithm=None,
            kind="float",
            operation="sum",
        )
        return Bandwidth(
            tool="all_reduce_bench",
            file=self.file,
            collective="all_reduce",
            ranks=len(self._members),
            devices=(),
            rows=(row,),
            average_bus=bus,
            wrong_values=None,
            rounds=round(len(self._rounds) / max(1, len(self._members))),
            mean_seconds=mean,
        )


def _is_number(word: str) -> bool:
    return _number(word) is not None or word == "N/A"


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else finite(value * factor)


def _known(value: float | None) -> list[float]:
    return [] if value is None else [value]
