"""Lines of text recordings of any size: decoded with replacement, cut where too long."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from computeflow.errors import InputError
from computeflow.files.limits import LINE_BYTES
from computeflow.telemetry.opening import open_recording


def check_columns(names: Sequence[str], read: Collection[str], path: Path) -> None:
    """Refuse a table that has a column twice, among those that are read: which one counts is
    unclear.
    """
    for name in read:
        if names.count(name) > 1:
            raise InputError(f"{path}: {names.count(name)} columns {name!r}: leave one")


def read_lines(path: Path, left_out: list[str]) -> Iterator[str]:
    """Lines without line ends, cut at `LINE_BYTES`. Where the compressed content breaks off, the
    lines end and `left_out` says so.
    """
    number = 0
    with open_recording(path) as file:
        while line := file.readline(LINE_BYTES):
            number += 1
            whole = line.endswith(b"\n")
            yield line.decode("utf-8", "replace").rstrip("\r\n").replace("\x00", "")
            while not whole and (rest := file.readline(LINE_BYTES)):
                whole = rest.endswith(b"\n")
        if file.broken:
            left_out.append(f"{path}: its compressed end is broken, read to line {number:,}")
