"""Predictions of runs whose source, device or stack was left out; benchmarks/reports/unseen.md.

    python -m benchmarks.prove_unseen [--found] [--write]

Every run of the packaged tables is predicted by evidence that never saw its source; then also without
its device, its stack, or both together. The formulas' own figures are no fit to these runs, but were
made with some of them in view (docs/accuracy.md says which), so the columns "formulas" and "left out"
are development figures for those sources. Ranges are nested: their widths are set on the other sources.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.collect_cases import packaged_cases, seen
from computeflow.prediction.evidence import SeenRun
from computeflow.prediction.evidence.maturity import Deviations
from computeflow.prediction.evidence.rests_on import CLASSES
from computeflow.prediction.parameters import load_parameters
from computeflow.prediction.published_runs import MeasuredRun, step_inputs_of
from computeflow.prediction.ranges import QUANTILES
from computeflow.prediction.step import account_step
from computeflow.prediction.validation.leave_out import By, LeftOut, leave_out

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
REPORT = Path(__file__).parent / "reports" / "unseen.md"
LOW, HIGH = 0.10, 0.90
OWN = "computeflow-h200"
CHANGED = 0.01
"""Change of the step from which a term counts for a run."""
FEW = 5
"""Rows from which a source stands in the table of sources."""


def errors(log_ratios: Floats) -> Floats:
    return np.asarray(np.abs(np.exp(-log_ratios) - 1))


def line(
    name: str,
    ratios: Floats,
    inside: Mask,
    widths: Floats,
    stated: tuple[Mask, Floats] | None = None,
) -> str:
    size, judged = errors(ratios), widths > 0
    bias = float(np.median(np.exp(-ratios) - 1))
    held = "- | -"
    if judged.any():
        held = f"{100 * inside[judged].mean():.0f} % | {np.median(widths[judged]):.2f}"
    if stated is not None:
        held = f"{100 * stated[0].mean():.0f} % | {np.median(stated[1]):.2f} | {held}"
    return (
        f"| {name} | {len(ratios)} | {100 * np.median(size):.1f} % | {100 * size.mean():.1f} % | "
        f"{100 * bias:+.1f} % | {held} |"
    )


HEADER = [
    "| runs | n | median | mean | median bias | inside | width | nested: inside | width |",
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
]


def table(
    names: Sequence[str], found: LeftOut, sources: Sequence[str], *, least: int = 1
) -> list[str]:
    """Errors by name; the stated range, and one whose ends are set without the run's source."""
    inside, widths = nested(found, sources)
    stated = np.array([high / low for low, high in (spread.range for spread in found.spreads)])
    lines, values = [*HEADER], np.array(names)
    for name in dict.fromkeys(names):
        rows = values == name
        if rows.sum() >= least:
            said = found.inside[rows], stated[rows]
            lines.append(line(name, found.log_ratios[rows], inside[rows], widths[rows], said))
    return lines


def nested(found: LeftOut, sources: Sequence[str]) -> tuple[Mask, Floats]:
    """Whether each run is inside of a range whose quantiles were set without its source, and the
    range's width: 0 where no other source is as far from evidence.
    """
    deviations = np.array([spread.deviation for spread in found.spreads])
    distances = np.array([spread.distance for spread in found.spreads])
    scores, names = found.log_ratios / deviations, np.array(sources)
    inside, widths = np.zeros(len(scores), bool), np.zeros(len(scores))
    for source in np.unique(names):
        for distance in CLASSES:
            own = (names == source) & (distances == distance)
            others = (names != source) & (distances == distance)
            if own.any() and others.sum() >= FEW:
                low, high = quantiles(scores[others], names[others])
                inside[own] = (scores[own] >= low) & (scores[own] <= high)
                widths[own] = np.exp((high - low) * deviations[own])
    return inside, widths


def quantiles(scores: Floats, sources: NDArray[np.str_]) -> tuple[float, float]:
    """Ends that hold 80 % where each source weighs by the root of its rows."""
    counts = {name: (sources == name).sum() for name in np.unique(sources)}
    weights = np.array([counts[name] ** -0.5 for name in sources])
    order = np.argsort(scores)
    total = np.cumsum(weights[order]) / weights.sum()
    low, high = np.interp([LOW, HIGH], total, scores[order])
    return float(low), float(high)


