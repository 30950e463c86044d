"""Recordings in folders, as `benchmarks.foreign.record` packs them: `traces_of`, `unpacked` and
`without_archives`.
"""

from __future__ import annotations

import lzma
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def traces_of(folders: Sequence[Path]) -> dict[str, Path]:
    """The traces (xz or gzip) by name; of two of one name, that of the first folder."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.json.*z")):
            found.setdefault(path.name.partition(".")[0], path)
    return found


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A trace that can be read: those packed with xz are written to a folder that is then deleted."""
    if path.suffix != ".xz":
        yield path
        return
    with tempfile.TemporaryDirectory() as work:
        opened = Path(work) / path.stem
        opened.write_bytes(lzma.decompress(path.read_bytes()))
        yield opened


@contextmanager
def without_archives(folders: Sequence[Path]) -> Iterator[list[Path]]:
    """The folders, and those into which their archives (tar) are unpacked for the while."""
    with tempfile.TemporaryDirectory() as work:
        for number, path in enumerate(
            each for some in folders for each in sorted(some.glob("*.tar"))
        ):
            with tarfile.open(path) as archive:
                archive.extractall(Path(work) / str(number), filter="data")
        yield [*folders, *sorted(Path(work).iterdir())]
