"""Record one traced run and the step times of others of its family, to test calibrations.

`python -m benchmarks.record_family FOLDER` on a machine with a GPU. A family is one model with one way
of running it; its runs differ in sequence, batch and recomputation. Needs torch only.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure_steps import SHAPES
from computeflow.lab.trainer import TrainerSettings

Knobs = dict[str, Any]
TRACED: Knobs = {"seq_len": 2048, "micro_batch": 4}
OTHERS: list[Knobs] = [
    {"seq_len": 512, "micro_batch": 16},
    {"seq_len": 512, "micro_batch": 2},
    {"seq_len": 1024, "micro_batch": 8, "accumulation": 2},
    {"seq_len": 4096, "micro_batch": 4},
    {"seq_len": 8192, "micro_batch": 1},
    {"seq_len": 2048, "micro_batch": 8, "recompute": "full"},
    {"seq_len": 2048, "micro_batch": 1, "accumulation": 4},
]
FAMILIES: dict[str, tuple[str, Knobs]] = {
    "1b-eager": ("1b", {}),
    "1b-compiled": ("1b", {"compile": "block"}),
    "0.5b-eager": ("0.5b", {}),
    "0.5b-compiled": ("0.5b", {"compile": "block"}),
}


def run(knobs: Knobs, trace_folder: str = "") -> dict[str, Any]:
    import torch

    from computeflow.lab.trainer.training_loop import train

    torch._dynamo.reset()
    profile: Knobs = {"profile_steps": 2, "trace_folder": trace_folder} if trace_folder else {}
    summary = train(TrainerSettings(**knobs, **profile, steps=14, warmup=5, quiet=True)).to_data()
    gc.collect()
    torch.cuda.empty_cache()
    summary["settings"].pop("trace_folder")
    return summary


def main(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {}
    for name, (shape, more) in FAMILIES.items():
        knobs = {**SHAPES[shape], **more}
        run(knobs | TRACED, str(folder / name))
        (folder / name / "rank_0.json.gz").rename(folder / f"{name}.json.gz")
        (folder / name).rmdir()
        index[name] = {"traced": TRACED, "runs": [run(knobs | each) for each in [TRACED, *OTHERS]]}
        (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")
        times = ", ".join(f"{1000 * result['step_seconds']:.1f}" for result in index[name]["runs"])
        print(f"{name}: {times} ms", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
