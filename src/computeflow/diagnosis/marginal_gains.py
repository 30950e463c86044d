"""`price`: findings of a replayed step get what their remedies gain, one after the other.

The remedy that gains most comes first; each next one is replayed on top of those before it, so that
gains add up to what all of them give together. A remedy that no longer gains is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from computeflow.diagnosis.rule import Draft
from computeflow.diagnosis.rules import find_rule
from computeflow.ledger import ClaimedSeconds, Ledger
from computeflow.replay.edits import Edit, all_of
from computeflow.replay.profiler_cost import Range
from computeflow.replay.replayed_step import NOISE, ReplayedStep

LEAST = 0.02
"""Least share of a step that a remedy must gain at the low end of its replayed range; the range that is
claimed is wider by what repeats of a run differ by."""
LEAST_USUAL = 0.05
"""The same for what frameworks themselves do in every step, such as reading the loss."""
NEGLIGIBLE = 0.002
"""Share of a step below which a remedy is not tried again after others."""
NEAR = 0.75
"""Gains above this share of the best are as good as equal: a cause and its effect (a stall, and the
wait that keeps the host from hiding it) gain about the same. The profiler's cost alone moves gains of
the host by more."""
HOST_NOISE = 0.2
"""What repeats of a run add to the range of a gain, over half of the range of the step: where the host
is the limit (0.3), repeats of both sides of a pair lie within 5.5 % at the median and 12 % in four of
five (32 pairs of benchmarks/foreign_new_hands/truth-fit.csv); where the device is, within 1 to 4 %."""
_LEFT = ("host", "unexplained", "copy", "compute.kernel", "compute", "optimizer", "input")
"""Accounts that a claim falls back to where its own do not hold as much."""

Named = tuple[str, Draft]


def price(step: ReplayedStep, drafts: Sequence[Named], ledger: Ledger) -> list[Named]:
    """Drafts with an edit, with gains and claims: the share that they have of the step as it runs, in
    GPU-seconds of a window as long as the recorded one, whose accounts the ledger has.
    """
    before: Edit | None = None
    priced: list[Named] = []
    books = dict(ledger.accounts)
    left = [named for named in drafts if named[1].max_busy is None and named[1].edit is not None]
    last = [named for named in drafts if named[1].max_busy is not None]
    while left or last:
        if not left:
            busy = _busy(step, before)
            left, last = [named for named in last if busy <= (named[1].max_busy or 0.0)], []
            continue
        base = step.replay(before).step_seconds
        gains = [base - _replayed(step, d, d.edit, before) for _, d in left]
        if max(gains) < LEAST * step.seconds.middle:
            left = []
            continue
        left = [named for named, gain in zip(left, gains, strict=True) if gain >= NEGLIGIBLE * base]
        gains = [gain for gain in gains if gain >= NEGLIGIBLE * base]
        rule, draft = left.pop(_surest(left, gains))
        shares = _shares(step, draft, before)
        if shares.low < max(LEAST if draft.own else LEAST_USUAL, draft.least_share):
            continue
        before = _both(before, draft.edit)
        priced.append((rule, _claimed(draft, _wider(shares, step), books, ledger.gpu_seconds)))
    return priced


def _busy(step: ReplayedStep, before: Edit | None) -> float:
    """Share of the step, with the remedies before, in which the device works."""
    graph, durations = step.graph, step.durations[1]
    times = (durations if before is None else before(graph, durations)).device
    work = float(np.nansum(times[graph.device.call >= 0])) / 1e9 / graph.steps
    return work / step.replay(before).step_seconds


def _surest(left: Sequence[Named], gains: Sequence[float]) -> int:
    """The remedy for the most direct cause, among those that gain about as much as the best."""
    near = [row for row, gain in enumerate(gains) if gain >= NEAR * max(gains)]
    return min(near, key=lambda row: find_rule(left[row][0]).order)


def _replayed(
    step: ReplayedStep, draft: Draft, edit: Edit | None, before: Edit | None, end: int = 1
) -> float:
    return max(step.replay(_both(before, edit), end).step_seconds, draft.least_seconds)


def _both(before: Edit | None, edit: Edit | None) -> Edit:
    return all_of(each for each in (before, edit) if each is not None)


def _shares(step: ReplayedStep, draft: Draft, before: Edit | None) -> Range:
    """The share of the step that a remedy gains, at every end of the host's speed and of its edit."""
    shares = []
    edits = (draft.edit, *(draft.bounds or ()))
    for end in range(3):
        whole = step.ends[end]
        base = whole if before is None else step.replay(before, end).step_seconds
        shares += [(base - _replayed(step, draft, edit, before, end)) / whole for edit in edits]
    return Range(low=min(shares), middle=shares[len(edits)], high=max(shares))


def _wider(share: Range, step: ReplayedStep) -> Range:
    """The range with what repeats of a run differ by."""
    low, middle, high = step.ends
    noise = NOISE + HOST_NOISE * (high - low) / (2 * middle)
    return Range(low=share.low - noise, middle=share.middle, high=min(share.high + noise, 1.0))


def _claimed(draft: Draft, share: Range, books: dict[str, float], scale: float) -> Draft:
    """The draft with its gain, drawn from its accounts and then from what is left of others."""
    wanted = share.middle * scale
    claims: list[ClaimedSeconds] = []
    rest = wanted
    for account in dict.fromkeys((*(claim.account for claim in draft.claims), *_LEFT)):
        part = min(books.get(account, 0.0), rest)
        if part > 0 or not claims:
            books[account] = books.get(account, 0.0) - part
            rest -= part
            claims.append(ClaimedSeconds(account=account, gpu_seconds=part))
    remedy = replace(
        draft.remedy,
        gain_gpu_seconds=wanted - rest,
        gain_low=min(share.low * scale, wanted - rest),
        gain_high=max(share.high * scale, wanted - rest),
    )
    return replace(draft, claims=tuple(claims), remedy=remedy)
