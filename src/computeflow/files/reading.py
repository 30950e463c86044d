"""Files that are read whole: `read_text`. Whatever a user may name by mistake (a folder, a pipe, a
spreadsheet, a bomb) ends in one `InputError` that says what it is.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from pathlib import Path

from computeflow.errors import InputError
from computeflow.files.limits import TEXT_BYTES
from computeflow.files.names import shown

_KINDS = (
    (stat.S_ISDIR, "a folder, not a file"),
    (stat.S_ISFIFO, "a pipe, not a file: write it to a file first"),
    (stat.S_ISCHR, "a device, not a file"),
    (stat.S_ISBLK, "a device, not a file"),
)
_GZIP = b"\x1f\x8b"
_PACKED = {
    b"\x28\xb5\x2f\xfd": "packed with zstd: unpack it first (zstd -dc FILE > NEW)",
    b"\xfd7zXZ\x00": "packed with xz: unpack it first (xz -dc FILE > NEW)",
    b"BZh": "packed with bzip2: unpack it first (bzip2 -dc FILE > NEW)",
    b"PK\x03\x04": "a zip archive or a spreadsheet: unpack it, or save it as CSV",
    b"7z\xbc\xaf": "a 7z archive: unpack it first",
    b"\xd0\xcf\x11\xe0": "a document of an office program: save it as CSV",
    b"%PDF": "a PDF, not text",
    b"SQLite format 3": "an SQLite database, not text",
    b"PAR1": "a Parquet file, not text",
}
"""First bytes of files that are no text, and what to do about them."""
_WIDE = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_LOOKED_AT = 4096


def read_text(path: Path) -> str:
    """The text of a file of moderate size, unpacked if it is gzip; line ends are newlines."""
    where = shown(str(path), 200)
    content = _read(path, where)
    if content.startswith(_GZIP):
        content = _unpacked(content, where)
    if is_what := _no_text(content):
        raise InputError(f"{where}: {is_what}")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8 text at byte {error.start:,}: save it as UTF-8"
        ) from None


def _read(path: Path, where: str) -> bytes:
    """Open a file and check its kind on the open descriptor, so that no pipe blocks."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
        try:
            mode = os.fstat(descriptor).st_mode
            for is_kind, what in _KINDS:
                if is_kind(mode):
                    raise InputError(f"{where}: {what}")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                content = file.read(TEXT_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(f"{where}: {error.strerror or error}") from None
    except ValueError:  # a NUL, or half a character, in its name
        raise InputError(f"{where}: not the name of a file") from None
    return _bounded(content, where)


def _unpacked(content: bytes, where: str) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return _bounded(file.read(TEXT_BYTES + 1), where)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{where}: gzip that is cut off or damaged: {error}") from None


def _bounded(content: bytes, where: str) -> bytes:
    if len(content) > TEXT_BYTES:
        raise InputError(f"{where}: larger than {TEXT_BYTES >> 20} MiB, which no input needs")
    return content


def _no_text(content: bytes) -> str:
    """Kind of a content that is no UTF-8 text; nothing where it may be text."""
    for start, what in _PACKED.items():
        if content.startswith(start):
            return what
    if content[257:262] == b"ustar":
        return "a tar archive: unpack it and name a file of it"
    for start, name in _WIDE.items():
        if content.startswith(start):
            return f"{name}, not UTF-8 text: save it as UTF-8"
    if b"\x00" not in content:
        return ""
    if looks_like_utf16(content):
        return "UTF-16, not UTF-8 text: save it as UTF-8"
    return "not text: it holds zero bytes"


def looks_like_utf16(content: bytes) -> bool:
    """Whether it is UTF-16 without a byte-order mark: every other byte of Latin text is zero."""
    begin = content[:_LOOKED_AT]
    return 0 in (begin[::2].count(0), begin[1::2].count(0)) and begin.count(0) > len(begin) // 3
