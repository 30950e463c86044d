"""The report of the proof of exports, in words and tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from benchmarks.parsers.answers import Answer
from benchmarks.parsers.checks import CHECKS
from benchmarks.parsers.plans import CASES
from computeflow.planning.exports.config_formats import Setup

UNPROVEN = (
    "No framework trained a plan on GPUs here. Slurm, Open MPI, torchrun and Ray start ranks for real "
    "in [launchers.md](launchers.md); the manifests of Kubernetes were never applied to a cluster.",
    "Frameworks that take parts of a plan from the training script (the model, pipeline stages, data) "
    "are asked about the file only.",
    "A parser that takes a value does not promise that its kernels exist for a device.",
)


@dataclass(slots=True, kw_only=True)
class Results:
    """Results of one format."""

    named: dict[str, Answer | str] = field(default_factory=dict)
    """Answers by plan; a text says why the format refuses the plan."""
    drawn: list[Answer] = field(default_factory=list)
    drawn_refused: int = 0
    spoiled: Answer | None = None
    """Answer for the file with a misspelt key."""
    missing: str = ""
    """Why the parser could not be run."""

    @property
    def answers(self) -> list[Answer]:
        return [answer for answer in self.named.values() if isinstance(answer, Answer)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    name: str
    losses: tuple[float, ...]
    note: str
    """The failure, if any."""


def report(
    plans: dict[str, Setup], results: dict[str, Results], trained: list[Trained], drawn: int
) -> str:
    opening = [
        "# Exports, read by the projects' own parsers",
        "",
        f"Written by `python -m benchmarks.prove_exports`: {len(plans)} plans and {drawn} layouts",
        "drawn at random (any possible mix of sizes, sharding, offload, schedule, precision and",
        f"optimizer), in {len(results)} formats. No GPU was used: files were parsed, validated and",
        "built into the projects' own objects for the plan's number of GPUs, not run on them.",
    ]
    parts = [
        opening,
        parsers(results),
        stand_ins(results),
        plan_table(plans),
        matrix(plans, results),
        ["## Not taken by a parser", "", *rejections(results)],
        training(trained),
        ["## What this does not show", "", *(f"- {line}" for line in UNPROVEN)],
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def parsers(results: dict[str, Results]) -> list[str]:
    rows = []
    for name, result in results.items():
        if result.spoiled is None:
            rows.append(f"| {name} | not asked: {result.missing} | | | | | |")
            continue
        check, answers = CHECKS[name], result.answers
        taken, drawn = (sum(answer.taken for answer in some) for some in (answers, result.drawn))
        rows.append(
            f"| {name} | {check.asked}: {check.how} | {taken} of {len(answers)} "
            f"| {len(result.named) - len(answers)} | {drawn} of {len(result.drawn)} "
            f"| {result.drawn_refused} "
            f"| {'**taken**' if result.spoiled.taken else 'refused'} |"
        )
    return [
        "## Parsers",
        "",
        "One file of each format gets a misspelt key, to see that its parser would notice.",
        "",
        "| format | read by | plans taken | not written | drawn ones taken | not written | misspelt |",
        "|---|---|--:|--:|--:|--:|---|",
        *rows,
    ]


def stand_ins(results: dict[str, Results]) -> list[str]:
    known = {name: CHECKS[name].stands_in for name in results if name in CHECKS}
    return [
        "What stood in for hardware, and for packages that need it:",
        "",
        *(f"- {name}: {words}." for name, words in known.items() if words),
    ]


def plan_table(plans: dict[str, Setup]) -> list[str]:
    rows = [
        f"| {case.name} | {case.model}, {plans[case.name].job.precision} | {case.on} "
        f"| {layout_words(plans[case.name])} | {case.by} |"
        for case in CASES
    ]
    head = ["| plan | model | on | layout | chosen by |", "|---|---|---|---|---|"]
    return ["## Plans", "", *head, *rows]


def layout_words(plan: Setup) -> str:
    layout = plan.layout
    sizes = [f"{n} {v}" for n in ("tp", "pp", "vp", "cp", "ep") if (v := getattr(layout, n)) > 1]
    words = [layout.sharding, *sizes, f"dp {plan.dp}"]
    words += [f"{layout.replicas} replicas"] if layout.replicas > 1 else []
    words += [layout.schedule] if layout.schedule != "1f1b" else []
    words += [f"recompute {layout.recompute}"] if layout.recompute != "none" else []
    words += [f"offload {layout.offload}"] if layout.offload != "none" else []
    return ", ".join(words)


def matrix(plans: dict[str, Setup], results: dict[str, Results]) -> list[str]:
    reasons: dict[str, int] = {}
    rows = []
    for case in plans:
        cells = [cell(result.named.get(case), reasons) for result in results.values()]
        rows.append(f"| {case} | {' | '.join(cells)} |")
    return [
        "## Plan by format",
        "",
        "yes: the parser took every file of it. – n: ComputeFlow does not write it, for reason n.",
        "",
        f"| plan | {' | '.join(results)} |",
        f"|---|{'---|' * len(results)}",
        *rows,
        "",
        *(f"{number}. {words}" for words, number in reasons.items()),
    ]


def cell(result: Answer | str | None, reasons: dict[str, int]) -> str:
    if result is None:
        return "not asked"
    if isinstance(result, str):
        alike = re.sub(r"= \d+", "= ...", result)
        return f"– {reasons.setdefault(alike, len(reasons) + 1)}"
    return "yes" if result.taken else "**no**"


def rejections(results: dict[str, Results]) -> list[str]:
    """Files that a parser refused, similar ones together under the first error."""
    lines = []
    for name, result in results.items():
        groups: dict[str, list[str]] = {}
        for answer in (*result.answers, *result.drawn):
            if not answer.taken:
                groups.setdefault(re.sub(r"\d+", "", answer.said)[:80], []).append(answer.said)
        for words in sorted(groups.values(), key=len, reverse=True):
            lines.append(f"- {name}, {len(words)} of its files: {words[0][:300]}")
    return lines or ["Nothing."]


def training(trained: list[Trained]) -> list[str]:
    rows = []
    for run in trained:
        losses = ", ".join(f"{loss:.4f}" for loss in run.losses)
        rows.append(f"| {run.name} | {losses} | {run.note or 'the loss falls'} |")
    return [
        "## Trained",
        "",
        "Two ranks on CPUs with gloo, files as they were written for plans of two GPUs and a small",
        "batch. The model is a toy: files say nothing of weights.",
        "",
        "| format, plan | losses | |",
        "|---|---|---|",
        *rows,
    ]
