"""`doctor`: what works on this machine, what is missing, and the command that installs it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from computeflow import __version__, codec
from computeflow.answers.answer import Answer
from computeflow.catalog import Catalog
from computeflow.catalog.loading import KINDS, user_files
from computeflow.errors import ComputeFlowError
from computeflow.views.tables import Table, columns

_CORE = ("click", "msgspec", "numpy", "rich")
_OPTIONAL = {
    "torch": ("to train and probe on this machine", "pip install torch"),
    "plotly": ("to write reports (--html)", "pip install 'computeflow[plot]'"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    state: Literal["ok", "missing", "wrong", "broken"]
    """wrong: an error in a file of the user's. broken: an error in the installation."""
    detail: str
    fix: str = ""
    """The command that repairs it."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DoctorAnswer(Answer):
    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> int:
        states = {check.state for check in self.checks}
        return 1 if "broken" in states else 3 if "wrong" in states else 0

    def _data(self) -> dict[str, Any]:
        return {
            "schema": "computeflow.doctor/1",
            "version": __version__,
            "checks": codec.encode(self.checks),
        }

    @property
    def headline(self) -> str:
        bad = [check.name for check in self.checks if check.state in ("wrong", "broken")]
        missing = [check.name for check in self.checks if check.state == "missing"]
        parts = [f"to repair: {', '.join(bad)}"] if bad else ["everything installed works"]
        parts += [f"optional and missing: {', '.join(missing)}"] if missing else []
        return f"computeflow {__version__}: {'; '.join(parts)}."

    def tables(self) -> list[Table]:
        rows = [(c.state, c.name, c.detail + (f"; {c.fix}" if c.fix else "")) for c in self.checks]
        return [
            Table(
                title="Checks of this installation",
                columns=columns("state", "check", "detail", wrap="detail"),
                rows=tuple(rows),
                notes=("Missing is no error: a command that needs it says so.",),
            )
        ]


def examine() -> DoctorAnswer:
    """Check the installation, the user's catalog files and the machine."""
    return DoctorAnswer(checks=tuple(check for look in _EXAMINATIONS for check in look()))


def _python() -> Iterator[Check]:
    good = sys.version_info >= (3, 11)
    yield Check(
        name="python",
        state="ok" if good else "broken",
        detail=f"{platform.python_version()} on {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} CPUs",
        fix="" if good else "install Python 3.11 or newer",
    )
    for package in _CORE:
        version = _version(package)
        yield Check(
            name=package,
            state="ok" if version else "broken",
            detail=version or "not installed",
            fix="" if version else f"pip install {package}",
        )


def _optional() -> Iterator[Check]:
    for package, (use, fix) in _OPTIONAL.items():
        version = _version(package)
        yield Check(
            name=package,
            state="ok" if version else "missing",
            detail=version or use,
            fix="" if version else fix,
        )


def _driver() -> Iterator[Check]:
    nvidia = _printed("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    amd = _printed("amd-smi", "version")
    if nvidia or amd:
        yield Check(name="accelerator", state="ok", detail="; ".join((nvidia or amd).splitlines()))
    else:
        yield Check(
            name="accelerator",
            state="missing",
            detail="neither nvidia-smi nor amd-smi answers: no driver, or no device here",
        )


def _catalog() -> Iterator[Check]:
    try:
        count = sum(len(Catalog().rows(kind)) for kind in KINDS.values())
    except ComputeFlowError as error:
        yield Check(
            name="catalog",
            state="broken",
            detail=str(error),
            fix="pip install --force-reinstall computeflow",
        )
        return
    yield Check(name="catalog", state="ok", detail=f"{count:,} rows")
    good: list[Path] = []
    for path in user_files():
        try:
            Catalog([*good, path]).check_file(path)
        except ComputeFlowError as error:
            yield Check(
                name="your catalog", state="wrong", detail=str(error), fix="mend or remove that row"
            )
        else:
            good.append(path)
            yield Check(name="your catalog", state="ok", detail=str(path))


def _data() -> Iterator[Check]:
    named = os.environ.get("COMPUTEFLOW_DATA")
    if named and Path(named).is_dir():
        yield Check(name="public data", state="ok", detail=named)
    else:
        yield Check(
            name="public data",
            state="missing",
            detail="only the longer tests and proofs read it",
            fix="set COMPUTEFLOW_DATA to its folder",
        )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _printed(command: str, *arguments: str) -> str:
    """The output of a tool; empty if it is absent, fails or hangs."""
    path = shutil.which(command)
    if not path:
        return ""
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


_EXAMINATIONS: tuple[Callable[[], Iterator[Check]], ...] = (
    _python,
    _catalog,
    _optional,
    _driver,
    _data,
)
