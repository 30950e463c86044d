"""`improve` on public configurations, on labelled recordings and against measured gains.

    python -m benchmarks.prove_improve

Writes benchmarks/reports/improve.md; ends with 1 where a difference is refused or does not keep its
promise. Parsers are those of `benchmarks.prove_exports`, in environments that are made once. The
recordings are of the project's own trainer, and rules were made on some of them: a development figure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import computeflow as cf
from benchmarks.corpus import ONE, Recording, recordings
from benchmarks.improve_files import ChangedFile, file_lines, is_sound, prove_files
from benchmarks.improve_gains import gain_lines, measured_gains
from computeflow.views.prose import wrap_prose

REPORT = Path(__file__).with_name("reports") / "improve.md"


def first_rule(one: Recording) -> str:
    steps = cf.improve(one.path).to_dict()["steps"]
    return str(steps[0]["rule"]) if steps else "nothing"


def first_rules(labelled: Sequence[Recording]) -> list[str]:
    found = []
    for number, one in enumerate(labelled, 1):
        print(f"{number} of {len(labelled)}: {one.name}", file=sys.stderr)
        found.append(first_rule(one))
    return found


def last_steps() -> dict[str, float]:
    """Seconds of the last step of each run on one GPU, which was not recorded."""
    rows = json.loads((ONE / "index.json").read_text())
    return {name: row["summary"]["steps"][-1]["seconds"] for name, row in rows.items()}


def recording_lines(labelled: Sequence[Recording], found: Sequence[str]) -> list[str]:
    missed = [(one, rule) for one, rule in zip(labelled, found, strict=True) if rule != one.rule]
    wrong = [one.name for one, rule in missed if rule != "nothing"]
    seconds = last_steps()
    return [
        "## The first change on labelled recordings",
        "",
        "Recordings of the project's own trainer, and rules were made on some of them: a development "
        "figure. The first change is the fault's remedy in "
        f"{len(labelled) - len(missed)} of {len(labelled)}; another remedy comes first in "
        f"{len(wrong)}, and nothing is proposed in {len(missed) - len(wrong)}.",
        "",
        "A label is what was planted, where its removal gained 3 % or more of the *recorded* run. "
        "`improve` judges the step as it runs without the profiler, which slows the host: there, "
        "these faults cost little. The last step of each run was not recorded; the last column is "
        "with the fault removed (for launch-bound: compiled blocks).",
        "",
        "| recording | planted | first change | recorded step | last step, not recorded "
        "| the same without the fault, recorded |",
        "|---|---|---|--:|--:|--:|",
        *(_missed_row(one, rule, seconds) for one, rule in missed),
    ]


def _missed_row(one: Recording, rule: str, seconds: dict[str, float]) -> str:
    row = json.loads((ONE / "index.json").read_text())[one.name]
    steps = row["summary"]["settings"]["profile_steps"]
    recorded = sorted(row["profiled_seconds"])[len(row["profiled_seconds"]) // 2] / steps
    without = row["removed_seconds"] / steps
    return (
        f"| {one.name} | {one.rule} | {rule} | {1e3 * recorded:.1f} ms "
        f"| {1e3 * seconds[one.name]:.1f} ms | {1e3 * without:.1f} ms |"
    )


def report(
    files: Sequence[ChangedFile], labelled: Sequence[Recording], found: Sequence[str]
) -> str:
    parts = [
        [
            "# `improve`: its differences, its first changes, its gains",
            "",
            "Written by `python -m benchmarks.prove_improve`.",
        ],
        file_lines(files),
        recording_lines(labelled, found),
        gain_lines(measured_gains()),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def main() -> int:
    labelled = [one for one in recordings() if one.rule]
    found = first_rules(labelled)
    files = prove_files()
    REPORT.write_text(wrap_prose(report(files, labelled, found)), encoding="utf-8")
    print(REPORT.read_text())
    return 0 if is_sound(files) else 1


if __name__ == "__main__":
    sys.exit(main())
