"""Write the packaged validation cases from the public table: `python -m benchmarks.collect_cases`.

Facts only: runs with shapes, layout and a step time, each with its source. Reads the folder
that COMPUTEFLOW_DATA names.
"""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

from computeflow.prediction.published_runs import NEEDED, PACKAGED

COLUMNS = (
    "row_id source source_path commit year kind model_name layers hidden heads kv_heads ffn_hidden "
    "vocab seq_len moe_experts moe_topk gpu num_gpus gpus_per_node inter_node_link tp pp vp dp cp ep "
    "zero_fsdp micro_batch "
    "global_batch precision recompute flags framework d_step_time_s memory_gb quality"
).split()
NETWORKS = {  # what a source says of its network elsewhere than in its table
    "bigscience-bloom": "4x100 Gb/s OmniPath per node (bigscience README: 4 OmniPath links)",
}

RECIPES = Path(__file__).parent / "data" / "recipe_facts.csv"
"""Settings from the recipes of a release that its result tables leave out, each with its source."""


def main() -> int:
    folder = Path(os.environ.get("COMPUTEFLOW_DATA", "../shared/data"))
    with (folder / "throughput.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    kept = [row for row in rows if all(row[name] for name in NEEDED)]
    with RECIPES.open(newline="") as file:
        recipes = {row["row_id"]: row for row in csv.DictReader(file)}
    for row in kept:
        row["inter_node_link"] = row["inter_node_link"] or NETWORKS.get(row["source"], "")
        if recipe := recipes.get(row["row_id"]):
            row["recompute"] = row["recompute"] or recipe["recompute"]
            row["flags"] = "; ".join(filter(None, [row["flags"], recipe["flags"]]))
    with PACKAGED.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
    print(f"{len(kept)} of {len(rows)} rows have shapes, layout and a step time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
