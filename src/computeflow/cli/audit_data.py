"""An audit as the JSON that `audit -o json` promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from computeflow import codec
from computeflow.catalog.rows import Grid
from computeflow.ledger import Finding, ledger_to_data
from computeflow.telemetry.observed import Observed
from computeflow.telemetry.traces.job import TracedJob
from computeflow.telemetry.traces.measured import RankMeasured

SCHEMA = "computeflow.audit/1"


def audit_data(found: TracedJob) -> dict[str, Any]:
    job = found.job
    return {
        "schema": SCHEMA,
        "window": codec.encode(job.ledger.window),
        "ledger": ledger_to_data(job.ledger),
        "per_rank": [
            {
                "rank": part.rank,
                "source": part.source,
                "ledger": ledger_to_data(part.ledger),
                "came_last": part.came_last,
                "waited_for_seconds": part.waited_for_seconds,
                "clock_offset_seconds": offset,
                **_rank_data(rank),
            }
            for part, rank, offset in zip(
                job.ranks, found.ranks, job.clock_offsets_seconds, strict=True
            )
        ],
        "clock_spread_seconds": job.clock_spread_seconds,
        "shared_collectives": job.shared_collectives,
        "findings": [],
        "abstained": [],
        "sources": [{"path": rank.source, "kind": "kineto", "rank": rank.rank,
                     "rank_from": rank.rank_from, "events": rank.events} for rank in found.ranks],
        "left_out": list(found.left_out),
        "notes": [*found.notes, *job.notes],
    }  # fmt: skip


def observed_data(observed: Sequence[Observed], left_out: Sequence[str]) -> dict[str, Any]:
    """Where there is no trace: the first source that has a ledger gives it."""
    main = next((each for each in observed if each.ledger is not None), None)
    ledger = None if main is None else main.ledger
    return {
        "schema": SCHEMA,
        "window": None if ledger is None else codec.encode(ledger.window),
        "ledger": None if ledger is None else ledger_to_data(ledger),
        "ledger_reason": "" if ledger else "; ".join(each.ledger_reason for each in observed),
        "per_rank": [],
        "findings": [],
        "abstained": [],
        "sources": [
            {"path": path, "kind": each.kind} for each in observed for path in each.sources
        ],
        "left_out": [*left_out, *(text for each in observed for text in each.left_out)],
        "notes": [note for each in observed for note in each.notes],
    }


def with_findings(data: dict[str, Any], observed: Sequence[Observed], price: float | None) -> None:
    """Into `data`: findings and abstentions of all sources, the dearest first."""
    found = [finding_data(finding, each, price) for each in observed for finding in each.findings]
    data["findings"] += found
    data["findings"].sort(key=lambda finding: -finding["gpu_seconds"])
    for each in observed:
        data["abstained"] += [
            codec.encode(one) for one in getattr(each.facts, "abstained", ()) or ()
        ]


def finding_data(finding: Finding, observed: Observed, price: float | None) -> dict[str, Any]:
    ledger = observed.ledger
    share = finding.gpu_seconds / ledger.gpu_seconds if ledger else None
    dollars = None
    if price is not None and ledger is not None:
        dollars = finding.gpu_seconds / ledger.wall_seconds * price
    return {
        **codec.encode(finding),
        "gpu_seconds": finding.gpu_seconds,
        "share": share,
        "usd_per_hour": finding.usd_per_hour if dollars is None else dollars,
        "source": observed.kind,
    }


def _rank_data(rank: RankMeasured) -> dict[str, Any]:
    return {
        "device": rank.device,
        "steps": [
            {"step": number, "seconds": rank.step_seconds[place],
             "accounts": {name: values[place] for name, values in rank.by_step.items()}}
            for place, number in enumerate(rank.steps)
        ],
        "host": rank.host,
        "flops": rank.flops,
        "kernels": [codec.encode(row) for row in rank.kernels],
        "operators": [codec.encode(row) for row in rank.operators],
        "gaps": [codec.encode(row) for row in rank.gaps],
        "queue": {"mean": rank.queue_mean, "most": rank.queue_most, "empty": rank.queue_empty},
        "memory_bound_share": 1 - rank.product_seconds / rank.kernel_seconds
        if rank.flops and rank.kernel_seconds
        else None,
        "hta": None if rank.hta is None else codec.encode(rank.hta),
    }  # fmt: skip


def energy_data(joules: float | None, grid: Grid) -> dict[str, Any]:
    """Energy, what it costs and emits in a region; None where it was not read."""
    hours = None if joules is None else joules / 3.6e6
    return {
        "kilowatt_hours": hours,
        "usd": None if hours is None or grid.usd_per_kwh is None else hours * grid.usd_per_kwh,
        "kg_co2e": None
        if hours is None or grid.grams_co2e_per_kwh is None
        else hours * grid.grams_co2e_per_kwh / 1e3,
        "grid": grid.name,
    }
