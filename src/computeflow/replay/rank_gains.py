"""What is won if a rank did no more than the others: `RankGains`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from computeflow.replay.profiler_cost import Range
from computeflow.replay.rank_lines import RankLines

Floats = NDArray[np.float64]


class RankGains:
    """Counterfactuals of ranks replayed together."""

    def __init__(self, lines: RankLines) -> None:
        self._lines = lines
        self._plain = self._steps(None)
        self._own = own_seconds(lines)
        self._held = _held_seconds(lines)

    @property
    def step_seconds(self) -> float:
        return float(self._plain.mean())

    @property
    def whole(self) -> slice:
        """The steps that count."""
        return self._lines.whole

    @property
    def steps(self) -> int:
        """How many of them there are."""
        return len(self._plain)

    @property
    def own_seconds(self) -> Floats:
        """Each rank's own seconds in a step."""
        return np.array(
            [sum(float(s[self.whole].mean()) for s in own.values()) for own in self._own]
        )

    def spread(self, suspects: Collection[int], others: Collection[int]) -> float:
        """Robust deviation of a step's own seconds among the other ranks. Of one alone: from the
        suspects, whose fault in some steps is seen, while a difference in all of them may be usual.
        """
        own = np.array([sum(self._own[rank].values()) for rank in others])[:, self.whole]
        if len(others) > 1:
            return float(1.4826 * np.median(np.abs(own - np.median(own, axis=0))))
        mine = np.array([sum(self._own[rank].values()) for rank in suspects])[:, self.whole]
        return float(1.4826 * np.median(np.abs(mine - own)))

    def mean_excess(self, rank: int, others: Collection[int]) -> float:
        """Own seconds of a rank in a step beyond the median of the others."""
        own = np.array([sum(self._own[other].values()) for other in others])
        over = sum(self._own[rank].values()) - np.median(own, axis=0)
        return float(over[self.whole].mean())

    def excess(self, rank: int, others: Collection[int]) -> dict[str, Floats]:
        """Seconds of a rank beyond the median of the others, by account and step, where it has more
        over all steps.
        """
        found = {}
        for account, seconds in self._own[rank].items():
            usual = np.median(
                [self._own[i].get(account, np.zeros(len(seconds))) for i in others], axis=0
            )
            over = seconds - usual
            if over[self.whole].sum() > 0:
                found[account] = over
        return found

    def without(self, excess: Mapping[int, Mapping[str, Floats]]) -> Range:
        """What is won without these seconds, by rank, account and step."""
        work = []
        for rank, own in enumerate(self._lines.work):
            over = excess.get(rank)
            others = [i for i in range(len(self._own)) if i not in excess]
            work.append(own if not over else self._reduced(rank, own, over, others))
        return self._gain(work)

    def _gain(self, work: Sequence[Floats], skipped: Collection[int] = ()) -> Range:
        won = self._plain - self._steps(work, skipped)
        if not self.step_seconds:
            return Range(low=0.0, middle=0.0, high=0.0)
        share = won / self.step_seconds
        middle = float(share.mean())
        spread = float(share.std(ddof=1)) / len(share) ** 0.5 if len(share) > 1 else abs(middle)
        return Range(low=middle - 2 * spread, middle=middle, high=middle + 2 * spread)

    def evened_out(self) -> Range:
        """What is won if all ranks had the same work of their own in each step: the mean."""
        total = np.array([sum(own.values()) for own in self._own])
        even = total.mean(axis=0)
        ratio = even / np.where(total > 0, total, 1.0)
        return self._gain(
            [
                own * ratio[rank][self._lines.step_of[rank]]
                for rank, own in enumerate(self._lines.work)
            ]
        )

    def reduced_once(self) -> Range | None:
        """What is won if gradients are reduced in the last pass of a step alone; None where so."""
        lines = self._lines
        if not lines.early:
            return None
        gain = self._gain(lines.work, lines.early)
        hidden = sum(
            transfer for number in lines.early for _, transfer in lines.needs[number].values()
        )
        most = hidden / len(lines.lines) / lines.steps / self.step_seconds
        return Range(low=gain.low, middle=gain.middle, high=gain.high + most)

    def _reduced(
        self, rank: int, own: Floats, over: Mapping[str, Floats], others: Collection[int]
    ) -> Floats:
        """Work of a rank, with each account reduced in each step by its excess, where it has more of
        it than the others: what it does before one collective does not delay the one before.
        """
        lines = self._lines
        parts, step, between = lines.parts[rank], lines.step_of[rank], lines.between[rank]
        less = np.zeros(len(own))
        for account, seconds in over.items():
            column = parts[:, lines.accounts[rank].index(account)].astype(np.float64)
            share = self._shares(rank, account, seconds, others)
            less += column * share[step, np.minimum(between, share.shape[1] - 1)]
        return np.maximum(own - less, 0.0)

    def _shares(self, rank: int, account: str, seconds: Floats, others: Collection[int]) -> Floats:
        """The share of a rank's time in an account that is its excess, by step and by the collectives
        of the step between which it lies; over all of the step where ranks do not join the same.
        """
        mine = self._held[rank][account]
        shapes = {self._held[i][account].shape for i in others if account in self._held[i]}
        total = mine.sum(axis=1, keepdims=True)
        wanted = np.clip(seconds[:, None], 0.0, total)
        even = wanted / np.where(total > 0, total, 1.0)
        if shapes != {mine.shape}:
            return np.asarray(np.broadcast_to(even, mine.shape))
        nothing = np.zeros_like(mine)
        usual = np.median([self._held[i].get(account, nothing) for i in others], axis=0)
        more = np.maximum(mine - usual, 0.0)
        room = more.sum(axis=1, keepdims=True)
        taken = more * np.minimum(wanted / np.where(room > 0, room, 1.0), 1.0)
        return np.asarray(taken / np.where(mine > 0, mine, 1.0))

    def _steps(self, work: Sequence[Floats] | None, skipped: Collection[int] = ()) -> Floats:
        """Seconds of each whole step, averaged over ranks."""
        ends = self._lines.run(work, skipped)
        if ends is None:
            ends = self._lines.recorded
        first = np.array([[line.start] for line in self._lines.lines])
        steps = np.diff(np.concatenate([first, ends], axis=1), axis=1).mean(axis=0)
        return np.asarray(steps[self._lines.whole])


def own_seconds(lines: RankLines) -> list[dict[str, Floats]]:
    """Each rank's own seconds by account and step."""
    return [
        {
            account: np.bincount(
                lines.step_of[rank],
                weights=lines.parts[rank][:, column],
                minlength=lines.steps,
            ).astype(np.float64)
            for column, account in enumerate(lines.accounts[rank])
        }
        for rank in range(len(lines.lines))
    ]


def _held_seconds(lines: RankLines) -> list[dict[str, Floats]]:
    """Each rank's own seconds by account, step and collectives joined before in the step."""
    found = []
    for rank, between in enumerate(lines.between):
        count = int(between.max(initial=0)) + 1
        place = lines.step_of[rank] * count + between
        found.append(
            {
                account: np.bincount(
                    place, weights=lines.parts[rank][:, column], minlength=lines.steps * count
                )
                .astype(np.float64)
                .reshape(lines.steps, count)
                for column, account in enumerate(lines.accounts[rank])
            }
        )
    return found
