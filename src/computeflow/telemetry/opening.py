"""Opening of recordings: `open_recording`, or `head_of`, `tail_of` and `read_whole` for parts;
`open_plain` for the raw bytes.

The kind of a file is checked after opening it without blocking: pipes and devices are refused. So
are archives and compressions that are not supported, with the command that unpacks them. Gzip is
inflated while reading; UTF-16 and UTF-32 arrive as UTF-8.
"""

from __future__ import annotations

import codecs
import io
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from computeflow.errors import InputError
from computeflow.files.limits import HEAD_BYTES, INFLATED_BYTES, INFLATED_TIMES
from computeflow.files.names import shown
from computeflow.telemetry.gzip_reader import BROKEN, inflating

GZIP = b"\x1f\x8b"
_PIECE = 1 << 18
_FORMS = (
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "zstd -dc {} > NEW"),
    (b"\xfd7zXZ\x00", "compressed by xz", "xz -dc {} > NEW"),
    (b"BZh", "compressed by bzip2", "bzip2 -dc {} > NEW"),
    (b"\x04\x22\x4d\x18", "compressed by lz4", "lz4 -dc {} > NEW"),
    (b"\x1f\x9d", "compressed by compress", "gzip -dc {} > NEW"),
    (b"PK\x03\x04", "a zip archive", "unzip {}"),
    (b"PK\x05\x06", "a zip archive", "unzip {}"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x {}"),
    (b"Rar!\x1a\x07", "a rar archive", "unrar x {}"),
    (GZIP, "compressed twice", "gzip -dc {} > NEW"),
)
"""Formats that are not read, whatever their ending: first bytes, name, command that unpacks them."""
PACKED = (".zst", ".xz", ".bz2", ".lz4", ".zip", ".7z", ".rar", ".tar", ".tgz", ".tar.gz")
_TAR = slice(257, 262), b"ustar"
_WIDE = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
"""Byte order marks; UTF-32 before UTF-16, whose mark is a prefix of it."""


class Recording(io.BufferedReader):
    """Decompressed bytes of a file; they end where the content is broken, and `broken` says why."""

    inflated: _Inflated | None = None

    @property
    def broken(self) -> str:
        return self.inflated.broken if self.inflated else ""


@contextmanager
def open_recording(path: Path) -> Iterator[Recording]:
    """Open a recording; every failure of opening and reading is an `InputError`."""
    try:
        with open_plain(path) as file:
            yield _recording(path, file)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def head_of(path: Path, size: int = HEAD_BYTES) -> bytes:
    """The beginning of a recording; b"" where it cannot be read."""
    try:
        return read_head(path, size)
    except InputError:
        return b""


def read_head(path: Path, size: int = HEAD_BYTES) -> bytes:
    with open_recording(path) as file:
        head = file.read(size)
        if not head and file.broken:
            raise InputError(f"{path}: {file.broken}")
        return head


def tail_of(path: Path, size: int) -> bytes:
    """The last raw bytes of a file; b"" where it is compressed or cannot be read."""
    try:
        with open_plain(path) as file:
            if file.read(2) == GZIP:
                return b""
            file.seek(max(file.seek(0, os.SEEK_END) - size, 0))
            return file.readall()[:size]
    except (OSError, InputError):
        return b""


def read_whole(path: Path, most: int, instead: str) -> bytes:
    """The whole content of a recording of at most `most` bytes; `instead` is the remedy in the
    error message for larger ones.
    """
    with open_recording(path) as file:
        content = file.read(most + 1)
        broken = file.broken
    if len(content) > most:
        raise InputError(f"{path}: more than {most >> 20} MiB: {instead}")
    if broken:
        raise InputError(f"{path}: {broken}")
    return content


def open_plain(path: Path) -> io.FileIO:
    """Open a regular file for its raw bytes. The check is on the opened file, so that the path
    cannot change in between.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:  # a zero byte
        raise InputError(f"{str(path)!r}: {error}") from None
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        what = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise InputError(f"{path}: {what}, not a file")
    return io.FileIO(number, "rb")


def _recording(path: Path, file: io.FileIO) -> Recording:
    recording = Recording(file, _PIECE)
    if _begins(recording).startswith(GZIP):
        inflated = _Inflated(path, recording)
        recording = Recording(inflated, _PIECE)
        recording.inflated = inflated
    head = _begins(recording)
    _refuse(path, head)
    for mark, encoding in _WIDE:
        if head.startswith(mark):
            wide, recording = recording, Recording(_Utf8(recording, encoding), _PIECE)
            recording.inflated = wide.inflated
            break
    return recording


def _begins(file: io.BufferedReader) -> bytes:
    return file.peek()[:512]


def _refuse(path: Path, head: bytes) -> None:
    position, mark = _TAR
    forms = [(what, command) for begin, what, command in _FORMS if head.startswith(begin)]
    if head[position] == mark:
        forms = [("a tar archive", "tar xf {}")]
    for what, command in forms:
        unpack = command.format(shlex.quote(shown(path.name)))
        raise InputError(f"{path}: {what}, not supported: unpack it first ({unpack})")


class _Inflated(io.RawIOBase):
    """Decompressed gzip members, one after the other."""

    def __init__(self, path: Path, file: io.BufferedReader) -> None:
        self._path, self._file = path, file
        self._unzip: Any = inflating()
        self._total = 0
        self._most = max(INFLATED_BYTES, INFLATED_TIMES * os.fstat(file.fileno()).st_size)
        self.broken = ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as there is content, so that one `peek` is enough."""
        view, at = memoryview(buffer).cast("B"), 0
        while at < len(view) and not self.broken:
            part = self._next(len(view) - at)
            if part is None:
                break
            view[at : at + len(part)] = part
            at += len(part)
        self._total += at
        if self._total > self._most:
            raise InputError(
                f"{self._path}: inflates to more than {self._most >> 20:,} MiB, "
                f"{INFLATED_TIMES} times its size: unpack it first "
                f"(gzip -dc {shlex.quote(shown(self._path.name))} > NEW)"
            )
        return at

    def _next(self, most: int) -> bytes | None:
        """The next bytes, perhaps none; None at the end."""
        unzip = self._unzip
        try:
            if not unzip.eof:
                part = unzip.unconsumed_tail or self._file.read(_PIECE)
                inflated: bytes = unzip.decompress(part, most)
                if not inflated and not part and not unzip.eof:
                    self.broken = "gzip: the file ends in the middle"
                return inflated
            rest = unzip.unused_data.lstrip(b"\x00")  # tapes pad blocks with zeros
            while not rest and (part := self._file.read(_PIECE)):
                rest = part.lstrip(b"\x00")
            if not rest:
                return None
            self._unzip = unzip = inflating()
            return bytes(unzip.decompress(rest, most))
        except BROKEN as error:
            self.broken = f"gzip: {error}"
            return None


class _Utf8(io.RawIOBase):
    """UTF-16 or UTF-32 as UTF-8; invalid characters are replaced."""

    def __init__(self, file: io.BufferedReader, encoding: str) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view, part = memoryview(buffer).cast("B"), b"-"
        while not self._left and part:
            part = self._file.read(_PIECE)
            self._left = self._decoder.decode(part, final=not part).encode("utf-8", "replace")
        now, self._left = self._left[: len(view)], self._left[len(view) :]
        view[: len(now)] = now
        return len(now)