def scale(gpus: int) -> str:
    for name, most in (("1 device", 1), ("2 to 8", 8), ("9 to 64", 64), ("65 to 512", 512)):
        if gpus <= most:
            return name if most == 1 else f"{name} devices"
    return "above 512 devices"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="Write the report.")
    parser.add_argument("--found", action="store_true", help="Runs that were found since.")
    options = parser.parse_args()
    cases, skipped = packaged_cases()
    cases = chosen(cases, found=options.found)
    text = report(cases, skipped)
    if options.write:
        path = REPORT.with_name("found_runs.md") if options.found else REPORT
        path.write_text(text, encoding="utf-8")
    print(text)
    return 0


def chosen(cases: Sequence[MeasuredRun], *, found: bool) -> list[MeasuredRun]:
    """Runs of the two public tables; or those found since that are beyond doubt."""
    public = [case for case in cases if case.source != OWN]
    if found:
        return [case for case in public if case.row_id.startswith("f") and case.clear]
    return [case for case in public if not case.row_id.startswith("f")]


def report(cases: Sequence[MeasuredRun], skipped: dict[str, str]) -> str:
    runs, parameters = seen(packaged_cases()[0]), load_parameters()
    sources = [case.source for case in cases]
    text = [
        "# Runs whose source, device or stack was left out",
        "",
        f"`python -m benchmarks.prove_unseen`: {len(cases)} published runs of {len(set(sources))} "
        f"sources; {len(skipped)} rows are not predicted.",
        "",
    ]
    bare = leave_out(cases, [], parameters)
    text += ["## The formulas alone", "", "| runs | n | median | mean | median bias | - | - |"]
    text.append("|---|--:|--:|--:|--:|--:|--:|")
    kinds = np.array([spread.kind for spread in bare.spreads])
    nothing = np.zeros(len(cases), bool)
    for name in ("all", *dict.fromkeys(kinds.tolist())):
        rows = (kinds == name) | (name == "all")
        text.append(line(name, bare.log_ratios[rows], nothing[rows], nothing[rows] * 1.0))
    text.append("")
    by: By
    for by, title in (
        ("source", "Its source left out"),
        ("device", "Its device left out, too"),
        ("stack", "Its stack left out, too"),
        ("pair", "Its device with this stack left out, too"),
    ):
        found = leave_out(cases, runs, parameters, by)
        text += [f"## {title}", ""]
        for names, least in groupings(cases, found, every=by == "source"):
            text += [*table(names, found, sources, least=least), ""]
        text += [stated(found), ""]
    text += ["## What each new term is worth, by the formulas alone", "", *ablations(cases), ""]
    text += ["## Spread", "", *spreads(cases, leave_out(cases, runs, parameters)), ""]
    text += ["## Other deviations of what is learned", "", *other_deviations(cases, runs), ""]
    return "\n".join(text)


TERMS: dict[str, dict[str, float]] = {
    "attention kernels of Blackwell": {"attention_old_blackwell": 1.0},
    "attention kernels of AMD": {"attention_cdna": 1.0, "attention_old_cdna": 1.0},
    "traffic of low-rank updates": {"low_rank_bytes": 1e-12},
    "unpacking of 4-bit weights": {"unpack_bytes": 1e-12},
}
"""New terms, and the parameters that take them out."""


