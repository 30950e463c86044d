"""The H200 ground truth as a report and as rows: `python -m benchmarks.report_h200`.

Reads benchmarks/data/h200 (what `computeflow probe` and `benchmarks.measure_steps` wrote on the
device) and writes benchmarks/reports/h200.md and benchmarks/data/h200/steps.csv, whose columns are
those of the published throughput table plus watts, clock and phases.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure_steps import HELD_OUT, name_of
from computeflow.catalog import load_catalog
from computeflow.units import format_si

ROOT = Path(__file__).parents[1]
DATA = ROOT / "benchmarks" / "data" / "h200"
REPORT = ROOT / "benchmarks" / "reports" / "h200.md"
PEAK = {"fp32": "fp32", "tf32": "tf32", "bf16": "bf16", "amp": "bf16", "fp8": "fp8"}
PREFIX = {"steps": "own-h200", "fresh": "fresh-h200"}
HELD = {name_of(*case) for case in HELD_OUT}
COLUMNS = (
    "row_id source source_path commit year kind model_name params_b active_params_b layers hidden "
    "heads kv_heads ffn_hidden vocab seq_len moe_experts moe_topk arch_src gpu num_gpus "
    "gpus_per_node intra_node_link inter_node_link tp pp vp dp cp ep zero_fsdp micro_batch "
    "grad_accum global_batch precision recompute flags framework tokens_per_sec_per_gpu "
    "tflops_per_gpu mfu_pct hfu_pct step_time_s memory_gb d_step_time_s d_tokens_per_sec_per_gpu "
    "quality core notes watts sm_mhz forward_s backward_s optimizer_s step_min_s step_max_s "
    "reserved_gb compile attention optimizer held_out"
).split()

OPENING = """# One H200, measured

