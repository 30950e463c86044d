"""One collector at the size of a fleet; benchmarks/reports/collector.md.

    python -m benchmarks.prove_collector                 all parts, about half an hour
    python -m benchmarks.prove_collector --minutes 2     real time for two minutes, not ten
    python -m benchmarks.prove_collector --part clients  one part: real-time, full-speed, clients, curve

- real-time: 16,384 ranks on 2,048 nodes, one step a second, with a rank 1.5 times slow now and then:
  every step is in the store once, and each slow rank is named; seconds from the end of its first slow
  step to the finding.
- full-speed: an hour of the same data as fast as the collector takes it, old data deleted meanwhile:
  memory stays flat; bytes on disk for one step of one rank.
- clients: 1,024 ranks, each an HTTP client with a connection of its own.
- curve: cores that the collector needs at 1,024 to 32,768 ranks.

The fleet is a process of its own and its processor time is counted apart; both share this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.collector_process import (
    CollectorProcess,
    Cost,
    count_steps,
    seal_all,
    stored_findings,
)
from benchmarks.fleet_bodies import Plant
from benchmarks.fleet_load import Load, LoadResult, running_load

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "reports" / "collector.md"
RANKS = 16_384
SLOW = 1.5
_PLANT_STEPS, _PLANT_EVERY, _FIRST_PLANT = 15, 45, 30
_SAMPLE_SECONDS = 2.0
_WARM = 0.25
"""Share of a part after which memory and processor time are taken."""
_SIZES = (1_024, 2_048, 4_096, 8_192, 16_384, 32_768)
_MEDIAN_SECONDS, _WORST_SECONDS = 3.0, 5.0
_SLOPE_BYTES_PER_MINUTE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """One part: what was sent, what it cost, what was found."""

    name: str
    ranks: int
    load: dict[str, Any]
    collector_cores: float
    generator_cores: float
    rss_mb: float
    rss_slope_bytes_per_minute: float
    """Growth for each minute of data, after the warm-up."""
    peak_rss_mb: float
    figures: dict[str, Any] = field(default_factory=dict)
    rss_parts_mb: dict[str, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def plants_of(steps: int, ranks: int) -> tuple[Plant, ...]:
    """A slow rank in every 45 steps, another one each time."""
    begins = range(_FIRST_PLANT, steps - _PLANT_STEPS, _PLANT_EVERY)
    return tuple(
        Plant(rank=(7_919 * (n + 1)) % ranks, begin=at, end=at + _PLANT_STEPS, factor=SLOW)
        for n, at in enumerate(begins)
    )


Costs = tuple[list[Cost], dict[str, float]]
"""What a collector used over time, and the memory of its processes at the end."""


def _watched(collector: CollectorProcess, load: Load) -> tuple[LoadResult, Costs]:
    """Send a load, and look at what the collector costs meanwhile."""
    costs, parts = [collector.cost()], collector.parts()
    with running_load(load) as sending:
        while sending.process.poll() is None:
            time.sleep(_SAMPLE_SECONDS)
            costs.append(collector.cost())
            parts = collector.parts()
        return sending.result(), (costs, parts)


def _part(
    name: str,
    load: Load,
    result: LoadResult,
    used: Costs,
    *,
    figures: dict[str, Any],
    problems: Sequence[str],
) -> PartResult:
    costs, parts = used
    warm = costs[int(_WARM * len(costs)) :] if len(costs) > 4 else costs
    first, last = warm[0], warm[-1]
    cores = (last.cpu_seconds - first.cpu_seconds) / max(last.at - first.at, 1e-9)
    data_per_second = load.steps / result.seconds  # a step is a second of data
    slope = _slope([cost.at * data_per_second / 60 for cost in warm], [c.rss_bytes for c in warm])
    bad = {status: count for status, count in result.statuses.items() if status != "200"}
    return PartResult(
        name=name,
        ranks=load.ranks,
        load=asdict(result) | {"step_ends": [], "ack_seconds": [], "refused": bad},
        collector_cores=cores,
        generator_cores=result.cpu_seconds / result.seconds,
        rss_mb=statistics.median(cost.rss_bytes for cost in warm) / 1e6,
        rss_slope_bytes_per_minute=slope,
        peak_rss_mb=max(cost.rss_bytes for cost in costs) / 1e6,
        figures=figures,
        rss_parts_mb=parts,
        problems=tuple(problems),
    )


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    return statistics.linear_regression(x, y).slope if len(set(x)) > 1 else 0.0


def _positions(collector: CollectorProcess, load: Load, result: LoadResult) -> list[str]:
    """What is wrong with the records that the collector has taken."""
    known = collector.ask(f"/v1/positions?run={load.run}")["next"]
    wrong = sum(count != result.records_per_rank for count in known.values())
    problems = [f"{wrong} ranks have other records than were sent"] if wrong else []
    if len(known) != load.ranks:
        problems.append(f"{len(known)} ranks are known of {load.ranks}")
    return problems


def real_time(folder: Path, minutes: float, ranks: int = RANKS) -> PartResult:
    steps = round(60 * minutes / 1.15)  # steps with a slow rank take longer than a second
    plants = plants_of(steps, ranks)
    store = folder / "real-time"
    with CollectorProcess(store, "--price", "2.5") as collector:
        load = Load(port=collector.port, ranks=ranks, steps=steps, plants=plants)
        result, used = _watched(collector, load)
        time.sleep(10.0)  # for the finding on the last plant to close
        problems = _positions(collector, load, result)
    problems += _lost(seal_all(store, result.rank_steps), result)
    latency, wrong = find_latencies(stored_findings(store), plants, result.step_ends)
    missed = sum(value is None for value in latency)
    found = sorted(value for value in latency if value is not None)
    if missed:
        problems.append(f"{missed} of {len(plants)} slow ranks were not found")
    if found and (statistics.median(found) > _MEDIAN_SECONDS or found[-1] > _WORST_SECONDS):
        problems.append("slow ranks were found too late")
    _, _, size = count_steps(store)
    figures = {
        "plants": len(plants),
        "found": len(found),
        "latency_seconds": [round(value, 2) for value in found],
        "wrong_findings": wrong,
        "behind_seconds": round(result.behind_seconds, 2),
        "ack_seconds_median_p99_worst": result.ack_seconds,
        "bytes_per_rank_step": size / result.rank_steps,
        "wire_bytes_per_rank_step": result.bytes_sent / result.rank_steps,
    }
    return _part("real-time", load, result, used, figures=figures, problems=problems)


def _lost(counted: tuple[int, int, int], result: LoadResult) -> list[str]:
    count, distinct, _ = counted
    problems = []
    if distinct != result.rank_steps:
        problems.append(f"{result.rank_steps - distinct:,} of {result.rank_steps:,} steps are lost")
    if count != distinct:
        problems.append(f"{count - distinct:,} steps are there twice")
    return problems


def find_latencies(
    findings: Sequence[dict[str, Any]], plants: Sequence[Plant], ends: Sequence[float]
) -> tuple[list[float | None], list[str]]:
    """Seconds to the finding of each plant, None where there is none; and findings on nothing."""
    latency: list[float | None] = []
    right: set[str] = set()
    for plant in plants:
        begin, end = ends[plant.begin], ends[plant.end - 1]
        mine = [
            finding
            for finding in findings
            if finding["rule"] == "straggler-rank"
            and list(finding["ranks"]) == [plant.rank]
            and begin - 1 <= finding["opened"] <= end + 10
        ]
        right |= {
            finding["key"]
            for finding in findings
            if list(finding["ranks"]) == [plant.rank] and begin - 10 <= finding["onset"] <= end
        }
        latency.append(min((finding["opened"] for finding in mine), default=None))
        if latency[-1] is not None:
            latency[-1] -= begin
    wrong = [f"{f['rule']} {f['ranks']}: {f['title']}" for f in findings if f["key"] not in right]
    return latency, wrong


def full_speed(folder: Path, minutes: float, ranks: int = RANKS) -> PartResult:
    steps = round(60 * minutes)
    store = folder / "full-speed"
    with CollectorProcess(store, "--keep-bytes", "500MB") as collector:
        load = Load(
            port=collector.port, ranks=ranks, steps=steps, real_time=False, steps_per_body=15
        )
        result, used = _watched(collector, load)
        problems = _positions(collector, load, result)
    done = _part("full-speed", load, result, used, figures={}, problems=problems)
    figures = {
        "data_minutes": minutes,
        "times_real_time": steps / result.seconds,
        "rank_steps_per_second": result.rank_steps / result.seconds,
        "disk_mb": sum(p.stat().st_size for p in store.rglob("*") if p.is_file()) / 1e6,
    }
    if done.rss_slope_bytes_per_minute > _SLOPE_BYTES_PER_MINUTE:
        problems.append("memory grows by more than 1 MB a minute of data")
    return _part("full-speed", load, result, used, figures=figures, problems=problems)


def clients(folder: Path, seconds: int = 60, ranks: int = 1_024) -> PartResult:
    """Each rank sends by itself over a connection that it keeps."""
    store = folder / "clients"
    with CollectorProcess(store) as collector:
        load = Load(
            port=collector.port, ranks=ranks, steps=seconds, ranks_per_body=1, connections=ranks
        )
        result, used = _watched(collector, load)
        problems = _positions(collector, load, result)
    problems += _lost(seal_all(store, result.rank_steps), result)
    figures = {
        "connections": ranks,
        "ack_seconds_median_p99_worst": result.ack_seconds,
        "behind_seconds": round(result.behind_seconds, 2),
    }
    return _part("clients", load, result, used, figures=figures, problems=problems)


def curve(folder: Path, seconds: int = 45, sizes: Sequence[int] = _SIZES) -> list[PartResult]:
    """Cores by ranks; what takes longer than it should is no longer real time."""
    results = []
    for ranks in sizes:
        store = folder / f"curve-{ranks}"
        with CollectorProcess(store) as collector:
            load = Load(port=collector.port, ranks=ranks, steps=seconds)
            result, used = _watched(collector, load)
            problems = _positions(collector, load, result)
        figures = {"behind_seconds": round(result.behind_seconds, 2)}
        results.append(
            _part(f"curve-{ranks}", load, result, used, figures=figures, problems=problems)
        )
        shutil.rmtree(store)
    return results


def report(results: Sequence[PartResult], before: str = "") -> str:
    """The report; parts of an earlier one that were not run again stay as they are."""
    rows, sections = _kept_parts(before)
    for part in results:
        rows[part.name], sections[part.name] = _table_row(part), _section(part)
    head = (
        "| part | ranks | rank-steps | cores of the collector | of the fleet | memory, MB (peak) |"
    )
    lines = [
        "# One collector at the size of a fleet",
        "",
        f"Written by `python -m benchmarks.prove_collector` on {os.cpu_count()} cores, which the "
        "collector shares with the fleet that sends. Cores are processor seconds a second after the "
        "warm-up, of all processes of the collector.",
        "",
        head,
        "|---|---|---|---|---|---|",
    ]
    lines += rows.values()
    for name, section in sections.items():
        lines += ["", f"## {name}", "", *section]
    return "\n".join(lines) + "\n"


def _kept_parts(text: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Rows of the table and sections of a report, by the name of their part."""
    rows: dict[str, str] = {}
    sections: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("## "):
            name = line.removeprefix("## ")
            sections[name] = []
        elif name and line:
            sections[name].append(line)
        elif line.startswith("| ") and not line.startswith("| part"):
            rows[line.split("|")[1].strip()] = line
    return rows, sections


