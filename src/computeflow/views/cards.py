"""Findings as cards: what is wrong, what it costs, the proof and what to do, for screens of any width.

Start with `finding_cards`. A card is text; `cards_html` is the only rendering.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from computeflow.economics import finding_usd_per_hour, usd_per_hour
from computeflow.ledger import ACCOUNTS, Evidence, Finding, Ledger, Remedy, describe
from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.tables import text_html

if TYPE_CHECKING:
    from computeflow.diagnosis.diagnosis import Diagnosis

_MAX_RANGES = 8
"""Ranges of ranks that a card writes out."""
_PREFIXED = ("B", "B/s", "B/step", "FLOP", "FLOP/s", "Hz", "J", "W")
"""Units written with a prefix (k, M, G)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    title: str
    owner: str
    """The account's owner, which gives the card its colour."""
    facts: tuple[tuple[str, str], ...]
    evidence: tuple[str, ...]
    remedy: str = ""
    command: str = ""
    gain: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    title: str
    summary: str
    cards: tuple[Card, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCost:
    """GPU-seconds of a window in words: time, share, dollars."""

    ledger: Ledger
    price: float | None
    """$ per GPU-hour."""
    replayed: bool = False
    """Whether they are shares of the step as it runs: their seconds would contain the profiler's."""
    step_seconds: float | None = None
    """Time of the step that they are shares of; None where steps are unknown."""

    def step(self, gpu_seconds: float) -> str:
        """Time of a step; empty where steps are unknown."""
        if self.step_seconds is None:
            return ""
        return format_seconds(gpu_seconds / self.ledger.gpu_seconds * self.step_seconds)

    def amount(self, gpu_seconds: float) -> str:
        return self.share(gpu_seconds) if self.replayed else self.seconds(gpu_seconds)

    def seconds(self, gpu_seconds: float) -> str:
        unit, size = describe.ledger_unit(self.ledger)
        return f"{gpu_seconds / size:,.1f} {unit}"

    def share(self, gpu_seconds: float) -> str:
        return format_share(gpu_seconds / self.ledger.gpu_seconds)

    def usd_per_hour(self, gpu_seconds: float) -> float | None:
        """Dollars per hour if the run goes on like this window."""
        if self.price is None:
            return None
        return usd_per_hour(gpu_seconds, self.ledger.wall_seconds, self.price)

    def text(self, gpu_seconds: float) -> str:
        usd = self.usd_per_hour(gpu_seconds)
        cost = f", {self.step(gpu_seconds)} a step" if self.step_seconds is not None else ""
        cost += "" if usd is None else f", ${usd:,.2f}/h"
        if self.replayed:
            return f"{self.share(gpu_seconds)} of the time{cost}"
        return f"{self.seconds(gpu_seconds)}, {self.share(gpu_seconds)} of the window{cost}"


def finding_cards(
    diagnosis: Diagnosis, ledger: Ledger, price: float | None, step_seconds: float | None = None
) -> Cards:
    """`step_seconds`: the recorded step."""
    each = worth = CardCost(
        ledger=ledger,
        price=price,
        replayed=diagnosis.as_it_runs is not None,
        step_seconds=diagnosis.step_seconds(step_seconds),
    )
    findings = diagnosis.findings
    if not findings:
        return Cards(title="No findings", summary=_nothing(diagnosis), cards=())
    claimed = math.fsum(finding.gpu_seconds for finding in findings)
    if not all(finding.steady for finding in findings):
        worth = replace(worth, price=None)  # what happens in some steps has no price by the hour
    counted = (
        "1 finding" if len(findings) == 1 else f"{len(findings)} findings, most expensive first"
    )
    gain = diagnosis.combined_gain
    remedies = "No gain of the remedies is known."
    if gain is not None:
        remedies = f"All remedies together would give back {worth.text(gain)}."
    return Cards(
        title=f"{counted}: {worth.share(claimed)} of the {'time' if worth.replayed else 'window'}",
        summary=f"What was found takes {worth.text(claimed)}. {remedies}",
        cards=tuple(_card(finding, each) for finding in findings),
    )


def _nothing(diagnosis: Diagnosis) -> str:
    text = "The rules found nothing to change."
    blind = len(diagnosis.abstained)
    if blind:
        were = "was" if blind == 1 else "were"
        text += f" {blind} {were} skipped for a missing signal, listed at the end of the page."
    return text


def _card(finding: Finding, worth: CardCost) -> Card:
    usd = finding_usd_per_hour(finding, worth.ledger, worth.price)
    if not finding.steady:
        worth = replace(worth, price=None)
    facts = [
        ("costs", "" if worth.replayed else worth.seconds(finding.gpu_seconds)),
        (
            "of the time" if worth.replayed else "of the window",
            worth.share(finding.gpu_seconds),
        ),
        ("a step", worth.step(finding.gpu_seconds)),
        ("$/h", "" if usd is None else f"{usd:,.2f}"),
        ("account", finding.account),
        ("ranks", ranks_text(finding.ranks)),
        ("rule", finding.rule),
        ("confidence", f"{100 * finding.confidence:.0f} %"),
    ]
    claims = [claim for claim in finding.claims if claim.gpu_seconds > 0]
    if len(claims) > 1:
        facts += [(f"of that in {c.account}", worth.amount(c.gpu_seconds)) for c in claims]
    remedy = finding.remedy or Remedy(change="")
    return Card(
        title=finding.title,
        owner=ACCOUNTS[finding.account].owner,
        facts=tuple((label, value) for label, value in facts if value),
        evidence=tuple(evidence_text(evidence) for evidence in finding.evidence),
        remedy=remedy.change + (f". Risk: {remedy.risk}" if remedy.risk else ""),
        command=remedy.command,
        gain=_gain(remedy, worth),
    )


def _gain(remedy: Remedy, worth: CardCost) -> str:
    ends = [end for end in (remedy.gain_low, remedy.gain_high) if end is not None]
    expected = remedy.gain_gpu_seconds
    between = " to ".join(worth.amount(end) for end in ends)
    if expected is None:
        return f"Would give back {between}." if ends else ""
    return f"Would give back {worth.text(expected)}" + (f" ({between})." if ends else ".")


def evidence_text(evidence: Evidence) -> str:
    """The observation, its place, its value and the expected value."""
    text = f"{evidence.what} ({evidence.where})" if evidence.where else evidence.what
    if evidence.value is None:
        return text
    text = f"{text}: {_amount(evidence.value, evidence.unit)}"
    if evidence.expected is None:
        return text
    return f"{text}, expected {_amount(evidence.expected, evidence.unit)}"


def _amount(value: float, unit: str) -> str:
    if unit == "s":
        return format_seconds(value) if value else "0"
    if unit in _PREFIXED:
        return format_si(value, unit)
    if unit.startswith("share"):
        return format_share(value) + unit.removeprefix("share")
    return f"{value:,.4g} {unit}".rstrip()


def ranks_text(ranks: Iterable[int]) -> str:
    """`0 to 7, 12` for nine ranks; of many ranges the first ones, and the number of further ranks."""
    ordered = sorted(set(ranks))
    breaks = [index for index, (a, b) in enumerate(pairwise(ordered), start=1) if b > a + 1]
    bounds = [0, *breaks, len(ordered)] if ordered else []
    stretches = [ordered[a:b] for a, b in pairwise(bounds)]
    shown = [str(s[0]) if len(s) == 1 else f"{s[0]} to {s[-1]}" for s in stretches[:_MAX_RANGES]]
    more = sum(map(len, stretches[_MAX_RANGES:]))
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def cards_html(part: Cards, colours: dict[str, str]) -> str:
    """`colours`: by owner."""
    cards = "".join(
        f'<article style="border-color:{colours[card.owner]}"><h3>{number}. {escape(card.title)}</h3>'
        f"{_facts(card.facts)}{_evidence(card.evidence)}{_remedy(card)}</article>"
        for number, card in enumerate(part.cards, start=1)
    )
    return (
        f'<section class="cards"><h2>{escape(part.title)}</h2><p>{text_html(part.summary)}</p>'
        f"{cards}</section>"
    )


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    pairs = (f"<div><dt>{escape(a)}</dt><dd>{escape(b)}</dd></div>" for a, b in facts)
    return f"<dl>{''.join(pairs)}</dl>"


def _evidence(lines: Sequence[str]) -> str:
    return f"<h4>Evidence</h4><ul>{''.join(f'<li>{text_html(line)}</li>' for line in lines)}</ul>"


def _remedy(card: Card) -> str:
    if not card.remedy:
        return ""
    command = f"<pre>{escape(card.command)}</pre>" if card.command else ""
    gain = f"<p>{text_html(card.gain)}</p>" if card.gain else ""
    return f"<h4>Remedy</h4><p>{text_html(card.remedy)}</p>{command}{gain}"