The project's own ground truth, measured on 2026-11-15. The device ran `computeflow probe --repeats 3
--soak 15 --calibration FILE -o json` and `python -m benchmarks.measure_steps FILE PART`; this page
and `steps.csv` are made from their output (`benchmarks/data/h200`) by `python -m
benchmarks.report_h200`.

## The probe

"""
MIDDLE = """

## Training steps

Medians of the steps after four warm-up steps, with the fastest and slowest. TFLOP/s are model FLOPs
(causal attention at half) per second; GB is the peak of allocated memory. `held out` rows are not to be
fitted on. bf16 means weights, gradients and optimizer state in bf16; amp keeps fp32 weights.

"""
FRESH = """

## Fresh steps

Measured later the same day and not looked at until the formulas for dense models were settled: for
judging only.

"""
WAITING = """

## Waiting and moving data

What a collective puts on a device, without links (`python -m benchmarks.measure_waiting FILE`):
programs that poll a flag, or that add two buffers into a third. `idle` has a context and no kernel.

"""


def runs(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


def row(name: str, number: int, run: dict[str, Any]) -> dict[str, Any]:
    s, phases, readings = run["settings"], run["phases"], run["readings"]
    sequences = s["micro_batch"] * s["accumulation"]
    peak = load_catalog().accelerators["h200-sxm"].peak_flops(PEAK[s["precision"]])
    return {
        "row_id": f"{PREFIX[name]}-{number:03d}",
        "source": "computeflow-h200",
        "source_path": f"benchmarks/data/h200/{name}.jsonl",
        "year": 2026,
        "kind": "pretrain",
        "model_name": f"lab-{run['shape']}",
        "params_b": round(run["parameters"] / 1e9, 4),
        "layers": s["layers"],
        "hidden": s["hidden"],
        "heads": s["heads"],
        "kv_heads": s["kv_heads"],
        "ffn_hidden": s["ffn"],
        "vocab": s["vocab"],
        "seq_len": s["seq_len"],
        "arch_src": "source",
        "gpu": "h200",
        "num_gpus": 1,
        "gpus_per_node": 1,
        "tp": 1,
        "pp": 1,
        "vp": 1,
        "dp": 1,
        "cp": 1,
        "ep": 1,
        "zero_fsdp": "none",
        "micro_batch": s["micro_batch"],
        "grad_accum": s["accumulation"],
        "global_batch": sequences,
        "precision": s["precision"],
        "recompute": s["recompute"],
        "flags": f"compile={s['compile']} attention={s['attention']} optimizer={s['optimizer']}",
        "framework": f"computeflow.lab torch {run['environment']['torch']}",
        "tokens_per_sec_per_gpu": round(run["tokens_per_second_per_gpu"], 1),
        "tflops_per_gpu": round(run["achieved_flops"] / 1e12, 2),
        "mfu_pct": round(100 * run["achieved_flops"] / peak, 2),
        "step_time_s": round(run["step_seconds"], 6),
        "memory_gb": round(run["allocated_bytes"] / 1e9, 3),
        "d_step_time_s": round(run["step_seconds"], 6),
        "d_tokens_per_sec_per_gpu": round(sequences * s["seq_len"] / run["step_seconds"], 1),
        "quality": "A",
        "core": 1,
        "watts": round(readings["mean_watts"], 1),
        "sm_mhz": round(readings["mean_sm_hertz"] / 1e6, 1),
        "forward_s": round(phases["forward"], 6),
        "backward_s": round(phases["backward"], 6),
        "optimizer_s": round(phases["optimizer"], 6),
        "step_min_s": round(run["step_seconds_min"], 6),
        "step_max_s": round(run["step_seconds_max"], 6),
        "reserved_gb": round(run["reserved_bytes"] / 1e9, 3),
        "compile": s["compile"],
        "attention": s["attention"],
        "optimizer": s["optimizer"],
        "held_out": int(run["name"] in HELD),
    }


def probe_lines() -> list[str]:
    probe = json.loads((DATA / "probe.json").read_text())["probes"][0]
    environment = probe["environment"]
    lines = [
        f"{environment['nvml_name']}, {environment['nvml_power_limit_watts']:.0f} W, driver "
        f"{environment['nvml_driver']}, CUDA {environment['cuda']}, torch {environment['torch']}, "
        f"{probe['repeats']} passes; spread is half the range of the passes.",
        "",
        "| what | value | spread | of peak |",
        "|---|---|---|---|",
    ]
    for item in probe["items"]:
        peak = item["of_peak"]
        lines.append(
            f"| {item['name']} | {format_si(item['value'], item['unit'])} | "
            + ("-" if item["spread"] is None else f"{100 * item['spread'] / item['value']:.1f} %")
            + " | "
            + ("-" if peak is None else f"{100 * item['value'] / peak:.1f} %")
            + " |"
        )
    lines += [
        "",
        "| under | mean W | mean SM clock | hottest | power-capped |",
        "|---|---|---|---|---|",
    ]
    for name in probe["measurements"][0]["readings"]:
        seen = [m["readings"][name] for m in probe["measurements"]]
        lines.append(
            f"| {name} | {statistics.mean(r['mean_watts'] for r in seen):.0f} | "
            f"{statistics.mean(r['mean_sm_hertz'] for r in seen) / 1e6:.0f} MHz | "
            f"{max(r['max_temperature_celsius'] for r in seen):.0f} °C | "
            f"{100 * statistics.mean(r['throttled'].get('power cap', 0.0) for r in seen):.0f} % |"
        )
    return lines


def step_lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| shape | seq | batch | precision | recompute | compile | other | step ms (min to max) | "
        "fwd / bwd / opt ms | TFLOP/s | GB | W | MHz |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        unusual = [
            r["attention"] if r["attention"] != "fused" else "",
            r["optimizer"] if r["optimizer"] != "fused" else "",
            "held out" if r["held_out"] else "",
        ]
        batch = f"{r['micro_batch']}" + (f" x {r['grad_accum']}" if r["grad_accum"] > 1 else "")
        lines.append(
            f"| {r['model_name'].removeprefix('lab-')} | {r['seq_len']} | {batch} | "
            f"{r['precision']} | {r['recompute']} | {r['compile']} | {' '.join(filter(None, unusual))}"
            f" | {1e3 * r['step_time_s']:.1f} ({1e3 * r['step_min_s']:.1f} to "
            f"{1e3 * r['step_max_s']:.1f}) | {1e3 * r['forward_s']:.0f} / {1e3 * r['backward_s']:.0f}"
            f" / {1e3 * r['optimizer_s']:.0f} | {r['tflops_per_gpu']:.0f} | {r['memory_gb']:.1f} | "
            f"{r['watts']:.0f} | {r['sm_mhz']:.0f} |"
        )
    return lines


def write_rows(name: str) -> list[dict[str, Any]]:
    rows = [row(name, number, run) for number, run in enumerate(runs(name), start=1)]
    with (DATA / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return rows


def waiting_lines() -> list[str]:
    lines = ["| doing | programs | memory traffic | W |", "|---|---|---|---|"]
    for seen in json.loads((DATA / "waiting.json").read_text())["rows"]:
        lines.append(
            f"| {seen['name']} | {seen['programs']} | {seen['bytes_per_second'] / 1e9:.0f} GB/s | "
            f"{seen['watts']:.0f} |"
        )
    return lines


def main() -> int:
    rows, fresh = write_rows("steps"), write_rows("fresh")
    parts = [
        OPENING,
        *probe_lines(),
        MIDDLE,
        *step_lines(rows),
        FRESH,
        *step_lines(fresh),
        WAITING,
        *waiting_lines(),
    ]
    REPORT.write_text("\n".join(parts) + "\n")
    print(f"{len(rows)} + {len(fresh)} rows, {REPORT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
