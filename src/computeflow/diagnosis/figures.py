"""How often each rule was right on the labelled recordings; `figures.json` is written by
`benchmarks/prove_diagnosis.py` and shown in docs/diagnosis.md.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

_UNTRIED = 0.5
"""Confidence in a rule that was not tried on labelled recordings."""


@cache
def _figures() -> dict[str, dict[str, int]]:
    path = Path(__file__).with_name("figures.json")
    return dict(json.loads(path.read_text(encoding="utf-8"))["rules"]) if path.exists() else {}


def confidence(rule: str) -> float:
    """The rule's precision on recordings that set no threshold, by the rule of succession: five right
    of five are no certainty.
    """
    counts = _figures().get(rule)
    if counts is None:
        return _UNTRIED
    right, wrong = counts["right"], counts["wrong"]
    return (right + 1) / (right + wrong + 2)
