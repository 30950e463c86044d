"""Commands under `computeflow record`, for tests: `recorded` runs one and reads what was kept."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow.recorder.frames import FrameReader

ROOT = Path(__file__).parents[1]
FIRST = "rank-00000.attempt-0"


@dataclass(frozen=True)
class Run:
    code: int
    out: bytes
    err: bytes
    files: dict[str, list[dict[str, Any]]]

    def steps(self) -> dict[str, int]:
        return {
            name: sum(record["k"] == "s" for record in records)
            for name, records in self.files.items()
        }


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), more.pop("PYTHONPATH", "")]))
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}


def record_words(folder: Path, *command: str, quiet: bool = True) -> list[str]:
    words = [sys.executable, "-m", "computeflow", "record", *["--quiet"] * quiet]
    return [*words, "--out", str(folder), "--", *command]


def recorded(folder: Path, *command: str, quiet: bool = True, **more: str) -> Run:
    done = subprocess.run(
        record_words(folder, *command, quiet=quiet),
        capture_output=True,
        timeout=120,
        env=environment(**more),
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr, files_of(folder))


def files_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    files = {}
    for path in sorted(folder.glob("rank-*.cfr")):
        with path.open("rb") as file:
            reader = FrameReader(file)
            files[path.name.removesuffix(".cfr")] = list(reader.read())
            assert reader.damaged_bytes == 0
    return files


def script(folder: Path, text: str, name: str = "train.py") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return str(folder / name)
