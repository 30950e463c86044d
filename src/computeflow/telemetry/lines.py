"""Lines of text files of any size: decompressed, decoded with replacement, cut where too long."""

from __future__ import annotations

import gzip
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from computeflow.errors import InputError

MOST_LINE = 1 << 16
_GZIP = b"\x1f\x8b"


def read_lines(path: Path) -> Iterator[str]:
    """Without line ends; a line beyond `MOST_LINE` bytes comes cut. A broken end of a compressed file
    ends the lines.
    """
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == _GZIP
        with gzip.open(path, "rb") if zipped else path.open("rb") as file:
            while line := file.readline(MOST_LINE):
                whole = line.endswith(b"\n")
                yield line.decode("utf-8", "replace").rstrip("\r\n").replace("\x00", "")
                while not whole and (rest := file.readline(MOST_LINE)):
                    whole = rest.endswith(b"\n")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def head_of(path: Path, size: int = 1 << 16) -> bytes:
    """The beginning of a file, decompressed where it is compressed; b"" where it cannot be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would keep us waiting
            return b""
        with path.open("rb") as file:
            head = file.read(size)
    except OSError:
        return b""
    if head[:2] == _GZIP:
        try:
            return zlib.decompressobj(31).decompress(head, size)
        except zlib.error:
            return b""
    return head


def read_whole(path: Path, most: int, instead: str) -> bytes:
    """All of a file, gzipped or plain; `instead`: what to say where it holds more than that."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if zipped else path.open("rb") as file:
            content = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > most:
        raise InputError(f"{path}: more than {most >> 20} MiB: {instead}")
    return content
