"""Record Kineto traces of healthy runs and of planted faults at several severities, small ones.

`python -m benchmarks.record_traces FOLDER [PART]` on a machine with a GPU; PART is `2/3` for the
second third of the names, or parts of names with commas between them. Each trace has two steps. A run
with a fault is made three times, and the one that took the median time is kept; the same run with the
fault removed is made three times too, profiled alike. `index.json` has every run's summary, what was
planted, and all of these times. `record_jobs` records faults that take several ranks. Needs torch only.
"""

from __future__ import annotations

import gc
import gzip
import json
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from computeflow.lab.trainer import TrainerSettings

Knobs = dict[str, Any]
BASE: Knobs = {
    "layers": 8, "hidden": 2048, "heads": 16, "kv_heads": 4, "ffn": 5632, "vocab": 32000,
    "seq_len": 2048, "micro_batch": 4, "steps": 9, "warmup": 4, "profile_steps": 2, "quiet": True,
}  # fmt: skip
WIDE: Knobs = {"layers": 2, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336}
DEEP: Knobs = {"layers": 12, "hidden": 1536, "heads": 12, "kv_heads": 12, "ffn": 4096}
LONG: Knobs = {"layers": 4, "seq_len": 8192, "micro_batch": 1}
HEALTHY: dict[str, Knobs] = {
    "base": {},
    "long": {"seq_len": 8192, "micro_batch": 1},
    "compiled": {"compile": "block"},
    "wide": WIDE,
    "deep": DEEP,
    "vocabulary": {"layers": 3, "vocab": 128256},
    "narrow-heads": {"layers": 4, "heads": 32, "kv_heads": 32},
    "accumulated": {"layers": 4, "accumulation": 2},
    "wide-compiled": {**WIDE, "compile": "block"},
    "big-batch": {"layers": 4, "micro_batch": 12},
    "whole-compiled": {"layers": 6, "compile": "whole"},
    "square": {"layers": 2, "hidden": 6144, "heads": 48, "kv_heads": 8, "ffn": 16384,
               "micro_batch": 2},
    "hidden-loader": {"fault": ("slow-loader:0.003",)},
}  # fmt: skip
"""Healthy runs, among them one whose loader is slow but in time."""
_SAVED = {"checkpoint_every": 2, "checkpoint_folder": "/tmp/computeflow-checkpoint"}
SEVERITIES: dict[str, tuple[list[float], Knobs]] = {
    "slow-loader": ([0.01, 0.03, 0.1], {}),
    "pageable-copy": ([64, 256, 1024], {}),
    "host-sync": ([8], {}),
    "gc-storm": ([200, 400, 800], {}),
    "checkpoint-stall": ([0.1, 0.5, 2.0], {"layers": 2, **_SAVED}),
}
"""Accidental faults: their severities, and the other settings of the run."""
ELSEWHERE: dict[str, tuple[str, Knobs]] = {
    "slow-loader-wide": ("slow-loader:0.02", WIDE),
    "slow-loader-deep": ("slow-loader:0.015", DEEP),
    "slow-loader-workers": ("slow-loader:0.05", {"workers": 2}),
    "pageable-copy-deep": ("pageable-copy:128", DEEP),
    "pageable-copy-wide": ("pageable-copy:512", WIDE),
    "host-sync-deep": ("host-sync:6", DEEP),
    "host-sync-twelve": ("host-sync:12", DEEP),
    "host-sync-narrow": (
        "host-sync:4",
        {"layers": 4, "heads": 32, "kv_heads": 32, "micro_batch": 2},
    ),
    "host-sync-small": ("host-sync:8", {"micro_batch": 2}),
    "host-sync-accumulated": ("host-sync:4", {"layers": 4, "accumulation": 2, "micro_batch": 2}),
    "gc-storm-wide": ("gc-storm:900", WIDE),
    "gc-storm-deep": ("gc-storm:500", DEEP),
}
"""The same accidental faults in other models."""
CHOICES: dict[str, tuple[str, Knobs, Knobs]] = {
    "unfused-attention": ("attention", {"attention": "unfused"}, {}),
    "unfused-attention-wide": ("attention", {**WIDE, "attention": "unfused"}, WIDE),
    "unfused-attention-deep": ("attention", {**DEEP, "attention": "unfused"}, DEEP),
    "fp32-matmul": ("precision", {"precision": "fp32", "micro_batch": 1}, {"micro_batch": 1}),
    "fp32-matmul-wide": ("precision", {**WIDE, "precision": "fp32", "micro_batch": 1},
                         {**WIDE, "micro_batch": 1}),
    "tf32-matmul": ("precision", {"precision": "tf32"}, {}),
    "unfused-optimizer": ("optimizer", {"micro_batch": 1, "optimizer": "for-loop"},
                          {"micro_batch": 1}),
    "unfused-optimizer-wide": ("optimizer", {**WIDE, "micro_batch": 1, "optimizer": "for-loop"},
                               {**WIDE, "micro_batch": 1}),
    "unfused-optimizer-deep": ("optimizer", {**DEEP, "optimizer": "for-loop"}, DEEP),
    "recompute-full": ("recompute", {"recompute": "full"}, {}),
    "recompute-full-wide": ("recompute", {**WIDE, "recompute": "full"}, WIDE),
    "recompute-full-long": ("recompute", {**LONG, "recompute": "full"}, LONG),
    "recompute-full-deep": ("recompute", {**DEEP, "recompute": "full"}, DEEP),
    "recompute-full-big": ("recompute", {"layers": 4, "micro_batch": 12, "recompute": "full"},
                           {"layers": 4, "micro_batch": 12}),
    "launch-bound": ("launch", {"seq_len": 256, "micro_batch": 1},
                     {"seq_len": 256, "micro_batch": 1, "compile": "block"}),
    "launch-bound-deep": ("launch", {**DEEP, "seq_len": 512, "micro_batch": 1},
                          {**DEEP, "seq_len": 512, "micro_batch": 1, "compile": "block"}),
    "launch-bound-short": ("launch", {"seq_len": 128, "micro_batch": 2},
                           {"seq_len": 128, "micro_batch": 2, "compile": "block"}),
    "launch-bound-narrow": ("launch", {"hidden": 1024, "heads": 8, "ffn": 2816, "seq_len": 1024,
                                       "micro_batch": 1},
                            {"hidden": 1024, "heads": 8, "ffn": 2816, "seq_len": 1024,
                             "micro_batch": 1, "compile": "block"}),
    "launch-bound-wide": ("launch", {**WIDE, "layers": 4, "seq_len": 128, "micro_batch": 1},
                          {**WIDE, "layers": 4, "seq_len": 128, "micro_batch": 1,
                           "compile": "block"}),
    "small-batch-parts": ("batch", {"seq_len": 256, "micro_batch": 1, "accumulation": 4},
                          {"seq_len": 256, "micro_batch": 4}),
    "small-batch": ("batch", {**WIDE, "seq_len": 512, "micro_batch": 1, "accumulation": 4},
                    {**WIDE, "seq_len": 512, "micro_batch": 4}),
    "small-batch-square": ("batch", {**WIDE, "hidden": 6144, "heads": 48, "seq_len": 256,
                                     "micro_batch": 1, "accumulation": 8},
                           {**WIDE, "hidden": 6144, "heads": 48, "seq_len": 256,
                            "micro_batch": 8}),
    "small-batch-1024": ("batch", {**WIDE, "seq_len": 1024, "micro_batch": 1, "accumulation": 4},
                         {**WIDE, "seq_len": 1024, "micro_batch": 4}),
}  # fmt: skip
"""Faults by choice: the kind, the run, and the run of the same work without the fault."""


