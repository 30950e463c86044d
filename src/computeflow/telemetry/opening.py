"""The one way to open a recording: `open_recording`; `head_of`, `tail_of` and `read_whole` of one;
`open_plain` for its bytes as they lie there.

What a path leads to is looked at after it was opened, so that nothing is waited for: pipes and devices
are refused, and so are archives and compressions that are not read, with what unpacks them. Gzip is
inflated on the way; UTF-16 and UTF-32 arrive as UTF-8.
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
from computeflow.telemetry.inflate import BROKEN, inflating

GZIP = b"\x1f\x8b"
_PIECE = 1 << 18
_FORMS = (
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "zstd -d"),
    (b"\xfd7zXZ\x00", "compressed by xz", "xz -d"),
    (b"BZh", "compressed by bzip2", "bzip2 -d"),
    (b"\x04\x22\x4d\x18", "compressed by lz4", "lz4 -d"),
    (b"\x1f\x9d", "compressed by compress", "uncompress"),
    (b"PK\x03\x04", "a zip archive", "unzip"),
    (b"PK\x05\x06", "a zip archive", "unzip"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x"),
    (b"Rar!\x1a\x07", "a rar archive", "unrar x"),
    (GZIP, "compressed twice", "gunzip"),
)
"""How a file begins that is not read, what it is, and what unpacks it."""
PACKED = (".zst", ".xz", ".bz2", ".lz4", ".zip", ".7z", ".rar", ".tar", ".tgz", ".tar.gz")
_TAR = slice(257, 262), b"ustar"
_WIDE = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
"""The wider first: a mark of UTF-32 begins as one of UTF-16 does."""


class Recording(io.BufferedReader):
    """Its bytes, inflated; what is broken ends them, and `broken` says so."""

    inflated: _Inflated | None = None

    @property
    def broken(self) -> str:
        return self.inflated.broken if self.inflated else ""


@contextmanager
def open_recording(path: Path) -> Iterator[Recording]:
    """Every failure of opening and reading is an `InputError`."""
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
    """The end of a file as it lies there; b"" where it is compressed or cannot be read."""
    try:
        with open_plain(path) as file:
            if file.read(2) == GZIP:
                return b""
            file.seek(max(file.seek(0, os.SEEK_END) - size, 0))
            return file.readall()[:size]
    except (OSError, InputError):
        return b""


def read_whole(path: Path, most: int, instead: str) -> bytes:
    """All of a recording; `instead`: what to say where it holds more than that."""
    with open_recording(path) as file:
        content = file.read(most + 1)
        broken = file.broken
    if len(content) > most:
        raise InputError(f"{path}: more than {most >> 20} MiB: {instead}")
    if broken:
        raise InputError(f"{path}: {broken}")
    return content


def open_plain(path: Path) -> io.FileIO:
    """Bytes as they lie in a plain file: known to be one by what was opened, not by what its name led
    to before.
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
    place, mark = _TAR
    forms = [(what, tool) for begin, what, tool in _FORMS if head.startswith(begin)]
    if head[place] == mark:
        forms = [("a tar archive", "tar xf")]
    for what, tool in forms:
        name = shlex.quote(shown(path.name))
        raise InputError(f"{path}: {what}, which is not opened: unpack it first ({tool} {name})")


class _Inflated(io.RawIOBase):
    """Gzip, member after member."""

    def __init__(self, path: Path, file: io.BufferedReader) -> None:
        self._path, self._file = path, file
        self._unzip: Any = inflating()
        self._total = 0
        self._most = max(INFLATED_BYTES, INFLATED_TIMES * os.fstat(file.fileno()).st_size)
        self.broken = ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """As much as there is room for, so that one look is enough."""
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
                f"{INFLATED_TIMES} times its size: unpack it first (gunzip)"
            )
        return at

    def _next(self, most: int) -> bytes | None:
        """Some bytes, perhaps none; None at the end."""
        unzip = self._unzip
        try:
            if not unzip.eof:
                part = unzip.unconsumed_tail or self._file.read(_PIECE)
                found: bytes = unzip.decompress(part, most)
                if not found and not part and not unzip.eof:
                    self.broken = "gzip: the file ends in the middle"
                return found
            rest = unzip.unused_data.lstrip(b"\x00")  # zeros fill a tape's block
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
    """Text of wider characters; what is no character is replaced."""

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
