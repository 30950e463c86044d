"""The wheel works without the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_wheel_carries_the_catalog_and_runs_on_its_own(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", str(tmp_path), str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    done = subprocess.run(
        [sys.executable, "-m", "computeflow.cli", "catalog", "h100-sxm"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(unpacked)},
    )
    assert done.returncode == 0, done.stderr
    assert "bf16 989 TFLOP/s" in done.stdout
    where = subprocess.run(
        [sys.executable, "-c", "import computeflow; print(computeflow.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(unpacked)},
    )
    assert where.stdout.startswith(str(unpacked))
