"""Writing what was asked for beside the answer. The one place where answers write files."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from computeflow.errors import InputError


def check_target(target: str | PathLike[str] | None, option: str) -> None:
    """Say before the work what would fail after it."""
    if target is None:
        return
    path = Path(target)
    if path.is_dir() or not path.parent.is_dir():
        what = f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise InputError(f"{option} {path}: {what}")


def write_text(path: Path, text: str, option: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror or error}") from None


def write_folder(folder: Path, files: dict[str, str]) -> None:
    """Texts by their names below `folder`."""
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from None


def write_new(
    path: Path, text: str, *, read: Sequence[Path], force: bool, ending: str, why: str
) -> None:
    """All of `text` or nothing, and never over what the user would miss: the files that were `read`."""
    if path.suffix.lower() != ending:
        raise InputError(f"{path}: {why}")
    partial = path.with_name(f".{path.name}.partial")
    try:
        if path.exists():
            if any(path.samefile(source) for source in read):
                raise InputError(f"{path}: that is what was read: choose another name")
            if not force:
                raise InputError(f"{path}: is already there: --force writes over it")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(f"{path}: {error.strerror or error}") from None
