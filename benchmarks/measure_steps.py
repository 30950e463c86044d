"""Whole training steps of known configurations on one device: the project's own ground truth.

`python -m benchmarks.measure_steps FILE [PART]` writes one JSON line per configuration as it
finishes; PART is `eager`, `compiled`, `held-out`, `fresh` or a pattern of names.
`benchmarks.report_h200` turns the lines into the report and the rows. Needs torch only.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from computeflow.lab.trainer import TrainerSettings

SHAPES: dict[str, dict[str, Any]] = {
    "0.5b": {"layers": 24, "hidden": 1280, "heads": 20, "kv_heads": 5, "ffn": 3456, "vocab": 32000},
    "1b": {"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 128256},
    "3b": {"layers": 28, "hidden": 3072, "heads": 24, "kv_heads": 8, "ffn": 8192, "vocab": 128256},
    "8b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256},
    "1.7b": {"layers": 24, "hidden": 2304, "heads": 36, "kv_heads": 36, "ffn": 5760, "vocab": 49152},
    "14b-slice": {"layers": 8, "hidden": 5120, "heads": 40, "kv_heads": 8, "ffn": 17408,
                  "vocab": 151936},
    "70b-slice": {"layers": 4, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672,
                  "vocab": 128256},
    "0.3b": {"layers": 20, "hidden": 1024, "heads": 16, "kv_heads": 16, "ffn": 2816, "vocab": 50304},
    "2.6b": {"layers": 26, "hidden": 2560, "heads": 20, "kv_heads": 4, "ffn": 10240, "vocab": 64000},
    "4b": {"layers": 36, "hidden": 2560, "heads": 32, "kv_heads": 8, "ffn": 9728, "vocab": 151936},
    "7b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008, "vocab": 32000},
    "32b-slice": {"layers": 6, "hidden": 5120, "heads": 40, "kv_heads": 8, "ffn": 27648,
                  "vocab": 152064},
}  # fmt: skip
EAGER: list[tuple[str, dict[str, Any]]] = [
    ("0.5b", {"seq_len": 512, "micro_batch": 32}),
    ("0.5b", {"seq_len": 512, "micro_batch": 4}),
    ("0.5b", {"seq_len": 2048, "micro_batch": 8}),
    ("0.5b", {"seq_len": 2048, "micro_batch": 8, "precision": "amp"}),
    ("0.5b", {"seq_len": 1024, "micro_batch": 8, "precision": "tf32"}),
    ("0.5b", {"seq_len": 1024, "micro_batch": 4, "precision": "fp32"}),
    ("1b", {"seq_len": 512, "micro_batch": 16}),
    ("1b", {"seq_len": 2048, "micro_batch": 8}),
    ("1b", {"seq_len": 2048, "micro_batch": 4, "accumulation": 4}),
    ("1b", {"seq_len": 2048, "micro_batch": 4, "attention": "unfused"}),
    ("1b", {"seq_len": 2048, "micro_batch": 4, "optimizer": "for-loop"}),
    ("1b", {"seq_len": 4096, "micro_batch": 4, "precision": "amp"}),
    ("1b", {"seq_len": 4096, "micro_batch": 4, "precision": "fp8"}),
    ("1b", {"seq_len": 2048, "micro_batch": 2, "precision": "fp32"}),
    ("1b", {"seq_len": 32768, "micro_batch": 1, "recompute": "full"}),
    ("3b", {"seq_len": 4096, "micro_batch": 2}),
    ("3b", {"seq_len": 4096, "micro_batch": 4, "recompute": "full"}),
    ("8b", {"seq_len": 4096, "micro_batch": 1}),
    ("8b", {"seq_len": 4096, "micro_batch": 2, "recompute": "selective"}),
    ("8b", {"seq_len": 8192, "micro_batch": 1, "recompute": "full"}),
    ("70b-slice", {"seq_len": 4096, "micro_batch": 2}),
]
COMPILED: list[tuple[str, dict[str, Any]]] = [
    ("0.5b", {"seq_len": 512, "micro_batch": 4}),
    ("0.5b", {"seq_len": 2048, "micro_batch": 8}),
    ("0.5b", {"seq_len": 2048, "micro_batch": 8, "compile": "whole"}),
    ("1b", {"seq_len": 512, "micro_batch": 16}),
    ("1b", {"seq_len": 4096, "micro_batch": 4}),
    ("1b", {"seq_len": 4096, "micro_batch": 4, "precision": "amp"}),
    ("1b", {"seq_len": 4096, "micro_batch": 4, "precision": "fp8"}),
    ("1b", {"seq_len": 8192, "micro_batch": 2, "recompute": "selective"}),
    ("1b", {"seq_len": 16384, "micro_batch": 1}),
    ("1b", {"seq_len": 32768, "micro_batch": 1, "recompute": "full"}),
    ("3b", {"seq_len": 4096, "micro_batch": 2}),
    ("3b", {"seq_len": 4096, "micro_batch": 2, "precision": "fp8"}),
    ("8b", {"seq_len": 4096, "micro_batch": 1}),
    ("8b", {"seq_len": 4096, "micro_batch": 1, "precision": "fp8"}),
    ("8b", {"seq_len": 8192, "micro_batch": 1, "recompute": "full"}),
    ("70b-slice", {"seq_len": 4096, "micro_batch": 2}),
    ("70b-slice", {"seq_len": 8192, "micro_batch": 1, "recompute": "full"}),
    ("70b-slice", {"seq_len": 4096, "micro_batch": 2, "precision": "fp8"}),
]
HELD_OUT: list[tuple[str, dict[str, Any]]] = [  # for judging what was fitted on the others
    ("1.7b", {"seq_len": 1024, "micro_batch": 8}),
    ("1.7b", {"seq_len": 4096, "micro_batch": 2, "compile": "block"}),
    ("0.5b", {"seq_len": 8192, "micro_batch": 2, "compile": "block"}),
    ("0.5b", {"seq_len": 512, "micro_batch": 1}),
    ("1b", {"seq_len": 1024, "micro_batch": 1, "accumulation": 4}),
    ("3b", {"seq_len": 8192, "micro_batch": 1, "precision": "amp", "compile": "block"}),
    ("3b", {"seq_len": 2048, "micro_batch": 2}),
    ("8b", {"seq_len": 2048, "micro_batch": 2, "compile": "block"}),
    ("8b", {"seq_len": 16384, "micro_batch": 1, "recompute": "full", "compile": "block"}),
    ("8b", {"seq_len": 4096, "micro_batch": 1, "precision": "fp8"}),
    ("14b-slice", {"seq_len": 4096, "micro_batch": 2, "compile": "block"}),
    ("14b-slice", {"seq_len": 4096, "micro_batch": 2, "precision": "tf32"}),
    ("70b-slice", {"seq_len": 2048, "micro_batch": 1}),
    ("70b-slice", {"seq_len": 4096, "micro_batch": 4, "precision": "fp8", "recompute": "full",
                   "compile": "block"}),
]  # fmt: skip
FRESH: list[tuple[str, dict[str, Any]]] = [  # measured after the model was frozen, never tuned on
    ("0.3b", {"seq_len": 1024, "micro_batch": 16}),
    ("0.3b", {"seq_len": 1024, "micro_batch": 16, "compile": "block"}),
    ("0.3b", {"seq_len": 4096, "micro_batch": 1}),
    ("0.3b", {"seq_len": 4096, "micro_batch": 4, "compile": "block"}),
    ("2.6b", {"seq_len": 2048, "micro_batch": 4}),
    ("2.6b", {"seq_len": 2048, "micro_batch": 4, "compile": "block"}),
    ("2.6b", {"seq_len": 8192, "micro_batch": 1, "compile": "block"}),
    ("2.6b", {"seq_len": 4096, "micro_batch": 2, "recompute": "selective", "compile": "block"}),
    ("2.6b", {"seq_len": 4096, "micro_batch": 4, "recompute": "full"}),
    ("4b", {"seq_len": 4096, "micro_batch": 2}),
    ("4b", {"seq_len": 4096, "micro_batch": 2, "compile": "block"}),
    ("4b", {"seq_len": 2048, "micro_batch": 2, "accumulation": 4, "compile": "block"}),
    ("4b", {"seq_len": 16384, "micro_batch": 1, "recompute": "full", "compile": "block"}),
    ("4b", {"seq_len": 4096, "micro_batch": 2, "precision": "fp8", "compile": "block"}),
    ("4b", {"seq_len": 2048, "micro_batch": 4, "precision": "amp"}),
    ("7b", {"seq_len": 2048, "micro_batch": 2}),
    ("7b", {"seq_len": 2048, "micro_batch": 4, "compile": "block"}),
    ("7b", {"seq_len": 4096, "micro_batch": 2, "recompute": "selective", "compile": "block"}),
    ("7b", {"seq_len": 1024, "micro_batch": 1}),
    ("32b-slice", {"seq_len": 4096, "micro_batch": 1}),
    ("32b-slice", {"seq_len": 4096, "micro_batch": 2, "compile": "block"}),
    ("32b-slice", {"seq_len": 8192, "micro_batch": 1, "precision": "fp8", "compile": "block"}),
]
WARMUP = 4
MEASURED_SECONDS = 4.0
_GUESSED_FLOPS = 350e12


def settings_of(shape: str, knobs: dict[str, Any]) -> TrainerSettings:
    """Settings with enough steps for some seconds of measurement, by a rough guess of the rate."""
    draft = TrainerSettings(**SHAPES[shape], **knobs)
    tokens = draft.seq_len * draft.micro_batch * draft.accumulation
    slow = 8.0 if draft.precision == "fp32" else 1.0
    guess = slow * tokens * draft.flops_per_token / _GUESSED_FLOPS
    measured = min(max(round(MEASURED_SECONDS / guess), 6), 40)
    return TrainerSettings(
        **SHAPES[shape], **knobs, steps=WARMUP + measured, warmup=WARMUP, quiet=True
    )


def name_of(shape: str, knobs: dict[str, Any]) -> str:
    return " ".join([shape, *(f"{name}={value}" for name, value in knobs.items())])


def measure(shape: str, knobs: dict[str, Any]) -> dict[str, Any]:
    import torch

    from computeflow.lab.trainer.training_loop import train

    settings = settings_of(shape, knobs)
    torch._dynamo.reset()
    try:
        summary = train(settings).to_data()
        return {"name": name_of(shape, knobs), "shape": shape, **summary}
    except Exception as error:  # a configuration that fails must not cost the others
        traceback.print_exc()
        return {"name": name_of(shape, knobs), "shape": shape, "error": str(error)[:500]}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def main(target: Path, part: str) -> int:
    parts = {
        "eager": EAGER,
        "held-out": HELD_OUT,
        "fresh": FRESH,
        "compiled": [(shape, {"compile": "block", **knobs}) for shape, knobs in COMPILED],
    }
    every = [case for cases in parts.values() for case in cases]
    chosen = parts.get(part) or [case for case in every if re.search(part, name_of(*case))]
    with target.open("a") as lines:
        for number, (shape, knobs) in enumerate(chosen, start=1):
            began = time.monotonic()
            result = measure(shape, knobs)
            lines.write(json.dumps(result) + "\n")
            lines.flush()
            outcome = result.get("error") or (
                f"{1000 * result['step_seconds']:.1f} ms, "
                f"{result['achieved_flops'] / 1e12:.0f} TFLOP/s, "
                f"{result['readings']['mean_watts'] or 0:.0f} W"
            )
            print(
                f"[{number}/{len(chosen)}] {result['name']}: {outcome} "
                f"({time.monotonic() - began:.0f} s)",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "eager"))
