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
    "cannot be checked": "it leaves out what one would need to know, or nobody measured it; the reason "
    "says what would settle it",
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
        title="Claims that people repeat, checked",
        columns=columns("name", "claim", "verdict", "our figure", wrap="claim,verdict,our figure"),
        rows=tuple((c.claim.name, c.claim.text, c.outcome.verdict, c.outcome.ours) for c in claims),
        notes=("Reason, command and source of one: computeflow claims NAME.",)
        if len(claims) > 1
        else (),
    )


def reasons_table(claims: Sequence[CheckedClaim]) -> Table:
    return Table(
        title="Reasons for the verdicts",
        columns=columns("name", "part", "text", wrap="text"),
        rows=tuple(row for c in claims for row in _reasons(c)),
    )


def _reasons(checked: CheckedClaim) -> list[tuple[str, str, str]]:
    name, outcome = checked.claim.name, checked.outcome
    return [
        (name, "reason", f"{outcome.why} ({outcome.basis})"),
        ("", "command", checked.claim.command),
        ("", "said in", checked.claim.citation),
    ]


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
        "This page checks what people repeat about training on GPUs. Use it before you repeat "
        "one. "
        "Written by `computeflow claims --page docs/claims.md`, from the project's own models and "
        "catalog. Our figures are computed when the page is written; those of others stand with their "
        "source, and `cited` marks verdicts that rest on them alone. A range of a predicted figure "
        "holds 80 % of published runs. Ratios and shares of predictions have none: both sides err "
        "together, and how far apart is not known.",
        _counted(claims),
        meanings,
        _sources(claims),
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


def _sources(claims: Sequence[CheckedClaim]) -> str:
    """How many have a document that one can find."""
    stated = [c for c in claims if c.claim.title and not c.claim.says]
    near = [c for c in claims if c.claim.says]
    none = len(claims) - len(stated) - len(near)
    return (
        f"Of the {len(claims)}, {len(stated)} stand in a document that is named with title, publisher, "
        f"date and place; for {len(near)} the nearest such document is named with what it says "
        f"instead; for {none} nobody was found who signs them. `not read again` marks documents that "
        "are cited without a copy at hand."
    )


def _topic_table(title: str, claims: Sequence[CheckedClaim]) -> Table:
    return Table(
        title=title,
        columns=columns(
            "name", "claim", "verdict", "our figure", "why", "basis", "command", "said in"
        ),
        rows=tuple(
            (
                checked.claim.name,
                checked.claim.text,
                checked.outcome.verdict,
                checked.outcome.ours,
                checked.outcome.why,
                checked.outcome.basis,
                f"`{checked.claim.command}`",
                checked.claim.citation,
            )
            for checked in claims
        ),
    )
