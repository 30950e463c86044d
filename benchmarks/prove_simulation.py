"""Checks of `simulate`, measured and written to benchmarks/reports/simulation.md.

The pages docs/validate-runs.md and docs/compare-sites.md are written again, too.

Speed and equal bytes of the command itself, the formulas where they hold and where they do not, and how
often a better run was later with the same random numbers (never is the claim).
"""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import run_command
from computeflow.catalog import load_catalog
from computeflow.scheduling import Checkpoints, Eviction, Policy, Spares, daly_seconds
from computeflow.simulation import (
    RunInputs,
    change_conditions,
    find_failures,
    simulate,
    usual_conditions,
)
from computeflow.simulation.curves import interval_curve
from computeflow.simulation.fault_trace import SOURCE, predict_second_half
from computeflow.simulation.run_validation import validate_runs
from computeflow.simulation.simulate import play_many
from computeflow.simulation.site_scenarios import load_sites
from computeflow.simulation.two_sites import compare_sites
from computeflow.views.run_pages import runs_page, sites_page

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "reports" / "simulation.md"
COMMAND = ["simulate", "llama-3.1-405b", "--on", "h100-sxm:16384", "--global-batch", "2048",
           "--seq-len", "8192", "--tp", "8", "--pp", "16", "--vp", "4", "--cp", "1", "--days", "54",
           "--simulations", "10000", "-o", "json"]  # fmt: skip
DAY = 86400.0
CALM: dict[str, Any] = {
    "stragglers_per_node_day": 0.0, "outages_per_year": 0.0, "inspected": 1.0,
    "silent_seconds": 0.0, "repaired": 0.0, "startup_seconds": 0.0, "persist_seconds": 0.0,
    "swap_seconds": 0.0, "load_seconds": 0.0, "warm_seconds": 0.0,
}  # fmt: skip
PAIRS = 500


def a_run(gpus: int, days: float, **changes: Any) -> RunInputs:
    conditions = usual_conditions(find_failures("llama-3"), **changes)
    return RunInputs(
        label="calm", gpus=gpus, node_gpus=8, work_seconds=days * DAY, conditions=conditions
    )


def speed_lines() -> list[str]:
    local = run_command(*COMMAND, "--engine", "local")
    here, seconds, peak = local.output, local.cpu_seconds, local.peak_bytes
    there = run_command(*COMMAND, "--engine", "ray").output
    same = "the same bytes" if here == there else "OTHER BYTES"
    return [
        "## Speed, and equal bytes",
        "",
        f"`computeflow {' '.join(COMMAND)}`: 10,000 replicas of 54 days on 16,384 GPUs in "
        f"**{seconds:.1f} CPU-s** (target 20), start of the program included, {peak / 1e6:.0f} MB. "
        f"With `--engine ray`: {same} (sha256 {hashlib.sha256(here).hexdigest()[:12]} and "
        f"{hashlib.sha256(there).hexdigest()[:12]}). Python {platform.python_version()}, numpy "
        f"{np.__version__}.",
        "",
    ]


