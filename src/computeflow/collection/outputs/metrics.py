"""`render_metrics`: what a collector knows, as OpenMetrics to be scraped.

Every series is bounded by what is alive: runs, open findings, the slowest ranks of a run and nodes.
Names from the wire become label values, never metric names, except for readings, whose names are those
of exporters (`DCGM_FI_...`) and are checked. A figure that is not known has no series.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from computeflow.collection.online.live_values import LiveFinding, LiveNode, LiveRun, RunState
from computeflow.collection.outputs.sinks import (
    label,
    nodes_label,
    ranks_label,
    run_usd_per_hour,
)
from computeflow.errors import UnavailableError
from computeflow.ledger import ACCOUNTS

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_RUNS = 1_000
MAX_FINDINGS = 1_000
MAX_RANKS_PER_RUN = 16
MAX_NODES = 4_096
MAX_READING_NAMES = 128
MAX_READINGS = 20_000
"""Series of readings that one answer has: beyond them scrape the agents themselves."""
_OWN = "computeflow_"
_READING_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_SUFFIXES = ("_total", "_created", "_bucket", "_count", "_sum", "_info")
"""Ends of names that have a meaning of their own in OpenMetrics."""


@dataclass(slots=True, kw_only=True)
class _Family:
    name: str
    doc: str
    kind: str = "gauge"
    samples: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)

    def add(self, value: float | None, **labels: str) -> None:
        """Add a sample; the first of two with equal labels stays."""
        if value is not None and math.isfinite(value):
            self.samples.setdefault(tuple(labels.items()), float(value))


def render_metrics(
    runs: Sequence[LiveRun],
    findings: Sequence[LiveFinding],
    nodes: Sequence[LiveNode],
    service: Mapping[str, float],
    *,
    text: bool = False,
) -> bytes:
    """The exposition; `text`: Prometheus' older format, for what does not ask for OpenMetrics."""
    opened = [finding for finding in findings if finding.is_open]
    opened.sort(key=lambda finding: -finding.share)
    lost = [
        ("runs", len(runs) - MAX_RUNS),
        ("findings", len(opened) - MAX_FINDINGS),
        ("nodes", len(nodes) - MAX_NODES),
    ]
    readings, unnamed = _readings(nodes[:MAX_NODES])
    cut = _Family(
        name=f"{_OWN}collector_left_out", doc="Runs, findings, nodes and readings without series."
    )
    for what, count in [*lost, ("readings", unnamed)]:
        cut.add(max(count, 0), what=what)
    return _exposed(
        [
            *_run_families(runs[:MAX_RUNS]),
            *_rank_families(runs[:MAX_RUNS]),
            *_finding_families(opened[:MAX_FINDINGS]),
            *_node_families(nodes[:MAX_NODES]),
            *readings,
            *_service_families(service),
            cut,
        ],
        text=text,
    )


def _run_families(runs: Sequence[LiveRun]) -> list[_Family]:
    info = _Family(name=f"{_OWN}run", doc="Name and devices of a run.", kind="info")
    state = _Family(name=f"{_OWN}run_state", doc="1 for the state that a run is in.")
    share = _Family(
        name=f"{_OWN}account_ratio",
        doc="Share of the run's GPU-seconds in the last window, by account; they add up to 1.",
    )
    for run in runs:
        name = label(run.run)
        info.add(1, run=name, name=label(run.name), device=label(run.device), gpu=label(run.gpu))
        for word in get_args(RunState):
            state.add(float(run.state == word), run=name, state=word)
        for account, value in run.accounts.items():
            if account in ACCOUNTS:
                share.add(value, run=name, account=account, owner=ACCOUNTS[account].owner)
    families = [info, state, share]
    for name, doc, figures in _run_figures(runs):
        family = _Family(name=f"{_OWN}{name}", doc=doc)
        for run, figure in figures:
            family.add(figure, run=label(run.run))
        families.append(family)
    return families


def _run_figures(
    runs: Sequence[LiveRun],
) -> Iterator[tuple[str, str, Iterable[tuple[LiveRun, float | None]]]]:
    figures = {
        "step_seconds": ("Median time of a step in the last window.", "step_seconds"),
        "step_number": ("Last step; it goes back where a run goes back.", "step"),
        "tokens_per_second": ("Tokens trained a second, all ranks.", "tokens_per_second"),
        "mfu_ratio": ("Model FLOPs over the dense peak.", "mfu"),
        "goodput_ratio": (
            "Share of the GPU-seconds since the run began that passed in steps that were kept.",
            "goodput",
        ),
        "world_ranks": ("Ranks that the run has.", "world"),
        "heard_ranks": ("Ranks that the collector heard of.", "ranks"),
        "run_attempt": ("How often the run was restarted.", "attempt"),
        "run_started_timestamp_seconds": ("When the run began.", "started"),
        "run_updated_timestamp_seconds": ("When the run was last heard of.", "updated"),
        "run_dropped_records": ("Records that the run's recorders dropped.", "dropped"),
    }
    for name, (doc, attribute) in figures.items():
        yield name, doc, ((run, getattr(run, attribute)) for run in runs)
    yield "run_usd_per_hour", "What the run's GPUs cost an hour.", ((r, _hourly(r)) for r in runs)


