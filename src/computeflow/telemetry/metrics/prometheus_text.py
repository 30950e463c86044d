"""Prometheus and OpenMetrics text files: one scrape, many of them, or a history with times.

Labels are read by prometheus-client, the reference parser, once per series; the values behind a
series already seen are two numbers. Prometheus writes times in milliseconds, OpenMetrics in
seconds: above 1e11 (the year 5138 in seconds, 1973 in milliseconds) they are milliseconds.
Exemplars are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from computeflow.errors import UnavailableError
from computeflow.files.limits import METRIC_NAMES_BYTES, METRIC_SERIES
from computeflow.telemetry.lines import read_lines
from computeflow.telemetry.metrics.samples import SampledFleet, Slot, text_bytes

_MILLISECONDS = 1e11
_EXEMPLAR = " # {"
_Parsed = tuple[str, dict[str, str]]


def read_prometheus_text(path: Path, fleet: SampledFleet) -> list[str]:
    """Add the file's samples; returns what could not be read, in words."""
    parse = _parser()
    slots: dict[str, Slot | None] = {}
    bad, first_bad, heads_bytes = 0, 0, 0
    left_out: list[str] = []
    for number, line in enumerate(read_lines(path, left_out), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            head, value, seconds = _split(line, parse)
            if head not in slots:
                if len(slots) >= METRIC_SERIES or heads_bytes > METRIC_NAMES_BYTES:
                    fleet.samples_beyond += 1
                    continue
                name, labels = parse(f"{head} 0")
                heads_bytes += text_bytes(head)
                slots[head] = fleet.slot(name, labels, str(path))
        except ValueError:
            bad, first_bad = bad + 1, first_bad or number
            continue
        slot = slots[head]
        if slot is not None:
            slot.add(value, seconds)
    if bad:
        left_out.append(
            f"{path}: {bad:,} lines that are not samples, the first is line {first_bad}"
        )
    return left_out


def _split(line: str, parse: Callable[[str], _Parsed]) -> tuple[str, float, float | None]:
    """The series (name and labels, as written), the value, the time."""
    if _EXEMPLAR in line:
        cut = line.rpartition(_EXEMPLAR)[0]
        try:
            parse(cut)
            line = cut
        except ValueError:  # it stands inside a label
            pass
    head, brace, tail = line.rpartition("}")
    if not brace:
        head, *rest = line.split(None, 1)
        tail = rest[0] if rest else ""
    parts = tail.split()
    if not 1 <= len(parts) <= 2 or "_" in tail:
        raise ValueError("no value")
    seconds = float(parts[1]) if len(parts) == 2 else None
    if seconds is not None and abs(seconds) > _MILLISECONDS:
        seconds /= 1000
    return head + brace, float(parts[0]), seconds


def _parser() -> Callable[[str], _Parsed]:
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise UnavailableError(
            "metrics as text need prometheus-client: pip install 'computeflow[metrics]'"
        ) from None

    def parse(line: str) -> _Parsed:
        try:
            sample = next(iter(text_string_to_metric_families(line))).samples[0]
        except (StopIteration, IndexError):
            raise ValueError("no sample") from None
        return sample.name, dict(sample.labels)

    return parse
