"""Record and compare the JSON of many commands, to see what a change of the code changes.

    python -m benchmarks.record_answers build/before
    python -m benchmarks.record_answers build/after
    python -m benchmarks.record_answers --compare build/before build/after

`answers.txt` has the commands. Figures of the moment (seconds that a search took) are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COMMANDS = ROOT / "benchmarks" / "answers.txt"
OF_THE_MOMENT = {"search_seconds", "made_on"}
CLOSE = 1e-9
"""Largest relative difference of two numbers that counts as rounding."""


def commands() -> list[str]:
    lines = COMMANDS.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def record(folder: Path, first: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = os.environ.get("COMPUTEFLOW_DATA", str(ROOT.parent / "shared" / "data"))
    for number, command in list(enumerate(commands()))[first:]:
        words = command.replace("$DATA", data).split()
        done = subprocess.run(
            [sys.executable, "-m", "computeflow.cli", *words, "-o", "json"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        answer = json.loads(done.stdout) if done.stdout.strip() else done.stderr.strip()
        kept = {"command": command, "exit": done.returncode, "answer": answer}
        (folder / f"{number:03}.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")
        print(f"{done.returncode} {command}", flush=True)


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Paths of values that are gone, new or different."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys() - OF_THE_MOMENT):
            if key in OF_THE_MOMENT:
                continue
            if key not in after:
                yield f"{path}.{key}: gone"
            elif key not in before:
                yield f"{path}.{key}: new"
            else:
                yield from differences(before[key], after[key], f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (first, second) in enumerate(zip(before, after, strict=True)):
            yield from differences(first, second, f"{path}[{index}]")
    elif not _same(before, after):
        yield f"{path}: {_short(before)} -> {_short(after)}"


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float | int):
        return abs(first - second) <= CLOSE * max(abs(first), abs(second))
    return bool(first == second)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 160 else f"{text[:157]}..."


def read(folder: Path) -> dict[str, Any]:
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return {record["command"]: record for record in kept}


def compare(first: Path, second: Path) -> None:
    before, after = read(first), read(second)
    same = 0
    for command in before:
        if command not in after:
            print(f"{command}\n  not recorded again")
            continue
        changed = list(differences(before[command], after[command]))
        same += not changed
        if changed:
            print(command, *changed[:40], sep="\n  ")
    print(f"{same} of {len(before)} answers are the same")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--first", type=int, default=0, help="Number of the first command.")
    parser.add_argument("folders", nargs="+", type=Path)
    given = parser.parse_args()
    if given.compare:
        compare(*given.folders)
    else:
        record(given.folders[0], given.first)


if __name__ == "__main__":
    main()
