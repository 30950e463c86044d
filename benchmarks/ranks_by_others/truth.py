"""The truth of a recording, from the step ends that its ranks noted."""

import csv
import json
import statistics
from pathlib import Path

from benchmarks.ranks_by_others.cases import STYLES
from benchmarks.ranks_by_others.drill import Case, Drill

COLUMNS = (
    "recording,script,half,framework,ranks,fault,culprit,account,class,annotated,shapes,marked,"
    "step_seconds_with,step_seconds_without,gain_share,gain_low,gain_high,visible,"
    "step_seconds_profiled,schedule,stages,micro_batches,bubble_share,bubble_share_without,"
    "stage_seconds"
).split(",")

UNFAULTED = ("none", "few-micro-batches")


def mean_step(ends: list[list[float]], first: int, last: int) -> float:
    """Return the mean seconds of steps `first` to `last` (not included) over all ranks."""
    return statistics.fmean((rank[last] - rank[first]) / (last - first) for rank in ends)


def block_seconds(drill: Drill, ends: list[list[float]]) -> list[float]:
    """Return the mean step of each block, off and on by turns."""
    blocks = []
    for index in range(2 * drill.case.pairs):
        start = drill.warm + index * drill.block
        blocks.append(mean_step(ends, start + drill.case.skip, start + drill.block))
    return blocks


def profiled_seconds(drill: Drill, ends: list[list[float]]) -> float:
    """Return the mean profiled step, without the first one where the profiler starts."""
    period = max(drill.case.period, drill.case.every)
    count = max(1, (drill.case.profiled - 1) // period) * period
    return mean_step(ends, drill.steps - count, drill.steps)


def gains(blocks: list[float]) -> list[float]:
    """Return the share of the step that goes away, for each pair of neighbouring blocks."""
    shares = []
    for index in range(len(blocks) - 1):
        on, off = (index, index + 1) if index % 2 else (index + 1, index)
        shares.append(1 - blocks[off] / blocks[on])
    return shares


def bubble(case: Case, micro_batches: int) -> float:
    """Return (p - 1) / (v m + p - 1), for p ranks with v stages each and m micro-batches."""
    depth = case.stages // case.chunks
    return (depth - 1) / (case.chunks * micro_batches + depth - 1)


def schedule_seconds(case: Case) -> float:
    """Return the step of a pipeline with equal stages by arithmetic, without any overhead."""
    depth = case.stages // case.chunks
    return (case.chunks * case.micro_batches + depth - 1) * 3 * case.stage_seconds[0]


def pipeline_columns(case: Case) -> dict[str, str]:
    """Return the columns that only a pipeline fills.

    The arithmetic holds for equal stages; with unequal ones only the share without the fault is
    given.
    """
    if not case.stages:
        return {}
    equal = case.fault in UNFAULTED
    more = case.micro_batches * (4 if case.fault == "few-micro-batches" else 1)
    return {
        "schedule": STYLES[case.script].schedule,
        "stages": str(case.stages),
        "micro_batches": str(case.micro_batches),
        "bubble_share": f"{bubble(case, case.micro_batches):.4f}" if equal else "",
        "bubble_share_without": f"{bubble(case, more):.4f}",
        "stage_seconds": ";".join(f"{3 * seconds:.4f}" for seconds in case.stage_seconds),
    }


def fault_class(case: Case) -> str:
    """Return who is behind the fault: nobody (clean), a rank, several, or the job."""
    if case.fault in UNFAULTED:
        return "clean"
    return {0: "job", 1: "rank"}.get(len(case.culprits), "ranks")


def measure(case: Case, ends: list[list[float]]) -> dict[str, str]:
    """Return the row of truth.csv."""
    drill = Drill(case=case, rank=0)
    blocks = block_seconds(drill, ends)
    shares = gains(blocks)
    without, with_fault = statistics.median(blocks[::2]), statistics.median(blocks[1::2])
    gain = 0.0 if case.fault == "none" else 1 - without / with_fault
    visible = case.fault != "none" and min(shares) > 0 and gain > max(shares) - min(shares)
    style = STYLES[case.script]
    row = dict.fromkeys(COLUMNS, "")
    row |= {
        "recording": case.recording,
        "script": case.script,
        "half": "judge",
        "framework": style.framework,
        "ranks": str(case.ranks),
        "fault": case.fault,
        "culprit": ";".join(map(str, case.culprits)),
        "account": case.account,
        "class": fault_class(case),
        "annotated": str(style.annotated),
        "shapes": str(style.shapes),
        "marked": str(style.marked),
        "step_seconds_with": f"{with_fault:.6f}",
        "step_seconds_without": f"{without:.6f}",
        "gain_share": f"{gain:.4f}",
        "gain_low": f"{min(shares):.4f}",
        "gain_high": f"{max(shares):.4f}",
        "visible": str(visible),
        "step_seconds_profiled": f"{profiled_seconds(drill, ends):.6f}",
    }
    return row | pipeline_columns(case)


def read_ends(case: Case, work: Path) -> list[list[float]]:
    """Return the step ends of all ranks."""
    return [json.loads((work / f"ends{rank}.json").read_text()) for rank in range(case.ranks)]


def write_truth(rows: list[dict[str, str]], path: Path) -> None:
    """Write truth.csv, sorted by recording."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: row["recording"]))
