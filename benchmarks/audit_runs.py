"""One analysis in a process of its own, for prove_audit: its CPU time, its memory, its answer.

CPU time is that of the analysis and of the processes it starts, without the interpreter's start and
imports. Memory is the most that the whole tree of processes had at once, sampled every few
milliseconds; pages that processes share count in each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("COMPUTEFLOW_PROOFS", Path.home() / ".cache" / "computeflow-proofs"))
PACKAGES = {"HTA 0.5.0": "HolisticTraceAnalysis==0.5.0", "HTA 0.6.1": "traceinsight==0.6.1"}
"""The packages of HTA, which continues under the name traceinsight."""
_CPU = """
import json, resource, sys, time
def cpu():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
"""
_HTA = (
    _CPU
    + """
from hta.trace_analysis import TraceAnalysis
before, start = cpu(), time.monotonic()
found = TraceAnalysis(trace_dir=sys.argv[1])
load = cpu() - before
parts = found.get_temporal_breakdown(visualize=False)
overlap = found.get_comm_comp_overlap(visualize=False)
found.get_gpu_kernel_breakdown(visualize=False)
used, wall = cpu() - before, time.monotonic() - start
rows = parts.merge(overlap, on="rank").to_dict("records")
print(json.dumps({"cpu": used, "wall": wall, "load": load, "rows": rows}))
"""
)
_OURS = (
    _CPU
    + """
from pathlib import Path
if sys.argv[2] == "plain":
    sys.modules["isal"] = None  # as where the extra is not installed
from computeflow.catalog import load_catalog
from computeflow.telemetry import gzip_reader
from computeflow.telemetry.trace_audit import audit
facts = load_catalog()
before, start = cpu(), time.monotonic()
found = audit([Path(sys.argv[1])], facts, cache=False)
used, wall = cpu() - before, time.monotonic() - start
rows = [{"rank": rank.rank, "idle_time(us)": rank.hta.idle_time,
         "compute_time(us)": rank.hta.compute_time,
         "non_compute_time(us)": rank.hta.non_compute_time,
         "kernel_time(us)": rank.hta.kernel_time,
         "comp_comm_overlap_pctg": rank.hta.overlap_percent} for rank in found.ranks]
events = sum(rank.events for rank in found.ranks)
print(json.dumps({"cpu": used, "wall": wall, "events": events, "rows": rows,
                  "inflater": type(gzip_reader.inflating()).__module__}))
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int
    rows: tuple[dict[str, Any], ...]
    """HTA's figures of each rank."""
    more: dict[str, Any]


def find_hta() -> dict[str, Path]:
    """Interpreters with HTA, each in an environment of its own that is made once; none offline."""
    interpreters = {}
    for name, package in PACKAGES.items():
        folder = CACHE / "hta" / package.replace("==", "-").lower()
        python = folder / "bin" / "python"
        if not (folder / "done").exists():
            venv.create(folder, with_pip=True, clear=True)
            line = [str(python), "-m", "pip", "install", "--quiet", package]
            done = subprocess.run(line, capture_output=True, text=True)
            if done.returncode:
                print(f"{package}: {done.stderr[-300:]}", flush=True)
                continue
            (folder / "done").touch()
        interpreters[name] = python
    return interpreters


def run_hta(python: Path, folder: Path) -> Run:
    return _run([str(python), "-c", _HTA, str(folder)])


def run_ours(path: Path, *, fast: bool = False) -> Run:
    """Run our audit; `fast` uses the extra of that name, ISA-L for inflating."""
    run = _run([sys.executable, "-c", _OURS, str(path), "fast" if fast else "plain"])
    if ("isal" in run.more["inflater"]) != fast:
        raise RuntimeError(f"inflated by {run.more['inflater']}, fast: {fast}")
    return run


def _run(line: list[str]) -> Run:
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    ) as process:
        peak = 0
        while process.poll() is None:  # what is printed fits into the pipe
            peak = max(peak, tree_bytes(process.pid))
            time.sleep(0.01)
        assert process.stdout is not None
        text = process.stdout.read().decode()
    if process.returncode:
        raise RuntimeError(f"{line[0]} ended with {process.returncode}")
    result = json.loads(text.splitlines()[-1])
    return Run(
        cpu_seconds=result.pop("cpu"),
        wall_seconds=result.pop("wall"),
        peak_bytes=peak,
        rows=tuple(sorted(result.pop("rows"), key=lambda row: int(row["rank"]))),
        more=result,
    )


def tree_bytes(process: int) -> int:
    """Resident memory of a process and of all below it; 0 where it is gone."""
    folder = Path("/proc") / str(process)
    try:
        pages = int((folder / "statm").read_text().split()[1])
        below = (folder / "task" / str(process) / "children").read_text().split()
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGESIZE") + sum(tree_bytes(int(child)) for child in below)
