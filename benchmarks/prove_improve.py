"""The first change that `improve` proposes on recordings with a planted fault, against its remedy.

    python -m benchmarks.prove_improve

Writes benchmarks/reports/improve.md. The recordings are of the project's own trainer, and rules were
made on some of them: a development figure.
"""

from __future__ import annotations

import sys
from pathlib import Path

import computeflow as cf
from benchmarks.corpus import Recording, recordings

REPORT = Path(__file__).with_name("reports") / "improve.md"


def first_rule(one: Recording) -> str:
    steps = cf.improve(one.path).to_dict()["steps"]
    return str(steps[0]["rule"]) if steps else "nothing"


def main() -> None:
    labelled = [one for one in recordings() if one.rule]
    found = []
    for number, one in enumerate(labelled, 1):
        print(f"{number} of {len(labelled)}: {one.name}", file=sys.stderr)
        found.append(first_rule(one))
    missed = [(one, rule) for one, rule in zip(labelled, found, strict=True) if rule != one.rule]
    lines = [
        "# The first change of `improve` on labelled recordings",
        "",
        "Made by `python -m benchmarks.prove_improve`. The recordings are of the project's own",
        "trainer, and rules were made on some of them: a development figure.",
        "",
        f"The first change is the fault's remedy in {len(labelled) - len(missed)} of {len(labelled)}.",
        "",
        "| recording | planted | first change |",
        "|---|---|---|",
        *(f"| {one.name} | {one.rule} | {rule} |" for one, rule in missed),
        "",
    ]
    REPORT.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
