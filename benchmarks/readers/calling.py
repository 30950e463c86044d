"""Calls to readers of configurations: the content written to a file, the answer rendered."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from benchmarks.readers.reader import ROOT
from computeflow.answers.answer import Answer
from computeflow.catalog import Catalog, load_catalog
from computeflow.codec import to_json
from computeflow.files.reading import read_text

EXAMPLES = ROOT / "examples"
PACKAGED = ROOT / "src" / "computeflow"


@cache
def facts() -> Catalog:
    return load_catalog()


def shown(answer: Answer) -> object:
    to_json(answer.to_dict())
    return answer.tables()


def written(content: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def text_of(content: bytes, folder: Path) -> str:
    return read_text(written(content, folder, "file"))
