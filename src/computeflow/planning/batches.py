"""What another global batch does to the tokens that training needs.

With a critical batch size C, reaching a target with batches of B takes 1 + B/C times the least number
of tokens (arXiv:1812.06162, section 2.3). C must come from whoever trains: it is measured, not known.
"""

from __future__ import annotations

from computeflow.errors import InputError


def tokens_to_target(tokens: float, batch: int, usual_batch: int, critical_batch: float) -> float:
    """Tokens for the result that `tokens` in batches of `usual_batch` would give."""
    if not critical_batch > 0:
        raise InputError(f"critical batch {critical_batch}: above zero")
    return tokens * (1 + batch / critical_batch) / (1 + usual_batch / critical_batch)
