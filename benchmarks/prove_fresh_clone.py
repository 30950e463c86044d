"""A newcomer's machine: clone, `make demo`, `make test`, twice each; then the wheel on its own.

Runs in a temporary folder with an empty environment; writes benchmarks/reports/fresh_clone.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "reports" / "fresh_clone.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    command: str
    exit_code: int
    wall_seconds: float
    cpu_seconds: float
    last_line: str


def clean_environment(home: Path) -> dict[str, str]:
    """An environment with only the search path and the locale of this shell."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin:" + str(Path(sys.base_prefix) / "bin"),
        "HOME": str(home),
        "LANG": "C.UTF-8",
    }


def run(command: str, folder: Path, home: Path) -> Run:
    print(f"  {command}", flush=True)
    before, start = os.times(), time.monotonic()
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=clean_environment(home),
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    after = os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    lines = [line for line in done.stdout.strip().splitlines() if "WARNING" not in line]
    return Run(
        command=command,
        exit_code=done.returncode,
        wall_seconds=time.monotonic() - start,
        cpu_seconds=cpu,
        last_line=lines[-1].strip().replace(str(folder), "...")[:90] if lines else "",
    )


def prove(folder: Path) -> list[Run]:
    clone, home, elsewhere = folder / "clone", folder / "home", folder / "elsewhere"
    for path in (home, elsewhere):
        path.mkdir()
    steps = [(f"git clone --quiet {ROOT} {clone}", folder)]
    steps += [(target, clone) for target in ("make demo", "make demo", "make test", "make test")]
    steps += [
        (".venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist .", clone),
        ("python3 -m venv venv && venv/bin/pip install --quiet ../clone/dist/*.whl", elsewhere),
        ("venv/bin/computeflow catalog h100-sxm", elsewhere),
        ("venv/bin/computeflow doctor", elsewhere),
        ("venv/bin/computeflow catalog h100-smx", elsewhere),
    ]
    return [run(command, where, home) for command, where in steps]


def report(runs: list[Run]) -> str:
    lines = [
        "# A fresh clone in an empty environment",
        "",
        "Made by `make proofs` (`benchmarks/prove_fresh_clone.py`).",
        f"Python {sys.version.split()[0]}, {os.cpu_count()} CPUs.",
        "",
        "| command | exit | wall s | CPU s | last line |",
        "|---|---|---|---|---|",
    ]
    for done in runs:
        command = done.command.split(" /", maxsplit=1)[0]
        last = done.last_line.replace("|", "\\|")
        lines.append(
            f"| `{command}` | {done.exit_code} | {done.wall_seconds:.1f} | {done.cpu_seconds:.1f} "
            f"| {last} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        runs = prove(Path(folder))
    REPORT.write_text(report(runs))
    print(report(runs))
    expected = [0] * (len(runs) - 1) + [2]
    return 0 if [done.exit_code for done in runs] == expected else 1


if __name__ == "__main__":
    sys.exit(main())
