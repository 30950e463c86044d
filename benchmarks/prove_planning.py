"""Speed and quality of `plan`'s search, written to benchmarks/reports/planning.md.

Each search runs in a process of its own, so that its CPU time and memory are its own. Layout choice is
measured through the planner's own ranking, on the published grids.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.commands import run_command
from benchmarks.prove_prediction import published, shared_cases
from computeflow.planning.search import pessimistic
from computeflow.prediction import load_parameters
from computeflow.prediction.published_runs import step_inputs_of
from computeflow.prediction.step import account_step
from computeflow.prediction.validation import regret, without_stall

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "reports" / "planning.md"
SEARCHES = {
    "GPT-3 175B on 1,024 A100": [
        "gpt3-175b",
        "--on",
        "a100-80-sxm:1024",
        "--global-batch",
        "1536",
        "--seq-len",
        "2048",
    ],
    "Llama 3.1 70B on 512 H100": [
        "llama-3.1-70b",
        "--on",
        "h100-sxm:512",
        "--global-batch",
        "1024",
        "--seq-len",
        "8192",
    ],
    "DeepSeek-V3 on 2,048 H800": [
        "deepseek-v3",
        "--on",
        "h800-sxm:2048",
        "--global-batch",
        "15360",
        "--seq-len",
        "4096",
        "--precision",
        "fp8-block",
    ],
}


def search_lines() -> list[str]:
    lines = [
        "| search | enumerated | predicted | CPU-s, all of the command | peak memory | best plan |",
        "|---|---|---|---|---|---|",
    ]
    for name, arguments in SEARCHES.items():
        run = run_command("plan", *arguments, "--stack", "megatron", "-o", "json")
        answer, seconds, peak = json.loads(run.output), run.cpu_seconds, run.peak_bytes
        best = answer["plans"][0]
        layout = {k: v for k, v in best["layout"].items() if v not in (1, "none", "1f1b", "ring")}
        layout.pop("gpus")
        layout_text = ", ".join(f"{k} {v}" for k, v in layout.items())
        lines.append(
            f"| {name} | {answer['enumerated']:,} | {answer['evaluated']:,} | {seconds:.1f} | "
            f"{peak / 1e6:.0f} MB | {layout_text}: {best['step_seconds']:.1f} s, "
            f"MFU {100 * best['mfu']:.0f} % |"
        )
    return lines


def choice_lines() -> list[str]:
    sets = {"vTrain grids": [c for c in published()[0] if c.source == "vtrain-multi"]}
    if sweep := shared_cases("throughput_layout_sweep.csv.gz"):
        sets["layout sweep, without stalls"] = without_stall(sweep)
        sets["layout sweep, all rows"] = sweep
    lines = [
        "| layouts | groups | n | first choice | best of three | best of five | worst first choice |",
        "|---|---|---|---|---|---|---|",
    ]
    bad = pessimistic(load_parameters())
    for name, cases in sets.items():
        result = regret(cases, account_step(step_inputs_of(cases), bad).seconds)
        lines.append(
            f"| {name} | {result.groups} | {result.layouts} | {100 * result.first:.1f} % | "
            f"{100 * result.best_of_three:.1f} % | {100 * result.best_of_five:.1f} % | "
            f"{100 * result.worst_first:.0f} % |"
        )
    return lines


def main() -> int:
    parts = [OPENING, *search_lines(), "", CHOICE, *choice_lines(), ""]
    REPORT.write_text("\n".join(parts))
    print(REPORT.read_text())
    return 0


OPENING = """# Planning, measured

Made by `make proofs` (`benchmarks/prove_planning.py`).

## Search

One `computeflow plan ... -o json` from the shell each, on one core. Every layout of the space is
counted: predicted, or left out for a reason that the answer names. For comparison, Calculon's search
of GPT-3 on 1,024 GPUs has 11,698,528 layouts and needs core-days.
"""
CHOICE = """## Choice of layouts

How much slower than the measured best the planner's choices are, in the mean over groups, ranked by the
planner's pessimistic figure. The rule for "stall" is that of docs/accuracy.md.
"""

if __name__ == "__main__":
    sys.exit(main())
