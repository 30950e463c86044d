"""Record Kineto traces of healthy runs and of planted faults at three severities, small ones.

`python -m benchmarks.record_traces FOLDER` on a machine with a GPU. Each trace has two steps;
`index.json` has every run's summary and what was planted. Needs torch only.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from computeflow.lab.trainer import Settings

BASE: dict[str, Any] = {
    "layers": 8, "hidden": 2048, "heads": 16, "kv_heads": 4, "ffn": 5632, "vocab": 32000,
    "seq_len": 2048, "micro_batch": 4, "steps": 9, "warmup": 4, "profile_steps": 2, "quiet": True,
}  # fmt: skip
HEALTHY: dict[str, dict[str, Any]] = {
    "base": {},
    "long": {"seq_len": 8192, "micro_batch": 1},
    "compiled": {"compile": "block"},
    "wide": {"layers": 2, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336},
}
FAULTS: dict[str, list[float]] = {
    "slow-loader": [0.01, 0.03, 0.1],
    "pageable-copy": [64, 256, 1024],
    "host-sync": [1, 4, 8],
    "gc-storm": [50, 200, 800],
    "checkpoint-stall": [0.1, 0.5, 2.0],
    "unequal-lengths": [0.25, 0.5, 0.8],
    "slow-rank": [0.02, 0.05, 0.2],
}
SETTINGS: dict[str, dict[str, Any]] = {  # faults that are choices, not accidents
    "unfused-attention": {"attention": "unfused"},
    "fp32-matmul": {"precision": "fp32", "micro_batch": 1},
    "tf32-matmul": {"precision": "tf32"},
    "unfused-optimizer": {"optimizer": "for-loop"},
    "recompute-full": {"recompute": "full"},
    "launch-bound": {"seq_len": 256, "micro_batch": 1},
}


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Name to (label, settings over BASE)."""
    found = {f"healthy-{name}": ("healthy", knobs) for name, knobs in HEALTHY.items()}
    found |= {name: (name, knobs) for name, knobs in SETTINGS.items()}
    for kind, severities in FAULTS.items():
        for severity in severities:
            knobs: dict[str, Any] = {"fault": (f"{kind}:{severity:g}",)}
            if kind == "unequal-lengths":
                knobs |= {"steps": 25, "warmup": 20}  # every length must have been seen before
            if kind == "checkpoint-stall":
                knobs |= {"checkpoint_every": 2, "checkpoint_folder": "/tmp/computeflow-checkpoint"}
            found[f"{kind}-{severity:g}"] = (kind, knobs)
    return found


def record(folder: Path, name: str, knobs: dict[str, Any]) -> dict[str, Any]:
    import torch

    from computeflow.lab.trainer.loop import train

    torch._dynamo.reset()
    work = folder / name
    summary = train(Settings(**(BASE | knobs), trace_folder=str(work))).to_data()
    (work / "rank_0.json.gz").rename(folder / f"{name}.json.gz")
    work.rmdir()
    gc.collect()
    torch.cuda.empty_cache()
    return summary


def main(folder: Path, only: str = "") -> int:
    folder.mkdir(parents=True, exist_ok=True)
    index = {}
    chosen = {name: case for name, case in cases().items() if only in name}
    for number, (name, (label, knobs)) in enumerate(chosen.items(), start=1):
        summary = record(folder, name, knobs)
        size = (folder / f"{name}.json.gz").stat().st_size
        index[name] = {"label": label, "planted": knobs, "bytes": size, "summary": summary}
        print(f"[{number}/{len(chosen)}] {name}: {1000 * summary['step_seconds']:.1f} ms, "
              f"{size / 1e3:.0f} kB", flush=True)  # fmt: skip
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    shutil.rmtree("/tmp/computeflow-checkpoint", ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:3]))
