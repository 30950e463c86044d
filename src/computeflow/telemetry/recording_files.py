"""Files that the user names: which of them are recordings, and which are left out and why."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from computeflow.errors import InputError
from computeflow.files.limits import FILES, HEAD_BYTES

ENDINGS = (".json", ".json.gz", ".gz", ".trace")
_SIGNS = (b'"traceEvents"', b'"deviceProperties"', b'"baseTimeNanoseconds"', b'"distributedInfo"')


def other_kinds(counts: Counter[str]) -> list[str]:
    """A note that counts files of unknown kind by their ending; none where there are none."""
    kinds = ", ".join(f"{n:,} {ending}" for ending, n in counts.most_common(5))
    return [f"files of other kinds: {kinds}"] if kinds else []


def files_of(path: Path, notes: list[str]) -> Iterator[Path]:
    """The file itself, or all files of a folder; what cannot be listed goes to the notes."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:  # a zero byte
        raise InputError(f"{str(path)!r}: {error}") from None
    if stat.S_ISREG(mode):
        yield path
    elif stat.S_ISDIR(mode):
        for count, file in enumerate(_files(path, notes)):
            if count >= FILES:
                notes.append(f"{path}: only the first {FILES:,} files were read")
                return
            yield file
    else:
        raise InputError(f"{path}: a device or a pipe, not a file")


def _files(folder: Path, notes: list[str]) -> Iterator[Path]:
    """Files of a folder and its subfolders in order of name; hidden ones, such as our own results,
    are skipped.
    """

    def note_error(error: OSError) -> None:
        notes.append(f"{error.filename}: {error.strerror or error}")

    for where, folders, files in os.walk(folder, onerror=note_error):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield Path(where) / name


def looks_like_trace(path: Path, head: bytes) -> bool:
    """Whether the ending and the first kilobytes are those of a Chrome trace."""
    if not path.name.endswith(ENDINGS):
        return False
    opening = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if opening == b"[":
        return b'"ph"' in head
    return opening == b"{" and any(sign in head for sign in _SIGNS)


NEVER_RECORDED = (
    "the profiler's schedule never came to `active`, or the export did not run to its end"
)


def is_empty_trace(path: Path, head: bytes) -> bool:
    """Whether a file with the ending of a trace holds nothing, by its decompressed beginning."""
    nothing = head.strip(b"\xef\xbb\xbf \t\r\n\x00") in (b"", b"{}", b"[]")
    return nothing and len(head) < HEAD_BYTES and path.name.endswith(ENDINGS)


def empty_files(files: Sequence[Path]) -> list[str]:
    """A note on files with the ending of a trace that hold nothing; none where there are none."""
    if not files:
        return []
    if len(files) == 1:
        return [f"{files[0]}: empty: if it is a trace, {NEVER_RECORDED}"]
    names = ", ".join(file.name for file in files[:3]) + (", ..." if len(files) > 3 else "")
    return [f"{len(files):,} empty files ({names}): if they are traces, {NEVER_RECORDED}"]


def is_xla_trace(head: bytes) -> bool:
    """Whether XLA's profiler wrote this Chrome trace, by the keys before its events."""
    return b'"highres-ticks"' in head[:4096]
