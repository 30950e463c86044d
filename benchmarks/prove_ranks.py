"""Diagnosis of many ranks against measured truth; its report is benchmarks/reports/ranks.md.

    python -m benchmarks.prove_ranks FOLDER [--half fit|judge] [--write] [--report NAME]

FOLDER holds the recordings that `python -m benchmarks.ranks.record` makes, with their truth.csv. A
cause is right if the first finding names the planted rank, or none where the fault has none, and
what it did. Gains are shares of the step, measured without a profiler by switching the fault on and
off inside a run. The report is written with `--write` alone: the judging half is scored once.
`--report NAME` writes benchmarks/reports/NAME.md instead, which keeps its first score: later ones
replace the section after it.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from computeflow.catalog import Catalog, load_catalog
from computeflow.diagnosis.diagnose import diagnose, make_case
from computeflow.telemetry.trace_audit import audit

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "reports" / "ranks.md"
DATA = REPORT.with_suffix(".json")
CAUSES = {
    "slow": {"compute"},
    "stage": {"compute"},
    "save": {"checkpoint", "host", "copy"},
    "evaluate": {"evaluation", "compute"},
    "loader": {"input", "host"},
    "log": {"host"},
    "python": {"host"},
    "gc": {"host"},
    "metrics": {"compute", "host"},
    "norms": {"compute"},
    "barrier": {"host", "compute"},
}
"""Accounts of a planted fault in which its rank spends more: without an annotation, saving and
loading are host time, and evaluating is computing."""
RULES = {"unequal": "imbalance", "reduced": "repeated-reduction", "uneven-stages": "imbalance"}
"""The rule of faults that are no slow rank."""
SINCE = "## With the repairs since"
NO_FAULT = ("none", "few-micro-batches")
"""A bubble as the schedule has it is no fault of a rank: its share of the ledger is judged."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    truth: dict[str, str]
    rules: tuple[str, ...]
    ranks: tuple[int, ...]
    """Ranks that findings name."""
    cause: str
    claimed: tuple[float, float, float] | None
    bubble: float
    closed: bool

    @property
    def fault(self) -> str:
        return self.truth["fault"]

    @property
    def culprits(self) -> set[int]:
        return {int(rank) for rank in self.truth["culprit"].replace(";", " ").split()}

    @property
    def is_right(self) -> bool:
        if self.fault in NO_FAULT:
            return not self.rules
        if self.fault in RULES:
            return self.rules[:1] == (RULES[self.fault],) and not self.innocents
        named = self.rules[:1] == ("straggler-rank",) and set(self.ranks) == self.culprits
        said = set(self.truth.get("account", "").split(";"))
        return named and self.cause in CAUSES.get(self.fault, said)

    @property
    def innocents(self) -> set[int]:
        return set(self.ranks) - self.culprits

    @property
    def gain(self) -> float:
        return float(self.truth["gain_share"])

    @property
    def holds(self) -> bool:
        low, high = (float(self.truth[name] or self.gain) for name in ("gain_low", "gain_high"))
        assert self.claimed is not None
        return self.claimed[0] <= max(self.gain, low) and min(self.gain, high) <= self.claimed[2]


def score(folder: Path, truth: dict[str, str], catalog: Catalog) -> Scored:
    job = audit([folder / truth["recording"]], catalog, cache=False)
    found = diagnose(job, catalog)
    slow = together.slow if (together := make_case(job, catalog).together) else None
    claimed = None
    if found.findings and (remedy := found.findings[0].remedy) is not None:
        total = job.job.ledger.gpu_seconds
        middle = remedy.gain_gpu_seconds or 0.0
        ends = (remedy.gain_low, middle, remedy.gain_high)
        low, gain, high = ((middle if end is None else end) / total for end in ends)
        claimed = (low, gain, high)
    ledger = job.job.ledger
    return Scored(
        truth=truth,
        rules=tuple(finding.rule for finding in found.findings),
        ranks=tuple(sorted({rank for finding in found.findings for rank in finding.ranks})),
        cause=next(iter(slow.excess), "") if slow else "",
        claimed=claimed,
        bubble=ledger.booked("bubble") / ledger.gpu_seconds,
        closed=abs(sum(ledger.accounts.values()) / ledger.gpu_seconds - 1) < 1e-6,
    )


