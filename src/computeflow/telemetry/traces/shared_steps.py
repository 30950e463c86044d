"""Steps that all ranks of a job have whole, where some have others or a file is cut: `shared_steps`.

Shares of a rank's window compare only over the same steps, and a wait needs its collective on every
rank: a file that ends in the middle would change what is said about the ranks that are intact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from computeflow.telemetry.traces.rank_measurements import RankMeasurement


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSteps:
    first: int
    last: int
    ranks: tuple[RankMeasurement, ...]
    """Ranks that have these steps, as they were measured."""
    left_out: tuple[str, ...]
    """What is not audited, and which file is the reason."""


def shared_steps(ranks: Sequence[RankMeasurement]) -> SharedSteps | None:
    """The longest run of steps that is whole on as many ranks as possible; None where all ranks have
    the same steps, or no steps are marked or whole. Intact ranks without marked steps stay as they are.
    """
    marked = [rank for rank in ranks if rank.steps or rank.cut_short]
    whole = {id(rank): _whole_steps(rank, ranks) for rank in marked}
    kept = _most_with_one_step(marked, whole)
    if not kept or all(whole[id(rank)] == set(kept[0].steps) for rank in marked):
        return None
    common = set.intersection(*(whole[id(rank)] for rank in kept))
    run = _longest_run(sorted(common), sorted({step for rank in kept for step in rank.steps}))
    dropped = [rank for rank in marked if rank not in kept]
    return SharedSteps(
        first=run[0],
        last=run[-1],
        ranks=tuple(rank for rank in ranks if not any(rank is other for other in dropped)),
        left_out=(*map(_dropped, dropped), *_short(kept, whole, run)),
    )


def _whole_steps(rank: RankMeasurement, ranks: Sequence[RankMeasurement]) -> set[int]:
    """The steps whose events are all there. A file is written thread by thread, so that one that is cut
    short can lack collectives of steps that it has otherwise: those that other ranks have in them.
    """
    if not rank.cut_short:
        return set(rank.steps)
    if any(other.on_device != rank.on_device for other in ranks if not other.cut_short):
        return set()
    ends = rank.window_start + 1e9 * np.cumsum(rank.step_seconds)
    return {
        step
        for step, end in zip(rank.steps, ends.tolist(), strict=False)
        if step not in rank.cut_steps and _has_collectives(rank, step, end, ranks)
    }


def _has_collectives(
    rank: RankMeasurement, step: int, end: float, ranks: Sequence[RankMeasurement]
) -> bool:
    """Whether a rank has as many collectives in a step as any and of the same names as an intact one,
    all of them before its end: where some are missing, others that come later are taken for them.
    """
    own, others = _names(rank, step), [_names(r, step) for r in ranks if not r.cut_short]
    most = max(len(_names(other, step)) for other in ranks)
    starts = rank.collectives.start[rank.collectives.step == step]
    return len(own) == most and own in (others or [own]) and bool((starts < end).all())


def _names(rank: RankMeasurement, step: int) -> list[str]:
    """Names of a rank's collectives in a step; "" for those that are matched by their group's ranks."""
    rows = rank.collectives.group[rank.collectives.step == step].tolist()
    groups = [name if name.startswith("by name: ") else "" for name in rank.groups]
    return sorted(groups[row] for row in rows)


def _most_with_one_step(
    ranks: Sequence[RankMeasurement], whole: dict[int, set[int]]
) -> list[RankMeasurement]:
    """All ranks with whole steps if they share one; else those that share the step that most have."""
    steps = sorted({step for rank in ranks for step in whole[id(rank)]})
    if not steps:
        return []
    most = max(steps, key=lambda step: sum(step in whole[id(rank)] for rank in ranks))
    return [rank for rank in ranks if most in whole[id(rank)]]


def _longest_run(common: Sequence[int], steps: Sequence[int]) -> list[int]:
    """The longest part of `common` without a gap in `steps`; the first of equally long ones."""
    runs: list[list[int]] = [[]]
    for step in steps:
        if step in common:
            runs[-1].append(step)
        else:
            runs.append([])
    return max(runs, key=len)


def _dropped(rank: RankMeasurement) -> str:
    return (
        f"{rank.source}: {rank.cut_short or 'other steps'}: it has no whole step in common with the "
        f"other ranks, which are audited without it; waits for rank {rank.rank} count as communication"
    )


def _short(
    ranks: Sequence[RankMeasurement], whole: dict[int, set[int]], run: Sequence[int]
) -> list[str]:
    """One text on the steps that are left out, with the files that do not have them."""
    lost = sorted({step for rank in ranks for step in rank.steps} - set(run))
    short = [rank for rank in ranks if not whole[id(rank)].issuperset(lost)]
    if not lost:
        return []
    names = ", ".join(PurePath(rank.source).name for rank in short[:3])
    more = f" and {len(short) - 3:,} more" if len(short) > 3 else ""
    reason = next((rank.cut_short for rank in short if rank.cut_short), "")
    reason = f" ({reason})" if reason else ""
    whose = ", which every rank has" if len(ranks) > 1 else ""
    return [
        f"{steps_text(lost)}: not whole in {names}{more}{reason}; audited: {steps_text(run)}{whose}"
    ]


def steps_text(steps: Sequence[int]) -> str:
    """`step 3`, `steps 3 to 5`, or some of these."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    if steps[-1] - steps[0] == len(steps) - 1:
        return f"steps {steps[0]} to {steps[-1]}"
    shown = ", ".join(map(str, steps[:5]))
    return f"steps {shown}" + (f" and {len(steps) - 5:,} more" if len(steps) > 5 else "")
