"""Answers of Prometheus' HTTP API (`resultType` matrix, vector or scalar), from a server or saved."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.errors import InputError
from computeflow.files.limits import METRIC_ANSWER_BYTES
from computeflow.telemetry.metrics.samples import SampledFleet
from computeflow.telemetry.opening import read_whole

_ANSWER = re.compile(rb'\A\s*\{\s*"status"\s*:\s*"success"[^\n]{0,4000}?"resultType"\s*:', re.S)


def looks_like_answer(head: bytes) -> bool:
    return _ANSWER.match(head) is not None


def read_answer(path: Path, fleet: SampledFleet) -> list[str]:
    """Add the samples of a saved answer, which is one JSON text."""
    data = read_whole(path, METRIC_ANSWER_BYTES, "ask for fewer series or a shorter time")
    add_result(result_of(codec.from_json(data, str(path), once=True), str(path)), fleet, str(path))
    return []


def result_of(answer: Any, where: str) -> Any:
    """The `data` of an answer, which must be a success."""
    if not isinstance(answer, dict) or answer.get("status") != "success":
        raise InputError(f"{where}: {_refusal(answer)}")
    return answer.get("data")


def _refusal(answer: Any) -> str:
    if isinstance(answer, dict) and answer.get("status") == "error":
        text = f"{answer.get('errorType', 'error')}: {answer.get('error', '')}"
        return " ".join(text.split())[:300]
    return "not an answer of Prometheus' HTTP API"


def rows(data: Any, where: str) -> Iterator[tuple[dict[str, str], list[tuple[float, float]]]]:
    """Labels and (time, value) of every series."""
    try:
        if data["resultType"] == "scalar":
            yield {}, [_pair(data["result"])]
            return
        for row in data["result"]:
            values = row["values"] if "values" in row else [row["value"]] if "value" in row else []
            labels = row["metric"]
            if not all(isinstance(text, str) for text in labels.values()):
                raise TypeError("labels")
            yield labels, [_pair(pair) for pair in values]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        raise InputError(f"{where}: not in the format of Prometheus' answers") from None


def _pair(pair: Any) -> tuple[float, float]:
    seconds, value = pair
    return float(seconds), float(value)


def add_result(data: Any, fleet: SampledFleet, where: str, metric: str = "") -> int:
    """Add the samples of an answer; returns its number of series."""
    count = 0
    for labels, values in rows(data, where):
        count += 1
        slot = fleet.slot(labels.get("__name__", metric), labels, where)
        if slot is not None:
            for seconds, value in values:
                slot.add(value, seconds)
    return count
