"""Precision and recall of the rules, and claimed against measured gains: docs/diagnosis.md.

Every labelled recording (`benchmarks/corpus.py`) is audited and diagnosed. Precision and recall are
those of the half that set no threshold; the other half is shown beside it. The counts of the judging
half become the rules' confidence (`diagnosis/figures.json`).
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.corpus import COST, EARLIER, ONE, Recording, earlier, recordings
from benchmarks.prove_foreign import COSTS
from computeflow.catalog import load_catalog
from computeflow.diagnosis import diagnose
from computeflow.diagnosis.rules import RULES
from computeflow.telemetry.trace_audit import audit
from computeflow.views.prose import wrap_prose

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "src" / "computeflow" / "diagnosis" / "figures.json"
PAGE = ROOT / "docs" / "diagnosis.md"
PUBLIC = ROOT / "benchmarks" / "reports" / "public_traces.md"
MARK = "<!-- below: made by benchmarks/prove_diagnosis.py -->"
ALLOWED = 0.25
TRACED = [rule.id for rule in RULES if rule.trace is not None or rule.step is not None]
FOREIGN = ROOT / "benchmarks" / "reports" / "foreign.json"
RANKS = ROOT / "benchmarks" / "reports" / "ranks.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    recording: Recording
    claims: dict[str, float]
    """Claimed GPU-seconds by rule."""
    window: float

    @property
    def found(self) -> bool:
        return self.recording.rule in self.claims

    @property
    def false(self) -> list[str]:
        return [rule for rule in self.claims if rule != self.recording.rule]

    @property
    def error(self) -> float | None:
        rule, saved = self.recording.rule, self.recording.saved
        if rule is None or saved is None or rule not in self.claims:
            return None
        return self.claims[rule] / saved - 1

    @property
    def within_spread(self) -> bool:
        rule, saved = self.recording.rule, self.recording.saved
        if rule is None or saved is None or rule not in self.claims:
            return False
        return abs(self.claims[rule] - saved) <= self.recording.spread


def outcomes(some: list[Recording]) -> list[Outcome]:
    catalog = load_catalog(())
    rows = []
    for recording in some:
        audited = audit([recording.path], catalog, cache=False)
        diagnosis = diagnose(audited, catalog)
        claims: dict[str, float] = {}
        for finding in diagnosis.findings:
            claims[finding.rule] = claims.get(finding.rule, 0.0) + finding.gpu_seconds
        rows.append(
            Outcome(recording=recording, claims=claims, window=audited.job.ledger.gpu_seconds)
        )
    return rows


Counts = dict[str, dict[str, int]]


def counts(rows: list[Outcome]) -> Counts:
    """True positives, false positives and misses, by rule."""
    table = {rule: {"right": 0, "wrong": 0, "missed": 0} for rule in TRACED}
    for row in rows:
        wanted = row.recording.rule
        if wanted is not None:
            table[wanted]["right" if row.found else "missed"] += 1
        for rule in row.false:
            table[rule]["wrong"] += 1
    return table


def foreign_counts() -> dict[str, dict[str, int]]:
    """The same for recordings of code that is not ours, as they were scored once."""
    table = {rule: {"right": 0, "wrong": 0, "missed": 0} for rule in TRACED}
    for row in [*json.loads(FOREIGN.read_text()), *json.loads(RANKS.read_text())]:
        if row["half"] != "judge":
            continue
        cause, found = row["cause"], row["rules"]
        if cause in found:
            table[cause]["right"] += 1
        elif cause != "none" and row["gained"] >= COSTS:
            table[cause]["missed"] += 1
        for rule in found:
            if rule != cause:
                table[rule]["wrong"] += 1
    return table


def together(one: dict[str, dict[str, int]], other: dict[str, dict[str, int]]) -> Counts:
    return {rule: {kind: one[rule][kind] + other[rule][kind] for kind in one[rule]} for rule in one}


def page(rows: list[Outcome]) -> list[str]:
    judging = [row for row in rows if row.recording.judges]
    setting = [row for row in rows if not row.recording.judges]
    healthy = [row for row in rows if row.recording.rule is None]
    errors = [abs(row.error) for row in rows if row.error is not None]
    outside = [row for row in rows if row.error is not None and abs(row.error) > ALLOWED]
    spread = [row for row in outside if row.within_spread]
    silent = sum(not row.claims for row in healthy)
    return [
        MARK,
        "",
        f"{len(rows)} recordings, {len(healthy)} of them healthy: {silent} of those without a finding.",
        f"Thresholds were set looking at {len(setting)} of them; the other {len(judging)} only judge.",
        "",
        "| rule | right, wrong, missed (judging half) | (setting half) | (others' code) | precision "
        "| recall |",
        "|---|---|---|---|---|---|",
        *_rules(counts(judging), counts(setting), foreign_counts()),
        "",
        "Precision and recall are of the judging half and of others' code together. Rules without a "
        "recording of their fault: "
        + ", ".join(f"`{rule}`" for rule in _untried(judging))
        + "; `regression`. Their confidence is 0.5, which means untried.",
        "",
        "## What is claimed, and what was gained",
        "",
        _by_half(rows),
        "",
        f"The median of {len(errors)} claims is {100 * statistics.median(errors):.0f} % off what "
        f"removing the fault gained; {len(errors) - len(outside)} of them are within "
        f"{ALLOWED:.0%}. Of the {len(outside)} others, {len(spread)} are within what the repeated "
        "runs differ by (a host-bound run of this trainer varies by a fifth from run to run).",
        "",
        "| recording | half | rule | claimed, ms | gained, ms | runs differ by, ms | off |",
        "|---|---|---|---:|---:|---:|---:|",
        *(_claim(row) for row in rows if row.error is not None),
        "",
    ]


def profiler_lines() -> list[str]:
    """Recorded steps against the one after the recording, for runs that wait for their host."""
    index = json.loads((ONE / "index.json").read_text())
    ratios = {
        name: statistics.fmean(step["seconds"] for step in row["summary"]["steps"][1:3])
        / row["summary"]["steps"][-1]["seconds"]
        for name, row in index.items()
        if row["label"] == "launch-bound"
    }
    each = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    return [
        "## What the profiler itself costs",
        "",
        "A launch-bound step takes longer while it is recorded. Recorded steps over the last step of "
        f"the same run, which is not: {each}; median {statistics.median(ratios.values()):.2f}. So of "
        "what `launch-bound` claims, part is the profiler's; `--calibrate` divides the host's factor "
        "by the median.",
        "",
    ]


def earlier_lines() -> list[str]:
    """Results on the older set, which set no threshold."""
    with tempfile.TemporaryDirectory() as folder:
        rows = outcomes(earlier(Path(folder)))
    if not rows:
        return []
    faults = [row for row in rows if row.recording.rule is not None]
    silent = [row for row in rows if row.recording.rule is None]
    errors = [abs(row.error) for row in faults if row.error is not None]
    wrong = [f"{row.recording.name} ({', '.join(row.false)})" for row in rows if row.false]
    far = [row.recording.name for row in faults if row.error is None or abs(row.error) > ALLOWED]
    return [
        "## An older set",
        "",
        f"{len(rows)} recordings of an earlier day and another H200, from the repository's history "
        f"(commit {EARLIER}), made before the rules were written and used for none of them: "
        f"{sum(row.found for row in faults)} of {len(faults)} faults found; "
        f"{sum(not row.claims for row in silent)} of {len(silent)} without a fault (or with one that "
        f"cost under {COST:.0%}) get no finding. Wrong: {', '.join(wrong) or 'none'}. The median "
        f"claim is {100 * statistics.median(errors):.0f} % off; {len(faults) - len(far)} of "
        f"{len(faults)} are within {ALLOWED:.0%}; farther: {', '.join(far) or 'none'}. There, each "
        "run was made once.",
        "",
    ]


def _by_half(rows: list[Outcome]) -> str:
    texts = []
    for name, judges in (("judging", True), ("setting", False)):
        errors = [
            abs(r.error) for r in rows if r.error is not None and r.recording.judges is judges
        ]
        near = sum(error <= ALLOWED for error in errors)
        texts.append(
            f"{name} half: {near} of {len(errors)} within {ALLOWED:.0%}, median "
            f"{100 * statistics.median(errors):.1f} %"
        )
    return "; ".join(texts).capitalize() + "."


def _untried(rows: list[Outcome]) -> list[str]:
    tried = together(counts(rows), foreign_counts())
    return [rule for rule in TRACED if not tried[rule]["right"] + tried[rule]["missed"]]


def _rules(judging: Counts, setting: Counts, foreign: Counts) -> list[str]:
    lines = []
    for rule in TRACED:
        tried = judging[rule], setting[rule], foreign[rule]
        if not any(sum(one.values()) for one in tried):
            continue
        both = {kind: judging[rule][kind] + foreign[rule][kind] for kind in judging[rule]}
        named, there = both["right"] + both["wrong"], both["right"] + both["missed"]
        precision = f"{both['right'] / named:.2f}" if named else "-"
        recall = f"{both['right'] / there:.2f}" if there else "-"
        cells = [f"{n['right']}, {n['wrong']}, {n['missed']}" for n in tried]
        lines.append(f"| `{rule}` | {' | '.join(cells)} | {precision} | {recall} |")
    return lines


def _claim(row: Outcome) -> str:
    recording = row.recording
    assert recording.rule is not None and recording.saved is not None and row.error is not None
    half = "judges" if recording.judges else "sets"
    return (
        f"| {recording.name} | {half} | `{recording.rule}` | {1e3 * row.claims[recording.rule]:,.1f} | "
        f"{1e3 * recording.saved:,.1f} | {1e3 * recording.spread:,.1f} | {100 * row.error:+.0f} % |"
    )


def public_lines() -> list[str] | None:
    """Findings on the public traces; None where those are missing."""
    folder = Path(os.environ.get("COMPUTEFLOW_DATA", ROOT.parent / "shared" / "data"))
    folder = folder / "recordings" / "kineto"
    if not folder.is_dir():
        return None
    catalog = load_catalog(())
    lines = ["| trace | device | finding | of the window | expectation |", "|---|---|---|---:|---|"]
    for group in sorted(folder.iterdir()):
        files = sorted(group.glob("*.gz"))
        for some in [files] if group.name in TOGETHER else [[file] for file in files]:
            audited = audit(some, catalog, cache=False)
            diagnosis = diagnose(audited, catalog)
            name = group.name if len(files) == len(some) else f"{group.name}: {some[0].name[:40]}"
            why = "derived" if diagnosis.expected else f"none, needs {diagnosis.expected_reason}"
            device = audited.ranks[0].device or "host"
            for finding in diagnosis.findings or (None,):
                text, share = (
                    ("none", "")
                    if finding is None
                    else (
                        f"`{finding.rule}`: {finding.title}",
                        f"{100 * finding.gpu_seconds / audited.job.ledger.gpu_seconds:.1f} %",
                    )
                )
                lines.append(f"| {name} | {device} | {text} | {share} | {why} |")
    return lines


TOGETHER = ("two_rank_dlrm128",)
"""Ranks of one job."""


def main() -> int:
    rows = outcomes(recordings())
    judged = together(counts([row for row in rows if row.recording.judges]), foreign_counts())
    tried = {rule: count for rule, count in judged.items() if sum(count.values())}
    FIGURES.write_text(
        json.dumps({"made_by": "benchmarks/prove_diagnosis.py", "rules": tried}, indent=1) + "\n"
    )
    text = PAGE.read_text().partition(MARK)[0] if PAGE.exists() else "# Diagnosis\n\n"
    lines = [*page(rows), *profiler_lines(), *earlier_lines()]
    PAGE.write_text(text + wrap_prose("\n".join(lines)))
    print("\n".join(lines))
    if (public := public_lines()) is not None:
        heading = (
            "Made by `python -m benchmarks.prove_diagnosis`; they carry no labels and set nothing."
        )
        parts = ["# Findings on the public traces", "", heading, "", *public, ""]
        PUBLIC.write_text("\n".join(parts))
    wrong = [row.recording.name for row in rows if row.false]
    missed = [row.recording.name for row in rows if row.recording.rule and not row.found]
    print(f"wrong: {wrong}; missed: {missed}; hidden faults cost under {COST:.0%}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