def summary(scores: Sequence[Scored]) -> list[str]:
    faults = [one for one in scores if one.fault not in NO_FAULT]
    clean = [one for one in scores if one.fault in NO_FAULT]
    priced = [one for one in faults if one.is_right and one.claimed and one.gain > 0]
    errors = [abs(one.claimed[1] / one.gain - 1) for one in priced if one.claimed]
    bubbles = [
        abs(one.bubble / float(one.truth["bubble_share"]) - 1)
        for one in clean
        if one.truth["bubble_share"]
    ]
    right = sum(one.is_right for one in faults)
    lines = [
        f"- cause and rank right: {right} of {len(faults)} ({100 * right / len(faults):.0f} %)",
        f"- recordings in which an innocent rank is named: {sum(bool(o.innocents) for o in scores)}",
        f"- runs without a fault that stay silent: {sum(o.is_right for o in clean)} of {len(clean)}",
        f"- ledgers that close: {sum(one.closed for one in scores)} of {len(scores)}",
    ]
    if errors:
        holds = sum(one.holds for one in priced)
        lines += [
            f"- claimed gain against the truth: {100 * statistics.median(errors):.0f} % off at the "
            f"median, worst {100 * max(errors):.0f} %",
            f"- the claimed range holds the truth: {holds} of {len(priced)} "
            f"({100 * holds / len(priced):.0f} %)",
        ]
    if bubbles:
        lines.append(
            f"- bubble against the schedule's arithmetic, {len(bubbles)} pipelines: "
            f"{100 * statistics.median(bubbles):.0f} % off at the median, worst "
            f"{100 * max(bubbles):.0f} %"
        )
    return lines


def table(scores: Sequence[Scored]) -> list[str]:
    lines = [
        "| recording | fault, rank | first finding, rank | what | truth | claimed | right |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in scores:
        gain = f"{100 * one.gain:.1f} %" if one.fault not in NO_FAULT else ""
        claimed = ""
        if one.claimed:
            low, middle, high = (f"{100 * value:.1f}" for value in one.claimed)
            claimed = f"{middle} % ({low} to {high})"
        if one.truth["bubble_share"] and one.fault in NO_FAULT:
            gain = f"bubble {100 * float(one.truth['bubble_share']):.1f} %"
            claimed = f"{100 * one.bubble:.1f} %"
        found = f"{one.rules[0]} {' '.join(map(str, one.ranks))}".strip() if one.rules else "none"
        planted = f"{one.fault} {one.truth['culprit']}".strip()
        lines.append(
            f"| {one.truth['recording']} | {planted} | {found} | {one.cause if one.rules else ''} | "
            f"{gain} | {claimed} | {'yes' if one.is_right else '**no**'} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=("fit", "judge"))
    parser.add_argument("--write", action="store_true", help="Write the report.")
    parser.add_argument("--report", help="Write the report of other recordings under this name.")
    options = parser.parse_args()
    catalog = load_catalog()
    kept: list[dict[str, object]] = []
    short: list[str] = []
    text = ["# Many ranks: who waits for whom", ""]
    text += [
        "Made by `python -m benchmarks.prove_ranks` on the recordings of "
        f"benchmarks/{options.report or 'ranks'}.",
        "",
    ]
    for half in (options.half,) if options.half else ("judge", "fit"):
        folder = options.folder / half
        with (folder / "truth.csv").open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if (folder / row["recording"]).is_dir()]
        scores = []
        for number, row in enumerate(rows, 1):
            print(f"{half} {number} of {len(rows)}: {row['recording']}", file=sys.stderr)
            scores.append(score(folder, row, catalog))
        kept += [_kept(one, half) for one in scores]
        title = "Scripts that only judge" if half == "judge" else "Scripts that rules were made on"
        text += [f"## {title} ({len(scores)} recordings)", "", *summary(scores), ""]
        text += [*table(scores), ""]
        short += ["", *summary(scores)]
        short += [f"- not right: {one.truth['recording']}" for one in scores if not one.is_right]
    print("\n".join(text))
    if options.write:
        REPORT.write_text("\n".join(text), encoding="utf-8")
        DATA.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    if options.report:
        _write_beside_first(REPORT.with_name(f"{options.report}.md"), text, short)


def _write_beside_first(path: Path, text: Sequence[str], short: Sequence[str]) -> None:
    """Write a report; where it has a first score already, a summary of this one after it."""
    if not path.exists():
        path.write_text("\n".join(text), encoding="utf-8")
        return
    first = path.read_text(encoding="utf-8").partition(SINCE)[0].rstrip()
    path.write_text("\n".join([first, "", SINCE, *short, ""]), encoding="utf-8")


def _kept(one: Scored, half: str) -> dict[str, object]:
    """What the rules' confidence is counted from: a finding on another rank is a wrong one."""
    cause = "none" if one.fault in NO_FAULT else RULES.get(one.fault, "straggler-rank")
    if cause in one.rules and not one.is_right:
        cause = "none"
    name, rules = one.truth["recording"], list(one.rules)
    return {"name": name, "half": half, "cause": cause, "rules": rules, "gained": one.gain}


if __name__ == "__main__":
    main()
