"""Op timelines as tables: the ledger, the slowdowns by type, stage and worker, the steps."""

from __future__ import annotations

from computeflow.telemetry.observed import Observed
from computeflow.telemetry.whatif.slowdown import Slowdown
from computeflow.telemetry.whatif.source import OpTimeline
from computeflow.units import format_seconds, format_share
from computeflow.views.tables import Table, columns

MOST_ROWS = 10


def tables(observed: Observed) -> list[Table]:
    facts: OpTimeline = observed.facts
    made = [_slowdown(facts), _types(facts.slowdown), _workers(facts), _steps(facts)]
    return [table for table in made if table.rows]


def _slowdown(facts: OpTimeline) -> Table:
    found = facts.slowdown
    rows = (
        ("S", f"{found.slowdown:.3f}", "step over the step with every operation as usual"),
        (
            "M_W",
            format_share(found.of_slowest.removed),
            f"of the lost time goes with the slowest workers ({_few(found.slowest)})",
        ),
        ("M_S", format_share(found.of_last_stage.removed), "goes with the last stage"),
        ("stages", format_share(found.uneven_stages_share), "is stages that always differ"),
        (
            "workers",
            format_share(found.uneven_workers_share),
            "is workers that always differ from their stage",
        ),
        ("varying", format_share(found.varying_share), "varies from micro-batch to micro-batch"),
    )
    return Table(
        title=f"What if: {facts.workers} workers, {facts.replicas} replicas of {facts.stages} stages",
        columns=columns("what", "value", "meaning", right="value", wrap="meaning"),
        rows=rows,
        notes=(
            f"step {format_seconds(found.recorded_seconds)} as recorded, "
            f"{format_seconds(found.step_seconds)} replayed, "
            f"{format_seconds(found.ideal_seconds)} as usual",
        ),
    )


def _types(found: Slowdown) -> Table:
    order = sorted(found.by_type.items(), key=lambda item: -item[1])
    return Table(
        title="Slowdown by operations of one type, all others as usual",
        columns=columns("type", "S_t", right="S_t"),
        rows=tuple((kind, f"{value:.3f}") for kind, value in order[:MOST_ROWS]),
        notes=_more(len(order), "types"),
    )


def _workers(facts: OpTimeline) -> Table:
    found = facts.slowdown
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
                f"{found.by_stage[w.stage]:.3f}",
                f"{found.by_replica[w.replica]:.3f}",
            )
            for w in found.workers[:MOST_ROWS]
        ),
        notes=_more(len(found.workers), "workers"),
    )


def _steps(facts: OpTimeline) -> Table:
    """The slowest first."""
    found = facts.slowdown
    order = sorted(range(len(found.steps)), key=lambda place: -found.recorded[place])
    return Table(
        title="Slowest steps",
        columns=columns(
            "step",
            "recorded",
            "replayed",
            "as usual",
            "S",
            right="step,recorded,replayed,as usual,S",
        ),
        rows=tuple(
            (
                str(found.steps[i]),
                format_seconds(found.recorded[i]),
                format_seconds(found.replayed[i]),
                format_seconds(found.ideal[i]),
                f"{found.replayed[i] / found.ideal[i]:.3f}" if found.ideal[i] else "-",
            )
            for i in order[:MOST_ROWS]
        ),
        notes=_more(len(order), "steps"),
    )


def _more(count: int, what: str) -> tuple[str, ...]:
    return (f"{count - MOST_ROWS:,} more {what}: -o json has all",) if count > MOST_ROWS else ()


def _few(ranks: tuple[int, ...]) -> str:
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"rank {', '.join(map(str, ranks[:4]))}{more}"
