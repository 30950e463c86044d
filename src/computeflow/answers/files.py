"""Writing what was asked for beside the answer. The one place where answers write files."""

from __future__ import annotations

from pathlib import Path

from computeflow.errors import InputError


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