@dataclass(frozen=True)
class Case:
    label: str
    knobs: Knobs
    removed: Knobs | None = field(default=None)
    """The run without the fault; None for a healthy run."""


def cases() -> dict[str, Case]:
    all_cases = {f"healthy-{name}": Case("healthy", knobs) for name, knobs in HEALTHY.items()}
    for kind, (severities, more) in SEVERITIES.items():
        for severity in severities:
            planted = {**more, "fault": (f"{kind}:{severity:g}",)}
            without = {name: more[name] for name in more if name not in _SAVED}
            all_cases[f"{kind}-{severity:g}"] = Case(kind, planted, without)
    for name, (fault, knobs) in ELSEWHERE.items():
        all_cases[name] = Case(fault.partition(":")[0], {**knobs, "fault": (fault,)}, knobs)
    for name, (_, knobs, removed) in CHOICES.items():
        label = name
        while label not in ("tf32-matmul", *_LABELS):
            label = label.rpartition("-")[0]
        all_cases[name] = Case(label, knobs, removed)
    return all_cases


_LABELS = (
    "unfused-attention",
    "fp32-matmul",
    "unfused-optimizer",
    "recompute-full",
    "launch-bound",
    "small-batch",
)


def record(folder: Path, name: str, knobs: Knobs) -> dict[str, Any]:
    import torch

    from computeflow.lab.trainer.training_loop import train

    torch._dynamo.reset()
    work = folder / name
    summary = train(TrainerSettings(**(BASE | knobs), trace_folder=str(work))).to_data()
    (work / "rank_0.json.gz").rename(folder / f"{name}.json.gz")
    work.rmdir()
    gc.collect()
    torch.cuda.empty_cache()
    for key in ("trace_folder", "checkpoint_folder"):
        del summary["settings"][key]
    return summary


