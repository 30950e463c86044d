"""What the replay costs: benchmarks/reports/replay_speed.md.

    python -m benchmarks.measure_replay FOLDER...
    python -m benchmarks.measure_replay FOLDER... --recording NAME    another one, printed only

CPU-seconds of `audit` and its findings on one recording (`gpt2_accumulate`), each in a process of its
own and in turn: the code before the replay (from the repository's history), without replay and with
it. Reading is in all of them; the start of the interpreter and imports are not.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.foreign.unpack import traces_of, unpacked

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "reports" / "replay_speed.md"
RECORDING = "gpt2_accumulate"
BEFORE = "33eea6f"
"""The last commit without a replay."""
ROUNDS = 5
MAX_RATIO, MAX_SECONDS = 1.1, 3.0
"""What was asked for: without replay, over the code before; with it."""

PROGRAM = """
import json, re, sys, time
from pathlib import Path
from computeflow.catalog import load_catalog
from computeflow.diagnosis import diagnose
from computeflow.telemetry.trace_audit import audit
from computeflow.telemetry.traces.rank_measurements import TraceOptions
path, kind = sys.argv[1:]
catalog = load_catalog(())
options = TraceOptions(replay=False) if kind == "without replay" else TraceOptions()
began = time.process_time()
audited = audit([Path(path)], catalog, options=options, cache=False)
diagnose(audited, catalog)
memory = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())
print(json.dumps({
    "seconds": time.process_time() - began,
    "events": audited.ranks[0].events,
    "peak": 1024 * int(memory[1]),
}))
"""


def source_before(folder: Path) -> Path | None:
    """The code of `BEFORE`, extracted; None without the history."""
    packed = subprocess.run(
        ["git", "archive", BEFORE, "src"], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder / "src"


def measure(source: Path, trace: Path, kind: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(trace), kind],
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        check=True,
    )
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def report(runs: dict[str, list[dict[str, float]]], recording: str) -> str:
    events = next(iter(runs.values()))[0]["events"]
    lines = [
        "# What the replay costs",
        "",
        f"Made by `python -m benchmarks.measure_replay FOLDER...`: CPU-seconds of `audit` on "
        f"`{recording}` ({events:,.0f} events), {ROUNDS} rounds in turn, each in a process of its "
        "own; median of the rounds, and of their ratios. Before is commit "
        f"{BEFORE}. Asked for: without replay at most {MAX_RATIO} times the code before, with it at "
        f"most {MAX_SECONDS:g} CPU-s.",
        "",
        "| code | CPU-s | times the code before | peak memory |",
        "|---|---:|---:|---:|",
    ]
    first = runs.get("before")
    for kind, rounds in runs.items():
        ratio = "-"
        if first is not None:
            ratios = [a["seconds"] / b["seconds"] for a, b in zip(rounds, first, strict=True)]
            ratio = f"{median(ratios):.2f}"
        seconds = median(each["seconds"] for each in rounds)
        peak = max(each["peak"] for each in rounds)
        lines.append(f"| {kind} | {seconds:.2f} | {ratio} | {peak / 1e6:.0f} MB |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--recording", default=RECORDING)
    arguments = parser.parse_args()
    packed = traces_of(arguments.folders)[arguments.recording]
    with tempfile.TemporaryDirectory() as folder, unpacked(packed) as trace:
        before = source_before(Path(folder))
        kinds = {"before": before} if before is not None else {}
        kinds |= {"without replay": ROOT / "src", "with all counterfactuals": ROOT / "src"}
        runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for _ in range(ROUNDS):
            for kind, source in kinds.items():
                runs[kind].append(measure(source, trace, kind))
    text = report(runs, arguments.recording)
    if arguments.recording == RECORDING:
        REPORT.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
