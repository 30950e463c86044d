"""Flight-recorder dumps as tables: the ranks that hold the job up, and the progress of each group."""

from __future__ import annotations

from collections.abc import Sequence

from computeflow.telemetry.flight_recorder.flight_source import Flight
from computeflow.telemetry.flight_recorder.hang import Culprit
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_count
from computeflow.views.tables import Table, columns

MAX_ROWS = 16
_MAX_GROUPS = 12
_LINES = 4
"""Most ranks whose lines of code are shown; `-o json` has all stacks."""


def tables(observed: SourceReport) -> list[Table]:
    flight: Flight = observed.facts
    made = [_culprits(flight, observed.notes), _groups(flight)]
    return [table for table in made if table.rows or table.notes]


def headline(observed: SourceReport) -> str:
    flight: Flight = observed.facts
    dumped = f"{flight.ranks} of {flight.ranks_total} ranks dumped"
    if flight.culprits:
        return f"{format_count(len(flight.culprits), 'rank')} held the others up; {dumped}."
    if flight.suspects:
        return f"Cannot tell which rank held the others up, because {flight.untold}; {dumped}."
    if flight.untold:
        return f"Cannot tell whether the job hangs, because {flight.untold}; {dumped}."
    return f"No rank holds the others up; {dumped}."


def _culprits(flight: Flight, notes: Sequence[str]) -> Table:
    found = flight.culprits or flight.suspects
    rows = tuple(_row(culprit) for culprit in found[:MAX_ROWS])
    hidden = len(found) - len(rows)
    more = (f"{hidden:,} more: -o json has all",) if hidden else ()
    title = "Ranks that hold the others up" if rows else "No rank is known to hold the others up"
    if flight.suspects:
        title = "Ranks in question: which of them holds the others up cannot be told"
    lines = [f"rank {each.rank}: {each.lines}" for each in found[:_LINES] if each.lines]
    untold = (f"cannot tell, because {flight.untold}",) if flight.untold else ()
    return Table(
        title=f"{title}; {flight.ranks} of {flight.ranks_total} ranks dumped",
        columns=columns("rank", "why", "operation", "in it", right="rank", wrap="operation,in it"),
        rows=rows,
        notes=(*lines, *more, *untold, *notes),
    )


def _row(culprit: Culprit) -> tuple[str, ...]:
    return str(culprit.rank), culprit.why, culprit.where, _listed(culprit.waiting)


def _groups(flight: Flight) -> Table:
    """Process groups, those with ranks behind first."""
    order = sorted(flight.groups, key=lambda group: (not group.behind, group.group))
    rows = tuple(
        (
            group.group,
            f"{group.seen}/{group.size}",
            _span(group.entered_first, group.entered_last),
            _span(group.completed_first, group.completed_last),
            _listed(group.behind),
        )
        for group in order[:_MAX_GROUPS]
    )
    hidden = len(order) - len(rows)
    return Table(
        title="Process groups: the collectives that their ranks have come to",
        columns=columns(
            "group",
            "ranks",
            "entered",
            "completed",
            "behind",
            right="ranks,entered,completed",
            wrap="group,behind",
        ),
        rows=rows,
        notes=(f"{hidden:,} more groups: -o json has all",) if hidden else (),
    )


def _span(first: int | None, last: int | None) -> str:
    if first is None or last is None:
        return "-"
    return str(first) if first == last else f"{first} to {last}"


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:MAX_ROWS]))
    return (shown + (f" and {len(ranks) - MAX_ROWS} more" if len(ranks) > MAX_ROWS else "")) or "-"
