"""Checked claims as tables and as the page docs/claims.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from computeflow.units import format_share
from computeflow.views.prose import wrap_prose
from computeflow.views.run_pages import to_markdown
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.comparison.claims import CheckedClaim, PathStep

_TITLES = {
    "hardware": "Accelerators",
    "sizing": "FLOPs, GPUs, months and dollars",
    "placement": "Placement and networks",
    "training": "Memory, precision, software, data, MFU",
    "power": "Power and cooling",
    "sites": "Availability and failures",
    "money": "Prices and spending",
}
_MEANINGS = {
    "holds": "our figure agrees",
    "holds in part": "under a condition that the claim leaves out, or for a part of it",
    "does not hold": "our figure, or a cited one, is another",
    "wrong unit": "the number does not measure what it names",
    "wrong base": "right against something else than it names",
    "contradicts itself": "its own numbers do not fit each other",
    "cannot be checked": "it leaves out what one would need to know",
}


def claims_headline(claims: Sequence[CheckedClaim]) -> str:
    """The verdict and our figure for one claim; the number of each verdict for several."""
    if len(claims) != 1:
        return _counted(claims)
    (checked,) = claims
    outcome = checked.outcome
    return f"{checked.claim.name}: {outcome.verdict}. Our figure: {outcome.ours}."


def claims_table(claims: Sequence[CheckedClaim]) -> Table:
    return Table(
        title="Claims of popular documents, checked",
        columns=columns("claim", "verdict", "our figure", wrap="claim,verdict,our figure"),
        rows=tuple((c.claim.text, c.outcome.verdict, c.outcome.ours) for c in claims),
    )


def reasons_table(claims: Sequence[CheckedClaim]) -> Table:
    return Table(
        title="Reasons for the verdicts",
        columns=columns("claim", "reason", "basis", wrap="reason"),
        rows=tuple((c.claim.name, c.outcome.why, c.outcome.basis) for c in claims),
    )


def _counted(claims: Sequence[CheckedClaim]) -> str:
    count = Counter(checked.outcome.verdict for checked in claims)
    listed = ", ".join(f"{name} {count[name]}" for name in _MEANINGS if count[name])  # type: ignore[index]
    return f"{len(claims)} claims checked: {listed}."


def path_table(steps: Sequence[PathStep]) -> Table:
    """Each configuration with its gain over the one before, and what others measured for it."""
    total = 1.0
    rows = []
    for step in steps:
        total *= 1 + (step.gain or 0.0)
        low, mid, high = step.mfu
        rows.append(
            (
                step.name,
                format_share(mid),
                f"{100 * low:.1f} to {100 * high:.1f}",
                "-" if step.gain is None else f"{100 * step.gain:+.1f} %",
                f"{total:.2f}x",
                step.published,
                "yes" if step.fits else "NO",
            )
        )
    return Table(
        title="Llama-3.1-70B on eight B200, 8,192 tokens a sequence, step by step",
        columns=columns(
            "configuration",
            "MFU",
            "range %",
            "gain",
            "in all",
            "published gain",
            "fits",
            right="MFU,range %,gain,in all",
            wrap="configuration,published gain",
        ),
        rows=tuple(rows),
        notes=(
            "Predicted, each step on top of those before it; gain: tokens per second. Ranges hold 80 % "
            "of published runs. Published gains are for other models and devices and do not multiply.",
        ),
    )


def claims_page(claims: Sequence[CheckedClaim], steps: Sequence[PathStep]) -> str:
    meanings = " ".join(f"**{name}**: {meaning}." for name, meaning in _MEANINGS.items())
    parts = [
        "# Claims, checked",
        "This page checks what popular documents claim about training on GPUs. Use it before you "
        "repeat one. "
        "Written by `computeflow claims --page docs/claims.md`, from the project's own models and "
        "catalog. Our figures are computed when the page is written; those of others stand with their "
        "source, and `cited` marks verdicts that rest on them alone. A range of a predicted figure "
        "holds 80 % of published runs. Ratios and shares of predictions have none: both sides err "
        "together, and how far apart is not known.",
        _counted(claims),
        meanings,
    ]
    for topic, title in _TITLES.items():
        rows = [checked for checked in claims if checked.claim.topic == topic]
        parts += [f"## {title}", to_markdown(_topic_table(f"{len(rows)} claims", rows))]
        if topic == "training":
            parts += [
                "The path of configurations behind the claim on MFU, from torchtitan's preset to the "
                "recipe of LambdaLabsML/torchtitan @0768f5d and beyond:",
                to_markdown(path_table(steps)),
            ]
    return wrap_prose("\n\n".join(parts) + "\n")


def _topic_table(title: str, claims: Sequence[CheckedClaim]) -> Table:
    return Table(
        title=title,
        columns=columns("claim", "said by", "verdict", "our figure", "why", "basis"),
        rows=tuple(
            (
                checked.claim.text,
                checked.claim.source,
                checked.outcome.verdict,
                checked.outcome.ours,
                checked.outcome.why,
                checked.outcome.basis,
            )
            for checked in claims
        ),
    )
