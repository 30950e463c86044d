"""Lines of text recordings of any size: decoded with replacement, cut where too long."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from computeflow.errors import InputError
from computeflow.files.limits import LINE_BYTES
from computeflow.telemetry.opening import open_recording


def check_columns(names: Sequence[str], read: Collection[str], path: Path) -> None:
    """A table that has a column twice, of those that are read, does not say which of them counts."""
    for name in read:
        if names.count(name) > 1:
            raise InputError(f"{path}: {names.count(name)} columns {name!r}: leave one")


def read_lines(path: Path, left_out: list[str]) -> Iterator[str]:
    """Without line ends; a line beyond `LINE_BYTES` comes cut. A broken end of a compressed file ends
    the lines, and is said in `left_out`.
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
