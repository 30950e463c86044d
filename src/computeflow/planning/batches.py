"""Other global batches: how many tokens training then needs, and the best plan for each.

With a critical batch size C, reaching a target with batches of B takes 1 + B/C times the least number
of tokens (arXiv:1812.06162, section 2.3). C must come from whoever trains: it is measured, not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from computeflow.errors import InputError
from computeflow.planning.goals import Search, TriedSize
from computeflow.planning.limits import MAX_BATCHES


def tokens_to_target(tokens: float, batch: int, usual_batch: int, critical_batch: float) -> float:
    """Tokens for the result that `tokens` in batches of `usual_batch` would give."""
    if not critical_batch > 0:
        raise InputError(f"critical batch {critical_batch}: above zero")
    return tokens * (1 + batch / critical_batch) / (1 + usual_batch / critical_batch)


def try_batches(
    search: Search, batches: Sequence[int], critical_batch: float | None
) -> list[TriedSize]:
    """Every batch with the tokens that it needs to the same result."""
    tokens = search.goals.tokens
    if tokens is None or critical_batch is None:
        raise InputError("--batches needs --tokens and --critical-batch")
    different = list(dict.fromkeys(batches))
    if len(different) > MAX_BATCHES:
        raise InputError(f"--batches: {len(different):,} batches; at most {MAX_BATCHES} at once")
    options = []
    for size in different:
        need = tokens_to_target(tokens, size, search.job.global_batch, critical_batch)
        goals = replace(search.goals, tokens=need)
        job = replace(search.job, global_batch=size)
        plans = replace(search, job=job, goals=goals).run().plans
        options.append(TriedSize(size=size, goals=goals, plan=plans[0] if plans else None))
    return options
