"""Watts of a device that waits or moves data, as a collective makes it.

`python -m benchmarks.measure_waiting FILE` writes what was measured as JSON.

One device cannot run a real collective over links. This runs what a collective puts on the device: a
few persistent programs (a collective takes 8 to 32 of 132 processors) that poll a flag, or that read
two buffers and write their sum, at link speed and above. The links' own power is not in it. Needs
torch and triton.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from computeflow.lab.sensors import Sensors

SECONDS = 4.0
BLOCK = 4096
BYTES = 2 << 30


@triton.jit
def poll(flag, out, rounds):
    """Every program reads one flag again and again, as a rank does that waits for another."""
    seen = 0
    for _ in range(rounds):
        seen += tl.load(flag, volatile=True)
    tl.store(out + tl.program_id(0), seen)


@triton.jit
def reduce(first, second, out, size, block: tl.constexpr):
    """Every program adds its share of two buffers: the local part of a reduce-scatter."""
    step = tl.num_programs(0) * block
    for start in range(tl.program_id(0) * block, size, step):
        at = start + tl.arange(0, block)
        tl.store(out + at, tl.load(first + at) + tl.load(second + at))


def observe(name: str, programs: int, launch: Any, moved: float) -> dict[str, Any]:
    """Launch again and again for some seconds; the first second warms the clocks."""
    stop, launches = time.monotonic() + 1.0, 0
    while time.monotonic() < stop:
        launch()
        torch.cuda.synchronize()
    with Sensors() as sensors:
        began = time.monotonic()
        while time.monotonic() - began < SECONDS:
            launch()
            torch.cuda.synchronize()
            launches += 1
        seconds = time.monotonic() - began
    readings = sensors.readings
    return {
        "name": name,
        "programs": programs,
        "bytes_per_second": moved * launches / seconds,
        "watts": readings.mean_watts,
        "sm_hertz": readings.mean_sm_hertz,
        "seconds": seconds,
    }


def main(target: Path) -> int:
    device = torch.device("cuda")
    flag = torch.zeros(1, dtype=torch.int32, device=device)
    out = torch.zeros(256, dtype=torch.int32, device=device)
    size = BYTES // 2
    first, second, third = (
        torch.zeros(size, dtype=torch.bfloat16, device=device) for _ in range(3)
    )
    rows: list[dict[str, Any]] = []
    with Sensors() as sensors:
        time.sleep(SECONDS)
    rows.append(
        {
            "name": "idle",
            "programs": 0,
            "watts": sensors.readings.mean_watts,
            "sm_hertz": sensors.readings.mean_sm_hertz,
            "bytes_per_second": 0.0,
            "seconds": SECONDS,
        }
    )
    for programs in (1, 8, 16, 24, 32, 132):
        rows.append(
            observe("poll", programs, lambda n=programs: poll[(n,)](flag, out, 100_000), 0.0)
        )
    for programs in (2, 4, 8, 16, 24, 32, 64, 132):
        rows.append(
            observe(
                "reduce",
                programs,
                lambda n=programs: reduce[(n,)](first, second, third, size, BLOCK, num_warps=16),
                3.0 * BYTES,
            )
        )
    for row in rows:
        print(
            f"{row['name']} {row['programs']}: {row['watts']} W, "
            f"{row['bytes_per_second'] / 1e9:.0f} GB/s, {row['sm_hertz']}",
            flush=True,
        )
    about = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    target.write_text(
        json.dumps({"schema": "computeflow.waiting/1", **about, "rows": rows}, indent=1)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
