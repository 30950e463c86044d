"""Write the packaged tables of measured runs: `python -m benchmarks.collect_cases`.

`cases.csv` and `cases_2.csv` are the public tables (the folder that COMPUTEFLOW_DATA names) with what
their sources say elsewhere; facts only: runs with shapes, batch and a step time, each with its source.
`evidence/seen_runs.csv` is how far the formulas miss each of these runs, those of `found_runs.csv` and
our own H200's, and `evidence/factors.csv` what is learned from that; `--evidence` writes these alone,
without the public tables.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from computeflow.catalog import load_catalog
from computeflow.prediction.evidence import learn
from computeflow.prediction.evidence.maturity import PACKAGED as FACTORS
from computeflow.prediction.evidence.seen_runs import PACKAGED, SeenRun, traits_of
from computeflow.prediction.parameters import load_parameters
from computeflow.prediction.published_runs import TABLES, MeasuredRun, read_cases, step_inputs_of
from computeflow.prediction.step import account_step

COLUMNS = (
    "row_id source source_path commit year kind model_name params_b active_params_b layers hidden "
    "heads kv_heads ffn_hidden vocab seq_len moe_experts moe_topk gpu num_gpus gpus_per_node "
    "inter_node_link tp pp vp dp cp ep zero_fsdp micro_batch grad_accum global_batch precision "
    "recompute flags framework tokens_per_sec_per_gpu d_step_time_s memory_gb quality core"
).split()
NETWORKS = {  # what a source says of its network elsewhere than in its table
    "bigscience-bloom": "4x100 Gb/s OmniPath per node (bigscience README: 4 OmniPath links)",
}
DATA = Path(__file__).parent / "data"
RECIPES = DATA / "recipe_facts.csv"
"""Settings from the recipes of a release that its result tables leave out, each with its source."""
OWN = DATA / "h200" / "steps.csv"


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def collect(name: str, target: Path) -> None:
    folder = Path(os.environ.get("COMPUTEFLOW_DATA", "../shared/data"))
    rows = read_rows(folder / name)
    kept = [row for row in rows if row["layers"] and row["d_step_time_s"]]
    recipes = {row["row_id"]: row for row in read_rows(RECIPES)}
    for row in kept:
        row["inter_node_link"] = row["inter_node_link"] or NETWORKS.get(row["source"], "")
        if recipe := recipes.get(row["row_id"]):
            row["recompute"] = row["recompute"] or recipe["recompute"]
            row["flags"] = "; ".join(filter(None, [row["flags"], recipe["flags"]]))
    write_rows(target, [dict(row) for row in kept], COLUMNS)
    print(f"{name}: {len(kept)} of {len(rows)} rows have shapes and a step time")


def packaged_cases() -> tuple[list[MeasuredRun], dict[str, str]]:
    """Runs of all packaged tables and our own, and why other rows are none."""
    facts = load_catalog()
    cases: list[MeasuredRun] = []
    skipped: dict[str, str] = {}
    for path in (*TABLES, OWN):
        some, left_out = read_cases(path.read_text(encoding="utf-8"), facts, path.name)
        cases += some
        skipped |= left_out
    return cases, skipped


def seen(cases: Sequence[MeasuredRun]) -> list[SeenRun]:
    """How far the formulas miss each run that is beyond doubt: its precision and software known."""
    seconds = account_step(step_inputs_of(cases), load_parameters()).seconds
    return [
        SeenRun(
            row_id=case.row_id,
            source=case.source,
            traits=traits_of(case.job, case.cluster.accelerator, case.stack),
            gpus=case.layout.gpus,
            log_ratio=round(float(np.log(case.measured_seconds / second)), 4),
        )
        for case, second in zip(cases, seconds, strict=True)
        if case.clear and not {"precision", "stack"} & set(case.missing)
    ]


def write_evidence() -> None:
    cases, skipped = packaged_cases()
    rows = []
    for run in seen(cases):
        values = asdict(run)
        values |= values.pop("traits")
        rows.append(values | {"young": int(run.traits.young)})
    columns = "row_id source device generation stack family kind young gpus log_ratio"
    write_rows(PACKAGED, rows, columns.split())
    print(f"{PACKAGED.name}: {len(rows)} runs; not predicted: {len(skipped)}")
    factors = [
        {
            "trait": trait,
            "value": value,
            "log_factor": f"{factor.mean:.5f}",
            "deviation": f"{factor.deviation:.5f}",
        }
        for (trait, value), factor in sorted(learn(seen(cases)).factors.items())
    ]
    write_rows(FACTORS, factors, ("trait", "value", "log_factor", "deviation"))


def main() -> int:
    if "--evidence" not in sys.argv[1:]:
        collect("throughput.csv", TABLES[0])
        collect("throughput_2.csv", TABLES[1])
    write_evidence()
    return 0


if __name__ == "__main__":
    sys.exit(main())
