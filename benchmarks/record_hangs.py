"""Record flight-recorder dumps of hangs over gloo: `python -m benchmarks.record_hangs FOLDER`.

Real ranks on this machine's CPUs; in each case one rank stops for good and the others wait for it until
the trainer's watchdog dumps what every rank remembers of its collectives.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

CASES = {
    "ddp-4-ranks": {"ranks": 4, "sharding": "ddp", "culprit": 2, "step": 3},
    "fsdp-2-ranks": {"ranks": 2, "sharding": "fsdp", "culprit": 1, "step": 2},
}
SMALL = [
    "--layers",
    "2",
    "--hidden",
    "64",
    "--heads",
    "4",
    "--vocab",
    "256",
    "--seq-len",
    "32",
    "--steps",
    "6",
    "--warmup",
    "1",
    "--device",
    "cpu",
    "--precision",
    "fp32",
]


def record(folder: Path, ranks: int, sharding: str, culprit: int, step: int) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
            "-m",
            "computeflow.lab.trainer",
            *SMALL,
            "--sharding",
            sharding,
            "--hang-seconds",
            "15",
            "--flight-folder",
            str(folder),
            "--fault",
            f"hang:1:rank={culprit}:step={step}",
        ],
        check=False,
        capture_output=True,
        timeout=300,
    )


def shorten(path: Path) -> None:
    """Shorten file names in the stacks to start at the package, without where it was installed."""
    dump = pickle.loads(path.read_bytes())  # our own file, written a moment ago
    for entry in dump["entries"]:
        for frame in entry.get("frames", []):
            parts = Path(frame["filename"]).parts
            roots = [i for i, part in enumerate(parts) if part in ("site-packages", "src")]
            frame["filename"] = "/".join(parts[roots[-1] + 1 :] if roots else parts[-1:])
    path.write_bytes(pickle.dumps(dump))


def main(folder: Path) -> int:
    for name, case in CASES.items():
        record(folder / name, **case)  # type: ignore[arg-type]
        for dump in (folder / name).glob("rank_*"):
            shorten(dump)
        (folder / name / "truth.json").write_text(json.dumps(case) + "\n")
        print(name, sorted(p.name for p in (folder / name).iterdir()))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
