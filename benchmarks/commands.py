"""Run one command in a process of its own and measure its cost."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    output: bytes
    cpu_seconds: float
    """User and system time, including the start of the program."""
    peak_bytes: float


def run_command(*arguments: str) -> Cost:
    """Run a command and measure it; the benchmark ends if it fails."""
    command = [sys.executable, "-m", "computeflow.cli", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    seconds = usage.ru_utime + usage.ru_stime
    return Cost(output=output, cpu_seconds=seconds, peak_bytes=1024.0 * usage.ru_maxrss)
