"""Starting is cheap: measured in CPU seconds, which a busy machine does not inflate."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def cpu_seconds(*arguments: str, **variables: str) -> float:
    """The least CPU time of nine runs; the first keeps the bytecode, as an installed package has."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **variables}
    times = []
    for _ in range(9):
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.DEVNULL, env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        times.append(usage.ru_utime + usage.ru_stime)
    return min(times)


@pytest.mark.parametrize("output", ["table", "json"])
def test_showing_a_row_costs_at_most_a_quarter_of_a_cpu_second(output: str) -> None:
    bare = cpu_seconds("-c", "pass")
    full = cpu_seconds("-m", "computeflow.cli", "catalog", "h100-sxm", "-o", output)
    assert full - bare < 0.25


def test_predicting_costs_at_most_015_cpu_seconds_above_importing_numpy() -> None:
    """Importing without the threads that spin, from which the command line keeps itself too."""
    job = ["llama-3.1-70b", "--on", "h100-sxm:512", "--global-batch", "1024", "--seq-len", "8192"]
    full = cpu_seconds("-m", "computeflow.cli", "predict", *job, "--tp", "4", "--pp", "4")
    assert full - cpu_seconds("-c", "import numpy", OPENBLAS_THREAD_TIMEOUT="4") < 0.15


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
