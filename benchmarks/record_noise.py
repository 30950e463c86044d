"""Records healthy training for its step-time noise: `python -m benchmarks.record_noise DIR [NAME...]`.

Two and four ranks over gloo on this machine's cores, alone and beside other work. Each recording is a
run folder under DIR; `benchmarks.measure_noise DIR` reads them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_SCRIPT = Path(__file__).parent / "noise_scripts" / "steady.py"
_OTHER_WORK = """
import random, time
while True:
    until = time.perf_counter() + random.expovariate(5)
    while time.perf_counter() < until:
        pass
    time.sleep(random.expovariate(2))
"""
FACTS = "noise.json"
"""Beside the files of the ranks: how the recording was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRun:
    """A recording to make."""

    name: str
    kind: str
    ranks: int
    steps: int
    busy: bool = False


RUNS = (
    NoiseRun(name="mlp-2", kind="mlp", ranks=2, steps=1200),
    NoiseRun(name="mlp-2-busy", kind="mlp", ranks=2, steps=800, busy=True),
    NoiseRun(name="mlp-4", kind="mlp", ranks=4, steps=800),
    NoiseRun(name="transformer-2", kind="transformer", ranks=2, steps=800),
    NoiseRun(name="transformer-2-busy", kind="transformer", ranks=2, steps=600, busy=True),
    NoiseRun(name="transformer-4", kind="transformer", ranks=4, steps=600),
    NoiseRun(name="trainer-2", kind="trainer", ranks=2, steps=1000),
    NoiseRun(name="trainer-4", kind="trainer", ranks=4, steps=700),
)


def record(run: NoiseRun, folder: Path) -> None:
    out = folder / run.name
    spinner = subprocess.Popen([sys.executable, "-c", _OTHER_WORK]) if run.busy else None
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(_ROOT / "src"),
    }
    recorder = ["-m", "computeflow", "record", "--out", str(out), "--", sys.executable]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(run.ranks)]
    try:
        subprocess.run(
            [sys.executable, *recorder, *launcher, str(_SCRIPT), run.kind, str(run.steps)],
            cwd=folder,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    finally:
        if spinner is not None:
            spinner.kill()
            spinner.wait()
    facts = asdict(run) | {"cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
    (out / FACTS).write_text(json.dumps(facts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="the runs to record; all without a name")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for run in RUNS:
        if not options.names or run.name in options.names:
            record(run, options.folder)


if __name__ == "__main__":
    main()
