"""Starting is cheap, measured against importing numpy: a busy or slow machine inflates both alike."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

JOB = "llama-3.1-70b --on h100-sxm:512 --global-batch 1024 --seq-len 8192 --tp 4 --pp 4"
NUMPY = ("-c", "import numpy")


def cpu_seconds(*commands: tuple[str, ...]) -> list[float]:
    """The least CPU time of six runs of each, in turns; the first keeps the bytecode, as an installed
    package has. Without numpy's threads that spin, from which the command line keeps itself too.
    """
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "OPENBLAS_THREAD_TIMEOUT": "4"}
    rounds = []
    for _ in range(6):
        times = []
        for command in commands:
            process = subprocess.Popen(
                [sys.executable, *command], stdout=subprocess.DEVNULL, env=environment
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0
            times.append(usage.ru_utime + usage.ru_stime)
        rounds.append(times)
    return [min(times) for times in zip(*rounds, strict=True)]


MOST = 3.5
"""Largest CPU time, in imports of numpy. On an idle machine a row takes 1.5 and a prediction 2.5, and
up to a fifth more where caches are shared with another process."""


def test_showing_a_row_costs_a_few_times_importing_numpy() -> None:
    show = ("-m", "computeflow.cli", "catalog", "h100-sxm", "-o")
    numpy, table, data = cpu_seconds(NUMPY, (*show, "table"), (*show, "json"))
    assert max(table, data) < MOST * numpy


def test_predicting_costs_a_few_times_importing_numpy() -> None:
    numpy, full = cpu_seconds(NUMPY, ("-m", "computeflow.cli", "predict", *JOB.split()))
    assert full < MOST * numpy


def imported(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_importing_the_package_pulls_in_nothing() -> None:
    bare = imported("pass")
    assert imported("import computeflow") - bare <= {"computeflow", *sys.stdlib_module_names}


@pytest.mark.parametrize("area", ["ledger", "catalog", "units"])
def test_computing_packages_need_no_third_party_import(area: str) -> None:
    extra = imported(f"import computeflow.{area}") - imported("pass")
    assert extra - set(sys.stdlib_module_names) <= {"computeflow", "numpy"}
