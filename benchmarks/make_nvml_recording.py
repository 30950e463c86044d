"""Make the recording of NVML that the agent's tests replay.

    python -m benchmarks.make_nvml_recording [FILE]

MADE, not recorded: power, clocks, heat and throttle shares are those that `benchmarks/data/h200` has of
real training on one H200, one row for each look; names, limits and memory are that GPU's. The second
GPU, its hardware slowdown, its NVLink and memory errors, the processes and all counters are invented.
`python -m computeflow.collection.agent.recorded_nvml FILE` records a real driver in the same format.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from computeflow.collection.agent.nvml_library import FIELDS
from computeflow.collection.agent.nvml_readings import FIELD_NUMBERS
from computeflow.collection.agent.recorded_nvml import SCHEMA

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "benchmarks" / "data" / "h200" / "steps.jsonl"
TARGET = ROOT / "tests" / "data" / "nvml" / "h200-made.json"
LOOKS = 6
_POWER_CAP, _HARDWARE_THERMAL = 0x4, 0x40
_RETIRED = {29, 30, 31}
"""Fields that an H200 does not have: it remaps rows instead of retiring pages."""


def main(target: Path) -> None:
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()[:LOOKS]]
    looks = [_look(number, row) for number, row in enumerate(rows)]
    data = {"schema": SCHEMA, "origin": (__doc__ or "").strip(), "looks": looks}
    target.write_text(json.dumps(data, indent=1) + "\n")


def _look(number: int, row: dict[str, Any]) -> dict[str, Any]:
    look: dict[str, Any] = {
        "-1 nvmlDeviceGetCount": 2,
        "-1 nvmlSystemGetDriverVersion": row["environment"]["nvml_driver"],
    }
    for gpu in (0, 1):
        for question, answer in _gpu(number, row, gpu).items():
            look[f"{gpu} {question}"] = answer
    return look


def _gpu(number: int, row: dict[str, Any], gpu: int) -> dict[str, Any]:
    seen, device = row["readings"], row["environment"]
    slowed = gpu == 1 and 2 <= number < 4
    total = device["nvml_memory_bytes"]
    return {
        "nvmlDeviceGetUUID": f"GPU-0000000{gpu}-1111-2222-3333-444444444444",
        "nvmlDeviceGetName": device["nvml_name"],
        "nvmlDeviceGetPciInfo": {"busId": f"00000000:{0x1B + 0x20 * gpu:02X}:00.0"},
        "nvmlDeviceGetPowerUsage": round(1000 * seen["mean_watts"] * (0.6 if slowed else 1)),
        "nvmlDeviceGetTotalEnergyConsumption": 10_000_000 + round(5000 * number * 700),
        "nvmlDeviceGetEnforcedPowerLimit": round(1000 * device["nvml_power_limit_watts"]),
        "nvmlDeviceGetClockInfo 1": 990 if slowed else round(seen["mean_sm_hertz"] / 1e6),
        "nvmlDeviceGetClockInfo 2": round(device["nvml_max_memory_hertz"] / 1e6),
        "nvmlDeviceGetMaxClockInfo 1": round(device["nvml_max_sm_hertz"] / 1e6),
        "nvmlDeviceGetTemperature 0": 91 if slowed else round(seen["max_temperature_celsius"]),
        "nvmlDeviceGetCurrPcieLinkGeneration": 5,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetUtilizationRates": {"gpu": 100, "memory": 41},
        "nvmlDeviceGetMemoryInfo": {
            "total": total,
            "free": total - row["reserved_bytes"],
            "used": row["reserved_bytes"],
        },
        "nvmlDeviceGetCurrentClocksEventReasons": _HARDWARE_THERMAL if slowed else _POWER_CAP,
        "nvmlDeviceGetRemappedRows": [0, int(gpu == 1 and number >= 4), 0, 0],
        "nvmlDeviceGetComputeRunningProcesses": [
            {"pid": 4711 + gpu, "usedGpuMemory": row["allocated_bytes"]}
        ],
        f"{FIELDS} {','.join(map(str, FIELD_NUMBERS))}": _fields(number, gpu),
    }


def _fields(number: int, gpu: int) -> dict[str, float]:
    figures: dict[int, float] = {field: 0 for field in FIELD_NUMBERS if field not in _RETIRED}
    figures[82] = 70 + gpu
    figures[74] = 4_000_000_000 * number
    figures[52] = 17 * number if gpu == 1 else 0
    figures[138] = figures[139] = 900_000_000 * number
    figures[197] = figures[198] = 5_000_000_000 * number
    return {str(field): value for field, value in figures.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
