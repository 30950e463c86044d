"""Online rules on real training: `clean_run` must be silent, `repeat_faults` says how fast they are.

Two or four ranks over gloo under `record`, an agent for each node, one collector.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.live_training import CpuQuota, agents, collecting, training, wait_for

FAULTS = {"compute": "straggler-rank", "quota": "straggler-rank", "loader": "input-stall"}
"""Faults that are repeated, with the rule that names them."""
_WARM_STEPS = 100
_BETWEEN_SECONDS = 10.0
WITHIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRun:
    ranks: int
    minutes: float
    steps: int
    findings: tuple[str, ...]


def clean_run(minutes: float, ranks: int = 2) -> CleanRun:
    """Train without a fault for so long; what was found."""
    with tempfile.TemporaryDirectory(prefix="online-clean-") as name:
        folder = Path(name)
        with (
            collecting(folder) as collector,
            training(folder, ranks, nodes=True),
            agents(folder, collector),
        ):
            wait_for(lambda: collector.steps() > 0, "the first steps")
            time.sleep(60 * minutes)
            steps, found = collector.steps(), collector.all_findings()
    return CleanRun(
        ranks=ranks,
        minutes=minutes,
        steps=steps,
        findings=tuple(f"{each['rule']} {each['ranks']}: {each['title']}" for each in found),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """One fault of one run again and again: seconds from its begin and from its end."""

    fault: str
    ranks: int
    opened: tuple[float, ...]
    closed: tuple[float, ...]
    others: tuple[str, ...]
    """Other findings meanwhile."""
    real_quota: bool = True


def repeat_faults(ranks: int, times: int, say: Callable[[str], None]) -> list[Repeated]:
    """Switch each fault on and off on the last rank of one run, so many times."""
    results = []
    with tempfile.TemporaryDirectory(prefix="online-faults-") as name:
        folder = Path(name)
        with (
            collecting(folder) as collector,
            training(folder, ranks, nodes=True) as (command, processes),
            agents(folder, collector),
            closing(CpuQuota(processes[-1].pid)) as quota,
        ):
            wait_for(lambda: collector.steps() > _WARM_STEPS, "the first steps")
            for fault, rule in FAULTS.items():
                opened, closed = [], []
                first = len(collector.all_findings())
                for _ in range(times):
                    time.sleep(_BETWEEN_SECONDS)
                    began = time.time()
                    command.write_text(fault)
                    if fault == "quota":
                        quota.hold()
                    named = partial(collector.named, rule, [ranks - 1])
                    finding = wait_for(named, f"{fault} is named")
                    opened.append(finding["opened"] - began)
                    quota.release()
                    command.write_text("")
                    ended = time.time()
                    wait_for(lambda: not collector.open_findings(), f"{fault} is over")
                    closed.append(time.time() - ended)
                    say(f"{ranks} ranks, {fault}: named after {opened[-1]:.1f} s")
                others = [
                    f"{each['rule']} {each['ranks']}"
                    for each in collector.all_findings()[first:]
                    if (each["rule"], each["ranks"]) != (rule, [ranks - 1])
                ]
                results.append(
                    Repeated(
                        fault=fault,
                        ranks=ranks,
                        opened=tuple(opened),
                        closed=tuple(closed),
                        others=tuple(others),
                        real_quota=quota.is_real,
                    )
                )
    return results


def clean_section(run: CleanRun) -> list[str]:
    silent = "silent" if not run.findings else f"{len(run.findings)} findings"
    return [
        f"- {run.minutes:g} minutes of {run.ranks} ranks without a fault, {run.steps:,} steps: "
        f"**{silent}**",
        *(f"  - {text}" for text in run.findings),
    ]


_WORDS = {
    "compute": "40 ms more in the forward pass of the last rank",
    "quota": "10 ms of CPU in every forward pass, and a quota of a tenth of a core on the last rank",
    "loader": "60 ms of waiting for data on the last rank",
}
_STANDS_FOR = "the last rank stopped by signals for nine tenths of the time, for a CPU quota"


def faults_section(results: Sequence[Repeated]) -> list[str]:
    lines = [
        "| fault | ranks | times | named after, s: median / worst | within 10 s | closed after, s | "
        "other findings |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for each in results:
        words = _WORDS[each.fault] if each.real_quota or each.fault != "quota" else _STANDS_FOR
        within = sum(seconds <= WITHIN_SECONDS for seconds in each.opened)
        lines.append(
            f"| {words} | {each.ranks} | {len(each.opened)} | {statistics.median(each.opened):.1f} / "
            f"{max(each.opened):.1f} | {within} | {statistics.median(each.closed):.1f} / "
            f"{max(each.closed):.1f} | {', '.join(each.others) or 'none'} |"
        )
    return lines
