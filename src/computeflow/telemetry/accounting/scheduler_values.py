"""Values as schedulers write them: times, durations, counts of GPUs, energies, states."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

NAN = math.nan
_EPOCH = datetime(1970, 1, 1)
_AWARE = datetime(1970, 1, 1, tzinfo=UTC)
_NONE = frozenset(("", "unknown", "none", "n/a", "(null)", "null", "nan", "invalid", "-"))
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_GPUS = re.compile(r"(?:^|[,;\s])(?:gres[/:])?gpu(?::([A-Za-z_][\w.+-]*))?[=:](\d+(?:\.\d+)?)")
_ENERGY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTPE]?)J?", re.IGNORECASE)
_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_MAX_JOULES = 1e14
"""More than 300 MW over four days: Slurm's mark for "no value" reads as an energy beyond this."""


def unix_seconds(text: str) -> float:
    """Unix seconds of an ISO date or a number of s, ms or µs; else NaN. UTC where no zone is given."""
    text = text.strip()
    if text.lower() in _NONE:
        return NAN
    if _NUMBER.fullmatch(text):
        value = float(text)
        return moment(value / 1e6 if value > 1e14 else value / 1e3 if value > 1e11 else value)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return NAN
    try:
        return moment((when - (_EPOCH if when.tzinfo is None else _AWARE)).total_seconds())
    except OverflowError:
        return NAN


def moment(seconds: float) -> float:
    """A time from 1970 to the year 5138; else NaN."""
    return seconds if 0 <= seconds < 1e11 else NAN


def duration_seconds(text: str) -> float:
    """Seconds in `1-02:03:04`, `02:03:04`, `03:04.5` or a plain number; else NaN."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        value = float(text)
        return value if 0 <= value < 1e12 else NAN
    match = _DURATION.fullmatch(text)
    if match is None:
        return NAN
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return total if total < 1e12 else NAN


@lru_cache(maxsize=65536)
def gpus_of(tres: str) -> float | None:
    """GPUs in `gres/gpu=8`, `gres/gpu:h100=8`, `gpu:h100:8(S:0-1)`; None where none is named.

    Slurm counts a typed GPU under the plain name, too: the plain count is used where both are present.
    """
    plain, typed = None, None
    for kind, count in _GPUS.findall(tres):
        number = min(float(count), 1e9)
        if kind:
            typed = (typed or 0.0) + number
        else:
            plain = (plain or 0.0) + number
    return typed if plain is None else plain


def parse_joules(text: str) -> float:
    """Joules in `12345` or `1.23M`; NaN for zero, which Slurm writes if nothing was measured."""
    match = _ENERGY.fullmatch(text.strip())
    if match is None:
        return NAN
    value = float(match[1]) * _SCALE[match[2].upper()]
    return value if 0 < value < _MAX_JOULES else NAN


Outcome = Literal["done", "failed", "stopped", "requeued", "running", "waiting", "unknown"]
OUTCOMES: tuple[Outcome, ...] = (
    "done",
    "failed",
    "stopped",
    "requeued",
    "running",
    "waiting",
    "unknown",
)
_WORDS: dict[Outcome, str] = {
    "done": "completed complete cd succeeded success pass passed done finished ok resizing rs",
    "failed": "failed fail failure f error errored node_fail nf boot_fail bf out_of_memory oom "
    "oomkilled launch_failed reconfig_fail special_exit se exit crashed",
    "stopped": "cancelled canceled ca killed timeout to deadline dl preempted pr evicted stopped st "
    "terminated aborted deleted revoked rv",
    "requeued": "requeued rq requeue_hold rh requeue_fed rf restarting",
    "running": "running r completing cg suspended s configuring cf signaling si stage_out so "
    "power_up_node",
    "waiting": "pending pd queued waiting held resv_del_hold rd created submitted",
}
_OUTCOME = {word: outcome for outcome, words in _WORDS.items() for word in words.split()}
SITE_FAILURES = frozenset(("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"))
"""States by which Slurm itself says that a node, and not the job, failed."""


@lru_cache(maxsize=4096)
def state_of(text: str) -> str:
    """The state in capitals: CANCELLED for `CANCELLED by 1000`, UNKNOWN for an empty text."""
    word = text.strip().split(" ")[0].split("+")[0].split(",")[0]
    return word.upper()[:40] or "UNKNOWN"


def outcome_of(state: str) -> Outcome:
    """The outcome of a state of Slurm (sacct(1), JOB STATE CODES) or of other schedulers."""
    return _OUTCOME.get(state.lower(), "unknown")
