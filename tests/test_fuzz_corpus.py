"""Inputs that once made a reader fail (benchmarks/fuzz_readers.py) are read or refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from benchmarks.readers import Reader, all_readers

from computeflow.errors import ComputeFlowError

CORPUS = Path(__file__).parent / "data" / "fuzz"
READERS = {reader.name: reader for reader in all_readers()}
KEPT = sorted(path for path in CORPUS.glob("*/*"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of one call, also for what a reader caches."""
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_once_failed_is_read_or_refused(path: Path, folder: Path) -> None:
    with suppress(ComputeFlowError):
        READERS[path.parent.name].read(path.read_bytes(), folder)


@pytest.mark.parametrize(
    "reader",
    [reader for reader in READERS.values() if reader.shapes],
    ids=lambda reader: reader.name,
)
def test_what_the_fuzzer_begins_with_is_read(reader: Reader, folder: Path) -> None:
    reader.read(reader.shapes["natural"](2048), folder)