def _table_row(part: PartResult) -> str:
    return (
        f"| {part.name} | {part.ranks:,} | {part.load['rank_steps']:,} | "
        f"{part.collector_cores:.2f} | {part.generator_cores:.2f} | "
        f"{part.rss_mb:.0f} ({part.peak_rss_mb:.0f}) |"
    )


def _section(part: PartResult) -> list[str]:
    return [
        *(f"- {name}: {_worded(value)}" for name, value in part.figures.items()),
        f"- memory by process, MB: {_worded(part.rss_parts_mb)}",
        f"- memory, bytes a minute of data after the warm-up: {part.rss_slope_bytes_per_minute:,.0f}",
        f"- answers other than 200: {part.load['refused'] or 'none'}",
        f"- not as it must be: {'; '.join(part.problems) or 'nothing'}",
    ]


def _worded(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_worded(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_worded, value[:40])) or "none"
    return str(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="of the part in real time")
    parser.add_argument(
        "--data-minutes", type=float, default=60.0, help="of the part at full speed"
    )
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--part", choices=("real-time", "full-speed", "clients", "curve"))
    parser.add_argument("--no-report", action="store_true")
    options = parser.parse_args()
    parts: dict[str, Callable[[Path], PartResult | list[PartResult]]] = {
        "real-time": lambda folder: real_time(folder, options.minutes, options.ranks),
        "full-speed": lambda folder: full_speed(folder, options.data_minutes, options.ranks),
        "clients": clients,
        "curve": curve,
    }
    results: list[PartResult] = []
    with tempfile.TemporaryDirectory(prefix="computeflow-collector-") as name:
        for part in [options.part] if options.part else parts:
            done = parts[part](Path(name))
            results += done if isinstance(done, list) else [done]
            print(json.dumps([asdict(each) for each in results[-1:]], indent=1), file=sys.stderr)
    text = report(results, REPORT.read_text() if REPORT.exists() else "")
    if not options.no_report:
        REPORT.write_text(text)
    print(text)
    if any(part.problems for part in results):
        sys.exit("not everything is as it must be")


if __name__ == "__main__":
    main()
