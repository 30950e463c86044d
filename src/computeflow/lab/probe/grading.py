"""Grades of a probe: each figure against its expected range, and each node against the others.

The expected range comes from the catalog (a measured rate of that device) or from an earlier probe
given as the baseline. Where there is neither the verdict is `unknown`, not `normal`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Verdict = Literal["normal", "low", "high", "unknown"]
_ROBUST = 1.4826
"""Factor from MAD to the standard deviation of a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFigure:
    """One figure of a probe. `better` says which way is good."""

    name: str
    value: float
    unit: str
    better: Literal["more", "less"] = "more"
    spread: float | None = None
    """Half the range of the value over the repeats."""
    expected_low: float | None = None
    expected_high: float | None = None
    reason: str = ""
    """Source of the expected range."""
    of_peak: float | None = None
    """The dense peak or rated figure that the value cannot exceed."""

    @property
    def verdict(self) -> Verdict:
        if self.expected_low is not None and self.value < self.expected_low:
            return "low"
        if self.expected_high is not None and self.value > self.expected_high:
            return "high"
        return "unknown" if self.expected_low is None and self.expected_high is None else "normal"

    @property
    def bad(self) -> bool:
        """Whether the value is worse than expected; better than expected is not bad."""
        return self.verdict == ("low" if self.better == "more" else "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    node: str
    name: str
    value: float
    median: float
    deviations: float
    """Robust standard deviations from the median of all nodes."""


def against_baseline(
    items: Sequence[ProbeFigure], baseline: Mapping[str, float], slack: float
) -> list[ProbeFigure]:
    """Items that expect the baseline's values within `slack` (0.2 is 20 %)."""
    graded = []
    for item in items:
        known = baseline.get(item.name)
        if known is None or known <= 0:
            graded.append(item)
            continue
        graded.append(
            replace(
                item,
                expected_low=known * (1 - slack),
                expected_high=known / (1 - slack),
                reason=f"the baseline, within {100 * slack:.0f} %",
            )
        )
    return graded


def outliers(
    nodes: Mapping[str, Sequence[ProbeFigure]], *, deviations: float = 5.0, share: float = 0.05
) -> list[Outlier]:
    """Nodes that are worse than the others by more than `deviations` and by more than `share`.

    Uses medians and MAD over at least four nodes; with fewer, there is no outlier.
    """
    outlying: list[Outlier] = []
    names = dict.fromkeys((item.name, item.better) for items in nodes.values() for item in items)
    for name, better in names:
        values = {node: i.value for node, items in nodes.items() for i in items if i.name == name}
        if len(values) >= 4:
            outlying += _odd_nodes(name, better, values, deviations, share)
    return sorted(outlying, key=lambda outlier: -outlier.deviations)


def _odd_nodes(
    name: str, better: str, values: dict[str, float], deviations: float, share: float
) -> Iterator[Outlier]:
    middle = statistics.median(values.values())
    mad = _ROBUST * statistics.median(abs(v - middle) for v in values.values())
    scale = max(mad, 1e-3 * abs(middle), 1e-30)
    for node, value in values.items():
        worse = middle - value if better == "more" else value - middle
        if worse > deviations * scale and worse > share * abs(middle):
            yield Outlier(
                node=node, name=name, value=value, median=middle, deviations=worse / scale
            )
