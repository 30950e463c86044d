"""Op timelines as tables: the ledger, the slowdowns by type, stage and worker, the steps."""

from __future__ import annotations

from computeflow.telemetry.op_timelines.op_timeline_source import OpTimelineFacts
from computeflow.telemetry.op_timelines.slowdown import Slowdown
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_seconds, format_share
from computeflow.views.tables import Table, columns

MAX_ROWS = 10


def tables(observed: SourceReport) -> list[Table]:
    facts: OpTimelineFacts = observed.facts
    made = [_slowdown(facts), _types(facts.slowdown), _workers(facts), _steps(facts)]
    return [table for table in made if table.rows]


def headline(observed: SourceReport) -> str:
    slowdown: Slowdown = observed.facts.slowdown
    return f"A step takes {slowdown.slowdown:.2f} times what it would at usual speeds."


def _slowdown(facts: OpTimelineFacts) -> Table:
    slowdown = facts.slowdown
    rows = (
        (
            "S",
            f"{slowdown.slowdown:.3f}",
            "step time over that with every operation at its usual speed",
        ),
        (
            "M_W",
            format_share(slowdown.of_slowest.removed),
            f"share of the lost time on the slowest workers ({_few(slowdown.slowest)})",
        ),
        (
            "M_S",
            format_share(slowdown.of_last_stage.removed),
            "share of the lost time on the last stage",
        ),
        (
            "stages",
            format_share(slowdown.uneven_stages_share),
            "share from stages that always differ",
        ),
        (
            "workers",
            format_share(slowdown.uneven_workers_share),
            "share from workers that always differ from their stage",
        ),
        (
            "varying",
            format_share(slowdown.varying_share),
            "share that varies from micro-batch to micro-batch",
        ),
    )
    return Table(
        title=f"What if: {facts.workers} workers, {facts.replicas} replicas of {facts.stages} stages",
        columns=columns("figure", "value", "meaning", right="value", wrap="meaning"),
        rows=rows,
        notes=(
            f"step {format_seconds(slowdown.recorded_seconds)} as recorded, "
            f"{format_seconds(slowdown.step_seconds)} replayed, "
            f"{format_seconds(slowdown.ideal_seconds)} as usual",
        ),
    )


def _types(slowdown: Slowdown) -> Table:
    order = sorted(slowdown.by_type.items(), key=lambda item: -item[1])
    return Table(
        title="Slowdown by type of operation, all others at usual speed",
        columns=columns("type", "S_t", right="S_t"),
        rows=tuple((kind, f"{value:.3f}") for kind, value in order[:MAX_ROWS]),
        notes=_more(len(order), "types"),
    )


def _workers(facts: OpTimelineFacts) -> Table:
    slowdown = facts.slowdown
    return Table(
        title="Workers that slow the others down most",
        columns=columns(
            "rank",
            "replica",
            "stage",
            "S_w",
            "S of its stage",
            "S of its replica",
            right="rank,replica,stage,S_w,S of its stage,S of its replica",
        ),
        rows=tuple(
            (
                str(w.rank),
                str(w.replica),
                str(w.stage),
                f"{w.slowdown:.3f}",
                f"{slowdown.by_stage[w.stage]:.3f}",
                f"{slowdown.by_replica[w.replica]:.3f}",
            )
            for w in slowdown.workers[:MAX_ROWS]
        ),
        notes=_more(len(slowdown.workers), "workers"),
    )


def _steps(facts: OpTimelineFacts) -> Table:
    """The slowest steps."""
    slowdown = facts.slowdown
    order = sorted(range(len(slowdown.steps)), key=lambda index: -slowdown.recorded[index])
    return Table(
        title="Slowest steps",
        columns=columns(
            "step",
            "recorded",
            "replayed",
            "usual",
            "S",
            right="step,recorded,replayed,usual,S",
        ),
        rows=tuple(
            (
                str(slowdown.steps[i]),
                format_seconds(slowdown.recorded[i]),
                format_seconds(slowdown.replayed[i]),
                format_seconds(slowdown.ideal[i]),
                f"{slowdown.replayed[i] / slowdown.ideal[i]:.3f}" if slowdown.ideal[i] else "-",
            )
            for i in order[:MAX_ROWS]
        ),
        notes=_more(len(order), "steps"),
    )


def _more(count: int, what: str) -> tuple[str, ...]:
    return (f"{count - MAX_ROWS:,} more {what}: -o json has all",) if count > MAX_ROWS else ()


def _few(ranks: tuple[int, ...]) -> str:
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"rank {', '.join(map(str, ranks[:4]))}{more}"
