"""The labelled recordings: what each holds, what it must be called, and which half it belongs to.

The recordings of each label, in order of their names, alternate: the first sets thresholds, the
second only judges, and so on. A planted fault counts as one where its removal gained at least
`COST` of the run; what cost less is a healthy run with something planted in it.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "tests" / "data"
ONE, SEVERAL = DATA / "h200_traces", DATA / "gloo_traces"
COST = 0.03
RULE_OF = {
    "slow-loader": "input-stall", "pageable-copy": "pageable-copy", "host-sync": "host-sync",
    "gc-storm": "gc-pause", "checkpoint-stall": "checkpoint-stall",
    "unfused-attention": "unfused-attention", "fp32-matmul": "matmul-precision",
    "tf32-matmul": "matmul-precision", "unfused-optimizer": "unfused-optimizer",
    "recompute-full": "recompute-excess", "launch-bound": "launch-bound",
    "small-batch": "small-micro-batch", "slow-rank": "straggler-rank", "unequal-lengths": "imbalance",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    name: str
    path: Path
    label: str
    rule: str | None
    """The rule that must fire; None for a healthy run."""
    judges: bool
    """Whether the recording only judges, and set no threshold."""
    saved: float | None
    """GPU-seconds of its window that removing the fault gained, measured."""
    spread: float
    """Uncertainty of `saved`: half the range of the repeated runs, added."""


def recordings() -> list[Recording]:
    turn: dict[str, int] = {}
    kept = []
    for folder in (ONE, SEVERAL):
        for name, row in json.loads((folder / "index.json").read_text()).items():
            path = folder / (f"{name}.json.gz" if folder is ONE else name)
            label = RULE_OF.get(row["label"])
            gpus = 1 if folder is ONE else len(row["summaries"])
            saved, spread = _saving(row, gpus)
            times = sorted(row["profiled_seconds"])
            hidden = saved is not None and saved < COST * gpus * times[len(times) // 2]
            key = label or "healthy"
            turn[key] = turn.get(key, -1) + 1
            kept.append(
                Recording(
                    name=name if folder is ONE else f"{name} (2 ranks)",
                    path=path,
                    label=row["label"],
                    rule=None if hidden else label,
                    judges=turn[key] % 2 == 1,
                    saved=saved,
                    spread=spread,
                )
            )
    return kept


EARLIER = "57923e6"
"""The commit that holds an older set of recordings, of another H200, before any rule was written."""


def earlier(folder: Path) -> list[Recording]:
    """Extract that set from the repository's history into a folder; empty without the history."""
    packed = subprocess.run(
        ["git", "archive", EARLIER, "tests/data/h200_traces"],
        cwd=DATA.parents[1],
        capture_output=True,
        check=False,
    )
    if packed.returncode:
        return []
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(folder, filter="data")
    traces = folder / "tests" / "data" / "h200_traces"
    kept = []
    for name, row in json.loads((traces / "index.json").read_text()).items():
        if row["label"] in ("slow-rank", "unequal-lengths"):
            label = None  # on one rank there is nobody to wait
        else:  # this one is removed by merging micro-batches
            label = (
                "small-micro-batch" if name == "launch-bound-parts" else RULE_OF.get(row["label"])
            )
        taken = sum(step["seconds"] for step in row["summary"]["steps"][1:3])
        saved = taken - row["removed_seconds"] if "removed_seconds" in row else None
        hidden = saved is not None and saved < COST * taken
        kept.append(
            Recording(
                name=name,
                path=traces / f"{name}.json.gz",
                label=row["label"],
                rule=None if hidden else label,
                judges=True,
                saved=saved,
                spread=0.0,
            )
        )
    return kept


def _saving(row: dict[str, Any], gpus: int) -> tuple[float | None, float]:
    if "removed_seconds" not in row:
        return None, 0.0
    taken = sorted(row["profiled_seconds"])
    groups = row["removed_all"]
    groups = groups if isinstance(groups[0], list) else [groups]
    spread = (taken[-1] - taken[0]) / 2 + max((max(g) - min(g)) / 2 for g in groups)
    return gpus * (taken[len(taken) // 2] - row["removed_seconds"]), gpus * spread
