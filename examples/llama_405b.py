"""The ledger that published figures allow for Llama 3.1 405B; writes llama-3.1-405b.json.

Known: 30.84 million GPU-hours (model card) on 16,384 H100, 3.8e25 model FLOPs (arXiv:2407.21783).
That is enough for one line, `compute.model`. Everything else is `unexplained`, and the ledger says
which signal each missing account would need.
"""

import json
from pathlib import Path

from computeflow.catalog import load_catalog
from computeflow.ledger import Entry, Ledger, PeakFlops, Window, ledger_to_data


def published_run() -> Ledger:
    gpus = 16_384
    gpu_seconds = 30.84e6 * 3600
    peak = load_catalog().accelerators["h100-sxm"].peak_flops("bf16")
    return Ledger.closed(
        [Entry(account="compute.model", gpu_seconds=3.8e25 / peak)],
        gpus=gpus,
        wall_seconds=gpu_seconds / gpus,
        basis="measured",
        window=Window(label="Llama 3.1 405B pre-training, as published"),
        peak=PeakFlops(flops=peak, precision="bf16"),
        unavailable={
            "compute.kernel": "a trace of one step",
            "comm": "traces of several ranks",
            "restart": "the job's log",
            "joules": "power readings",
        },
        booked_under=dict.fromkeys(["compute.kernel", "comm", "restart"], "unexplained"),
    )


if __name__ == "__main__":
    target = Path(__file__).with_name("llama-3.1-405b.json")
    target.write_text(json.dumps(ledger_to_data(published_run()), indent=2) + "\n")
    print(f"wrote {target.name}")