def _hourly(run: LiveRun) -> float | None:
    return None if run.state == "ended" else run_usd_per_hour(run)


def _rank_families(runs: Sequence[LiveRun]) -> list[_Family]:
    late = _Family(
        name=f"{_OWN}rank_late_seconds",
        doc="Median time that a rank comes to collectives after its peers; the slowest of a run.",
    )
    own = _Family(
        name=f"{_OWN}rank_own_seconds",
        doc="Median time of a step without waits, of the same ranks.",
    )
    for run in runs:
        for rank in run.slowest[:MAX_RANKS_PER_RUN]:
            labels = {"run": label(run.run), "rank": str(rank.rank), "node": label(rank.node)}
            late.add(rank.late_seconds, **labels)
            own.add(rank.own_seconds, **labels)
    return [late, own]


def _finding_families(findings: Sequence[LiveFinding]) -> list[_Family]:
    docs = {
        "finding_ratio": "Share of the run's GPU-seconds that an open finding costs.",
        "finding_usd_per_hour": "Dollars an hour that an open finding costs.",
        "finding_usd": "Dollars that an open finding has cost since its onset.",
        "finding_gpu_seconds": "GPU-seconds that an open finding has cost since its onset.",
        "finding_age_seconds": "Time from the onset of an open finding to when it was last seen.",
        "finding_silenced_until_timestamp_seconds": "Until when nobody is told of the finding.",
    }
    families = {name: _Family(name=f"{_OWN}{name}", doc=doc) for name, doc in docs.items()}
    for finding in findings:
        labels = {
            "finding": label(finding.key),
            "run": label(finding.run),
            "rule": label(finding.rule),
            "account": label(finding.account),
            "ranks": ranks_label(finding.ranks),
            "nodes": nodes_label(finding.nodes),
        }
        values = (
            finding.share,
            finding.usd_per_hour,
            finding.usd,
            finding.gpu_seconds,
            max(finding.seen - finding.onset, 0.0),
            finding.silenced_until,
        )
        for family, value in zip(families.values(), values, strict=True):
            family.add(value, **labels)
    return [*families.values()]


def _node_families(nodes: Sequence[LiveNode]) -> list[_Family]:
    seen = _Family(
        name=f"{_OWN}node_last_seen_timestamp_seconds", doc="When a node's agent was last heard of."
    )
    gpus = _Family(name=f"{_OWN}node_gpus", doc="GPUs that a node's agent sees.")
    missing = _Family(name=f"{_OWN}node_missing_signals", doc="Signals that a node does not give.")
    for node in nodes:
        name = label(node.node)
        seen.add(node.last_seen, node=name)
        gpus.add(node.gpus, node=name)
        missing.add(len(node.missing), node=name)
    return [seen, gpus, missing]


def _readings(nodes: Sequence[LiveNode]) -> tuple[list[_Family], int]:
    """Readings by the exporters' names, and how many have a name that cannot be one."""
    families: dict[str, _Family] = {}
    taken = lost = 0
    for node in nodes:
        host = label(node.node)
        for name, value in node.readings.items():
            known = name in families
            new = not known and _is_reading(name) and len(families) < MAX_READING_NAMES
            if not (known or new) or taken >= MAX_READINGS:
                lost += 1
                continue
            if new:
                doc = "Largest over the GPUs of a node, latest."
                families[name] = _Family(name=name, doc=doc, kind="unknown")
            families[name].add(value, Hostname=host, over="max")
            taken += 1
    return [families[name] for name in sorted(families)], lost


def _is_reading(name: str) -> bool:
    plain = _READING_NAME.fullmatch(name) is not None
    return plain and not name.startswith(_OWN) and not name.endswith(_SUFFIXES[1:])


def _service_families(service: Mapping[str, float]) -> list[_Family]:
    """Figures of the collector itself: names that end in `_total` are counters."""
    families = []
    for name, value in service.items():
        plain = name.removesuffix("_total")
        if _READING_NAME.fullmatch(plain):
            family = _Family(
                name=f"{_OWN}collector_{plain}",
                doc=f"Of the collector itself: {plain.replace('_', ' ')}.",
                kind="counter" if plain != name else "gauge",
            )
            family.add(value)
            families.append(family)
    return families


def _exposed(families: Sequence[_Family], *, text: bool) -> bytes:
    try:
        from prometheus_client import exposition, metrics_core
        from prometheus_client.openmetrics import exposition as openmetrics
    except ImportError:
        raise UnavailableError(
            "/metrics needs prometheus-client: pip install 'computeflow[metrics]'"
        ) from None

    class Known:
        """A registry of what is known at this moment."""

        def collect(self) -> Iterator[Any]:
            for family in families:
                if family.samples:
                    metric = metrics_core.Metric(family.name, family.doc, family.kind)
                    end = {"counter": "_total", "info": "_info"}.get(family.kind, "")
                    for labels, value in family.samples.items():
                        metric.add_sample(family.name + end, dict(labels), value)
                    yield metric

    registry: Any = Known()
    write: Any = exposition.generate_latest if text else openmetrics.generate_latest
    written: bytes = write(registry)
    return written