_UNREAD = ("Ev Idx", "External id", "Record function id", "Input Strides")


def trim(trace: Path) -> None:
    """Make a trace smaller without loss: drop arrows, numbers of events and strides."""
    data = json.loads(gzip.decompress(trace.read_bytes()))
    data["traceEvents"] = [event for event in data["traceEvents"] if event["ph"] not in "sf"]
    for event in data["traceEvents"]:
        for name in _UNREAD:
            event.get("args", {}).pop(name, None)
    text = json.dumps(data, separators=(",", ":"))
    trace.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def profiled_seconds(summary: dict[str, Any]) -> float:
    """Seconds of the two steps in the trace, after the one in which the profiler warms up."""
    return float(sum(step["seconds"] for step in summary["steps"][1:3]))


REPEATS = 3


def median_of(
    folder: Path, name: str, knobs: Knobs, times: int
) -> tuple[dict[str, Any], list[float]]:
    """The summary of the run that took the median time, its trace kept; and all times."""
    runs = []
    for number in range(times):
        summary = record(folder, f"{name}.{number}", knobs)
        runs.append((profiled_seconds(summary), number, summary))
    runs.sort(key=lambda run: run[:2])
    _, chosen, summary = runs[len(runs) // 2]
    (folder / f"{name}.{chosen}.json.gz").rename(folder / f"{name}.json.gz")
    trim(folder / f"{name}.json.gz")
    for other in folder.glob(f"{name}.?.json.gz"):
        other.unlink()
    return summary, [seconds for seconds, _, _ in runs]


def chosen_cases(part: str) -> dict[str, Case]:
    """Cases chosen by parts of their names, or by a slice such as `2/3`."""
    number, slash, count = part.partition("/")
    if not slash:
        parts = part.split(",")
        return {n: case for n, case in cases().items() if any(each in n for each in parts)}
    rows = list(cases().items())
    return dict(rows[int(number) - 1 :: int(count)])


def main(folder: Path, part: str = "") -> int:
    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {}
    removed: dict[str, list[float]] = {}
    chosen = chosen_cases(part)
    for number, (name, case) in enumerate(chosen.items(), start=1):
        slow = case.label in ("healthy", "checkpoint-stall")
        summary, taken = median_of(folder, name, case.knobs, 1 if slow else REPEATS)
        size = (folder / f"{name}.json.gz").stat().st_size
        index[name] = {
            "label": case.label,
            "planted": case.knobs,
            "bytes": size,
            "profiled_seconds": taken,
            "summary": summary,
        }
        if case.removed is not None:
            key = json.dumps(case.removed, sort_keys=True)
            if key not in removed:
                removed[key] = median_of(folder, "removed", case.removed, REPEATS)[1]
                (folder / "removed.json.gz").unlink()
            index[name]["removed"] = case.removed
            index[name]["removed_all"] = removed[key]
            index[name]["removed_seconds"] = removed[key][REPEATS // 2]
        (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")
        print(
            f"[{number}/{len(chosen)}] {name}: {1000 * profiled_seconds(summary):.1f} ms, without "
            f"{1000 * index[name].get('removed_seconds', 0):.1f} ms, {size / 1e3:.0f} kB",
            flush=True,
        )
    shutil.rmtree("/tmp/computeflow-checkpoint", ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:3]))