def ablations(cases: Sequence[MeasuredRun]) -> list[str]:
    """Errors of the formulas on the runs that a term changes, with it and without."""
    lines = [
        "| without | runs it changes | median | mean | with it, median | mean |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    inputs, parameters = step_inputs_of(cases), load_parameters()
    measured = np.array([case.measured_seconds for case in cases])
    seconds = account_step(inputs, parameters).seconds
    variants = {
        name: account_step(inputs, parameters.replaced(values)).seconds
        for name, values in TERMS.items()
    }
    ones = np.ones(len(inputs))
    plain = replace(inputs, host_step=0 * ones)
    variants["host time of the Hugging Face Trainer's step"] = account_step(
        plain, parameters
    ).seconds
    for name, without in variants.items():
        rows = np.abs(without / seconds - 1) > CHANGED
        if rows.any():
            old, new = (np.abs(found[rows] / measured[rows] - 1) for found in (without, seconds))
            cells = " | ".join(
                f"{100 * value:.1f} %"
                for value in (np.median(old), old.mean(), np.median(new), new.mean())
            )
            lines.append(f"| {name} | {rows.sum()} | {cells} |")
    return lines


def spreads(cases: Sequence[MeasuredRun], found: LeftOut) -> list[str]:
    """What the deviations of the range rest on: between sources by family, inside of them by kind."""
    sources = np.array([case.source for case in cases])
    lines = ["| runs | sources | root mean square of their medians | inside of one |"]
    lines.append("|---|--:|--:|--:|")
    for names in (
        np.array([spread.family for spread in found.spreads]),
        np.array([spread.kind for spread in found.spreads]),
    ):
        for name in dict.fromkeys(names.tolist()):
            own = [
                found.log_ratios[(names == name) & (sources == source)]
                for source in np.unique(sources[names == name])
            ]
            medians = np.array([np.median(ratios) for ratios in own])
            within = [
                1.48 * np.median(np.abs(ratios - np.median(ratios)))
                for ratios in own
                if len(ratios) >= FEW
            ]
            inside = f"{np.median(within):.2f}" if within else "-"
            between = float(np.sqrt((medians**2).mean()))
            lines.append(f"| {name} | {len(own)} | {between:.2f} | {inside} |")
    return lines


def other_deviations(cases: Sequence[MeasuredRun], runs: Sequence[SeenRun]) -> list[str]:
    """Errors with the source left out, for other scales before anything is seen."""
    lines = ["| untuned | trait | source | median | mean |", "|--:|--:|--:|--:|--:|"]
    usual = Deviations()
    others = [{"untuned": 1e-6, "trait": 1e-6}]
    others += [{"trait": value} for value in (0.001, 0.012, 0.03)]
    others += [{"untuned": value} for value in (0.03, 0.3)]
    others += [{"source": value} for value in (0.06, 0.24)]
    for changes in ({}, *others):
        scales = replace(usual, **changes)
        size = errors(leave_out(cases, runs, load_parameters(), "source", scales).log_ratios)
        lines.append(
            f"| {scales.untuned:g} | {scales.trait:g} | {scales.source:g} | "
            f"{100 * np.median(size):.1f} % | {100 * size.mean():.1f} % |"
        )
    return lines


def groupings(
    cases: Sequence[MeasuredRun], found: LeftOut, *, every: bool
) -> list[tuple[list[str], int]]:
    """Names of each run's groups, and the fewest rows of a group that is shown."""
    groups = [
        (["all"] * len(cases), 1),
        ([spread.kind for spread in found.spreads], 1),
        ([spread.distance for spread in found.spreads], 1),
    ]
    if every:
        groups += [
            ([scale(case.layout.gpus) for case in cases], 1),
            ([case.cluster.accelerator.name for case in cases], 3),
            ([case.stack.name for case in cases], 3),
            ([case.source for case in cases], FEW),
        ]
    return groups


def stated(found: LeftOut) -> str:
    """Quantiles that all rows together would set, beside the stated ones."""
    deviations = np.array([spread.deviation for spread in found.spreads])
    distances = np.array([spread.distance for spread in found.spreads])
    parts = []
    for distance in CLASSES:
        rows = distances == distance
        if rows.any():
            scores = found.log_ratios[rows] / deviations[rows]
            low, high = np.quantile(scores, [LOW, HIGH])
            below, above = QUANTILES[distance]
            parts.append(f"{distance} {low:.2f} to {high:.2f} (stated {-below} to {above})")
    return "Deviations that hold 80 %: " + "; ".join(parts) + "."


if __name__ == "__main__":
    sys.exit(main())
