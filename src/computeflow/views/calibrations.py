"""A site's factor: the rows it was fitted on, and the error that it leaves on each."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from computeflow.units import format_seconds
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.prediction.calibration.site import SiteCalibration


def site_headline(site: SiteCalibration) -> str:
    low, high = site.range
    return (
        f"Predicted step times are multiplied by {site.factor:.3f} (+- "
        f"{site.factor * site.deviation:.3f}) here; 80 % of further runs should take {low:.2f} to "
        f"{high:.2f} of the corrected time."
    )


def site_table(site: SiteCalibration) -> Table:
    count = len(site.rows)
    reasons = [f"{n} ({why})" for why, n in Counter(site.skipped.values()).items()]
    notes = [f"not used: {'; '.join(reasons)}"] if reasons else []
    if site.disagree:
        notes.insert(
            0,
            "the rows disagree by more than one factor explains: they differ in something that the "
            "predictor does not model",
        )
    return Table(
        title=f"Site factor from {count} step{'s' if count > 1 else ''} on "
        f"{', '.join(site.accelerators)} under {', '.join(site.stacks)}",
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
