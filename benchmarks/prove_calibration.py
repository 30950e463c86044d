"""How much a calibration from one recording helps on other runs of its family: reports/calibration.md.

Families: the trainer's eager runs of different models, its runs with recomputation, in float32, with
attention written out (`tests/data/h200_traces`), and two models at other sequences and batches
(`benchmarks/data/h200/family`, unprofiled). In each, one recording calibrates through the file that
`audit --calibrate` writes, and the others are predicted without and with it.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from benchmarks.corpus import recordings
from computeflow import codec
from computeflow.catalog import load_catalog
from computeflow.cluster.machine import usual_cluster
from computeflow.diagnosis.calibrating import calibration_data
from computeflow.diagnosis.diagnose import make_case
from computeflow.diagnosis.model_from_shapes import InferredJob
from computeflow.diagnosis.predicted_gains import KERNEL_FACTORS
from computeflow.diagnosis.trace_case import TraceCase
from computeflow.prediction import predict
from computeflow.prediction.calibration import read_calibration
from computeflow.telemetry.trace_audit import audit

ROOT = Path(__file__).parents[1]
TRACES, FAMILY = (
    ROOT / "tests" / "data" / "h200_traces",
    ROOT / "benchmarks" / "data" / "h200" / "family",
)
REPORT = ROOT / "benchmarks" / "reports" / "calibration.md"
EAGER = (
    "base",
    "long",
    "wide",
    "deep",
    "vocabulary",
    "narrow-heads",
    "accumulated",
    "big-batch",
    "square",
)
FAMILIES = {
    "eager models": [f"healthy-{name}" for name in EAGER],
    "with recomputation": ["recompute-full", *(f"recompute-full-{n}" for n in
                                               ("wide", "long", "deep", "big"))],
    "attention written out": [f"unfused-attention{n}" for n in ("", "-wide", "-deep")],
    "float32": ["fp32-matmul", "fp32-matmul-wide"],
    "compiled block by block": ["healthy-compiled", "healthy-wide-compiled"],
}  # fmt: skip
CATALOG = load_catalog(())
CLUSTER = usual_cluster("h200", 1, CATALOG)


@dataclass(frozen=True, slots=True)
class Target:
    run: InferredJob
    seconds: float


@cache
def case_of(path: Path) -> TraceCase:
    return make_case(audit([path], CATALOG, cache=False), CATALOG)


def target(path: Path) -> Target:
    case = case_of(path)
    assert case.replay is not None
    return Target(case.replay.inferred, case.replay.step_seconds)


def errors(source: Path, targets: list[Target]) -> tuple[list[float], list[float]]:
    """Relative errors of the generic and of the calibrated predictor."""
    text = codec.to_json(calibration_data(case_of(source)))
    calibration = read_calibration(text, source.name, CATALOG)
    before, after = [], []
    for target_run in targets:
        parts = target_run.run.job, CLUSTER, target_run.run.layout, target_run.run.stack
        before.append(predict(*parts).step_seconds / target_run.seconds - 1)
        after.append(predict(*parts, calibration=calibration).step_seconds / target_run.seconds - 1)
    return before, after


def mean(values: list[float]) -> float:
    return statistics.fmean(abs(value) for value in values)


def recorded() -> list[str]:
    """Errors with each recording of a family calibrating once and the others judging."""
    lines = []
    for family, names in FAMILIES.items():
        before: list[float] = []
        after: list[float] = []
        halved = 0
        for name in names:
            rest = [target(TRACES / f"{other}.json.gz") for other in names if other != name]
            generic, calibrated = errors(TRACES / f"{name}.json.gz", rest)
            before += generic
            after += calibrated
            halved += mean(calibrated) <= mean(generic) / 2
        lines.append(
            f"| {family} | {len(names)} | {100 * mean(before):.1f} % | {100 * mean(after):.1f} % | "
            f"{mean(after) / mean(before):.2f} | {halved} of {len(names)} |"
        )
    return lines


def family_runs() -> list[str]:
    lines = []
    for name, row in json.loads((FAMILY / "index.json").read_text()).items():
        source = FAMILY / f"{name}.json.gz"
        seen = target(source).run
        targets = []
        for run in row["runs"][1:]:
            knobs = run["settings"]
            layout = replace(
                seen.layout, micro_batch=knobs["micro_batch"], recompute=knobs["recompute"]
            )
            job = replace(
                seen.job,
                seq_len=knobs["seq_len"],
                global_batch=knobs["micro_batch"] * knobs["accumulation"],
            )
            targets.append(Target(replace(seen, job=job, layout=layout), run["step_seconds"]))
        before, after = errors(source, targets)
        median = [100 * statistics.median(abs(v) for v in values) for values in (before, after)]
        lines.append(
            f"| {name} | {len(targets)} | {100 * mean(before):.1f} % | {100 * mean(after):.1f} % | "
            f"{median[0]:.1f} % | {median[1]:.1f} % |"
        )
    return lines


FACTORS = ("matmul", "attention", "other", "loss", "optimizer")


def factor_lines() -> list[str]:
    """Factors of each kind of work in every healthy recording."""
    lines = [
        f"| recording | {' | '.join(FACTORS)} | between kernels, µs a layer |",
        f"|---|{'---:|' * (len(FACTORS) + 1)}",
    ]
    names = [
        *FAMILIES["eager models"],
        *FAMILIES["compiled block by block"],
        "healthy-whole-compiled",
    ]
    for name in names:
        case = case_of(TRACES / f"{name}.json.gz")
        assert case.replay is not None
        factors = case.replay.factors
        cells = " | ".join(f"{getattr(factors, kind):.2f}" for kind in FACTORS)
        lines.append(f"| {name} | {cells} | {1e6 * factors.queued_seconds:.0f} |")
    return lines


def usual_factors() -> str:
    """Medians of the healthy recordings that set thresholds, used to replay host-bound ones."""
    seen: dict[str, list[list[float]]] = {}
    for recording in recordings():
        if (
            recording.path.parent == TRACES
            and recording.label == "healthy"
            and not recording.judges
        ):
            run = case_of(recording.path).replay
            assert run is not None
            values = [getattr(run.factors, name) for name in KERNEL_FACTORS]
            seen.setdefault(run.inferred.stack.kernels, []).append(values)
    words = []
    for kernels, rows in seen.items():
        middle = [statistics.median(column) for column in zip(*rows, strict=True)]
        pairs = zip(KERNEL_FACTORS, middle, strict=True)
        words.append(f"{kernels}: " + ", ".join(f"{name} {value:.2f}" for name, value in pairs))
    return "; ".join(words)


def compiled_host() -> str:
    """Share of host time that remains when compiled, where both runs wait for their host."""
    index = json.loads((FAMILY / "index.json").read_text())
    shares = []
    for eager, compiled in zip(
        index["0.5b-eager"]["runs"], index["0.5b-compiled"]["runs"], strict=True
    ):
        settings = eager["settings"]
        if (settings["seq_len"], settings["micro_batch"]) != (512, 2):
            continue
        times = [run["step_seconds"] - run["phases"]["optimizer"] for run in (eager, compiled)]
        shares.append(times[1] / times[0])
    return ", ".join(f"{share:.2f}" for share in shares)


def report() -> str:
    return "\n".join(
        [
            "# Calibrating on one recording",
            "",
            "Made by `python -m benchmarks.prove_calibration`. Errors are of the step time, mean of "
            "their sizes.",
            "",
            "## Recordings of the H200",
            "",
            "Each recording calibrates once, and the others of its family are predicted with that.",
            "",
            "| family | recordings | generic | calibrated | ratio | halved or better |",
            "|---|---:|---:|---:|---:|---:|",
            *recorded(),
            "",
            "## One model at other sequences and batches, unprofiled",
            "",
            "Calibrated on 4 sequences of 2,048 tokens, under the profiler.",
            "",
            "| family | runs | generic | calibrated | generic, median | calibrated, median |",
            "|---|---:|---:|---:|---:|---:|",
            *family_runs(),
            "",
            "The mean is made by the runs that wait for the host (512 tokens x 2, 2,048 x 1 x 4): a "
            "recording of a run that does not says nothing about the host.",
            "",
            "Compiled block by block, the 0.5b model's steps of 2 x 512 tokens without their optimizer "
            f"take {compiled_host()} of the eager ones: what compiling leaves of the host's time here "
            "(the predictor's generic 0.55 was measured on another host).",
            "",
            "## Factors",
            "",
            "Measured over predicted time by kind of work, healthy recordings.",
            "",
            *factor_lines(),
            "",
            f"Medians of those that set thresholds: {usual_factors()}. A recording whose host is late "
            "is replayed with them.",
            "",
        ]
    )


def main() -> int:
    text = report()
    REPORT.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
