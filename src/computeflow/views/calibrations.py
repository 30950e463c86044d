"""A site's factor as a table: the rows it came from, and what one factor does not explain."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from computeflow.units import format_seconds
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.prediction.calibration.site import Site


def site_table(site: Site) -> Table:
    low, high = site.range
    count = len(site.rows)
    title = (
        f"Site factor {site.factor:.3f} +- {site.factor * site.deviation:.3f} of predicted step time, "
        f"from {count} step{'s' if count > 1 else ''} on {', '.join(site.accelerators)} under "
        f"{', '.join(site.stacks)}; 80 % of further runs between {low:.2f} and {high:.2f} of the "
        "corrected time"
    )
    notes = [f"not used: {n} ({why})" for why, n in Counter(site.skipped.values()).items()]
    if site.disagree:
        notes.insert(
            0,
            "the rows disagree more than one factor explains: something differs between them that "
            "the predictor does not know",
        )
    return Table(
        title=title,
        columns=columns(
            "row",
            "measured",
            "predicted",
            "corrected",
            "left",
            "weight",
            right="measured,predicted,corrected,left,weight",
            wrap="row",
        ),
        rows=tuple(
            (
                row.row_id,
                format_seconds(row.measured_seconds),
                format_seconds(row.predicted_seconds),
                format_seconds(site.factor * row.predicted_seconds),
                f"{100 * math.expm1(row.residual):+.1f} %",
                f"{row.weight:.2f}",
            )
            for row in site.rows
        ),
        notes=tuple(notes),
    )