def formula_lines() -> list[str]:
    cases = [
        (1024, 60, 1200, 200, "holds"),
        (4096, 30, 300, 100, "holds"),
        (16384, 20, 600, 60, "holds"),
        (16384, 1, 300, 60, "holds"),
        (65536, 20, 600, 10, "large losses"),
        (131072, 20, 600, 5, "large losses"),
        (131072, 60, 900, 5, "large losses"),
    ]
    lines = [
        "## ETTR by formula",
        "",
        "Constant rate of Llama 3, one recovery time, saves that block and are safe at once, Daly's "
        "interval.",
        "",
        "| GPUs | write, s | recovery, s | simulated | exact | Meta | Meta off by, points | |",
        "|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for gpus, write, recovery, days, kind in cases:
        run = a_run(gpus, days, **CALM | {"stall_seconds": write, "init_seconds": recovery})
        simulated = simulate(run, replicas=300)
        off = 100 * (simulated.closed.meta_ettr - simulated.ettr.mean)
        lines.append(
            f"| {gpus:,} | {write} | {recovery} | {simulated.ettr.mean:.4f} | "
            f"{simulated.closed.exact_ettr:.4f} | {simulated.closed.meta_ettr:.4f} | "
            f"{off:+.2f} | {kind} |"
        )
    alone = replace(a_run(2048, 20, **CALM | {"repaired": 0.37}), policy=Policy())
    simulated = simulate(alone, replicas=100)
    lines += [
        "",
        "Where it is wrong: it adds up losses as if they were small, so it is the further too low the "
        "more is lost; and it knows nothing of waiting. Without spares, 2,048 GPUs with "
        f"published repair times have an ETTR of {simulated.ettr.mean:.2f}; the formula says "
        f"{simulated.closed.meta_ettr:.2f}.",
        "",
    ]
    return lines


def interval_lines() -> list[str]:
    lines = [
        "## The best checkpoint interval",
        "",
        "| case | simulated best, s | Young | Daly | best over Daly | Daly costs |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    holds = [(1024, 60, 300), (4096, 30, 60), (16384, 20, 30), (16384, 1, 30), (16384, 120, 30)]
    cases: list[tuple[str, RunInputs]] = [
        (
            f"{gpus:,} GPUs, blocks for {write} s",
            a_run(gpus, days, **CALM | {"stall_seconds": write, "init_seconds": 600.0}),
        )
        for gpus, write, days in holds
    ]
    behind = a_run(16384, 30, **CALM | {"stall_seconds": 0.59, "persist_seconds": 51.1})
    slow = a_run(16384, 30, **CALM | {"stall_seconds": 0.5, "persist_seconds": 595.0})
    early = a_run(16384, 5, **CALM | {"stall_seconds": 20.0, "infant_factor": 9.0})
    rare = a_run(131072, 2, **CALM | {"stall_seconds": 600.0})
    cases += [
        ("16,384 GPUs, blocks for 0.59 s, safe after 51 s", behind),
        ("16,384 GPUs, blocks for 0.5 s, safe after 595 s", slow),
        ("16,384 GPUs, blocks for 20 s, ten times the failures on the first day", early),
        ("131,072 GPUs, blocks for 600 s", rare),
    ]
    conditions = early.conditions
    days = conditions.infant_seconds / DAY / 5  # of the early rate's fall, over the run's five days
    more = 1 + conditions.infant_factor * days * (1 - math.exp(-1 / days))
    theirs = daly_seconds(conditions.stall_seconds, early.between_seconds / more)
    for name, run in cases:
        curve = interval_curve(run, replicas=400)
        ratio = curve.best_seconds / curve.daly_seconds
        cost = f"{100 * curve.daly_costs:.2f} %"
        if curve.daly_seconds < run.conditions.persist_seconds:
            cost = "cannot be"
        lines.append(
            f"| {name} | {curve.best_seconds:,.0f} | {curve.young_seconds:,.0f} | "
            f"{curve.daly_seconds:,.0f} | {ratio:.2f} | {cost} |"
        )
    lines += [
        "",
        "The first five are what the formulas assume, and a short write behind the training does "
        "no harm. Where they are wrong: a save that goes on behind training cannot be made more "
        "often than one takes, however little it blocks; a rate that holds in the long run is not "
        f"that of the first days (from the mean rate of those, Daly's interval is {theirs:,.0f} s); "
        "and Young's is too long where saving takes a good part of the time between failures.",
        "",
    ]
    return lines


def random_run(random: np.random.Generator) -> RunInputs:
    def between(low: float, high: float) -> float:
        return float(random.uniform(low, high))

    conditions = usual_conditions(
        find_failures("llama-3"),
        init_seconds=between(10, 2000),
        load_seconds=between(0, 2000),
        swap_seconds=between(0, 2000),
        timeout_seconds=between(60, 3600),
        inspected=between(0, 1),
        silent_seconds=between(0, 50000),
        repaired=between(0, 1),
        repair_seconds=between(600, 50000),
        repair_spread=between(0, 1.5),
        stall_seconds=between(0, 100),
        persist_seconds=between(0, 300),
        stragglers_per_node_day=between(0, 0.003),
        notice_seconds=between(60, 100000),
        outages_per_year=between(0, 20),
        outage_seconds=between(0, 100000),
        maintenance_every_seconds=float(random.choice([0.0, 2e5, 9e5])),
        throttle=between(0, 0.2),
        infant_factor=between(0, 4),
    )
    policy = Policy(
        checkpoints=Checkpoints(interval_seconds=between(300, 20000)),
        spares=Spares(nodes=int(random.integers(0, 7))),
        eviction=Eviction(stragglers="always" if random.random() < 0.5 else "never"),
    )
    gpus = int(random.choice([256, 2048, 8192]))
    return RunInputs(
        label="random",
        gpus=gpus,
        node_gpus=8,
        work_seconds=10 * DAY,
        conditions=conditions,
        policy=policy,
    )


def more_spares(run: RunInputs) -> RunInputs:
    nodes = run.policy.spares.nodes + 2
    return replace(run, policy=replace(run.policy, spares=Spares(nodes=nodes)))


def faster_restart(run: RunInputs) -> RunInputs:
    names = ("init_seconds", "load_seconds", "warm_seconds", "swap_seconds", "timeout_seconds")
    halved = {name: getattr(run.conditions, name) / 2 for name in names}
    return replace(run, conditions=change_conditions(run.conditions, halved))


def better_tier(run: RunInputs) -> RunInputs:
    halved = {
        name: getattr(run.conditions, name) / 2 for name in ("outages_per_year", "outage_seconds")
    }
    return replace(run, conditions=change_conditions(run.conditions, halved))


def never_later_lines() -> list[str]:
    lines = [
        "## Never later",
        "",
        f"{PAIRS} random runs of ten days of work, each beside one that is better off, 20 replicas "
        "with the same random numbers. Slow nodes are taken out always or never: a rule that weighs "
        "what is left would decide otherwise in both.",
        "",
        "| better by | pairs | later | mean gain |",
        "|---|---:|---:|---:|",
    ]
    changes: dict[str, Callable[[RunInputs], RunInputs]] = {
        "two spares more": more_spares,
        "restart and timeout halved": faster_restart,
        "half the outages, half as long": better_tier,
    }
    for name, change in changes.items():
        random = np.random.default_rng(0)
        later, gains = 0, []
        for number in range(PAIRS):
            run = random_run(random)
            plain, better = play_many([run, change(run)], replicas=20, seed=number)
            later += int((better.seconds > plain.seconds * (1 + 1e-9) + 1e-6).sum())
            gains.append(1 - float(better.seconds.mean() / plain.seconds.mean()))
        lines.append(f"| {name} | {20 * PAIRS:,} | {later} | {100 * np.mean(gains):.2f} % |")
    return [*lines, ""]


def main() -> None:
    lines = [
        "# `simulate`, held to what it claims",
        "",
        "Written by `python -m benchmarks.prove_simulation`. Published runs are in "
        "[docs/validate-runs.md](../../docs/validate-runs.md), two sites in "
        "[docs/compare-sites.md](../../docs/compare-sites.md).",
        "",
    ]
    for part in (speed_lines, formula_lines, interval_lines, never_later_lines):
        lines += part()
    REPORT.write_text("\n".join(lines))
    runs = runs_page(validate_runs(), predict_second_half(), SOURCE)
    (ROOT / "docs" / "validate-runs.md").write_text(runs)
    (ROOT / "docs" / "compare-sites.md").write_text(
        sites_page(compare_sites(load_sites(), load_catalog()))
    )
    print(f"wrote {REPORT.relative_to(ROOT)}, docs/validate-runs.md and docs/compare-sites.md")


if __name__ == "__main__":
    main()
