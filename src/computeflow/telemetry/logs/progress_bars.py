"""Progress bars of tqdm, as Lightning and the Hugging Face Trainer draw them."""

from __future__ import annotations

import re

from computeflow.telemetry.logs.line_events import StepLine

_BAR = re.compile(
    r"(?:^|(?<=\s))(?:(?P<name>[A-Za-z][^|%]{0,60}?): {1,8})?\d{1,3}%\|[^|]{0,1000}\| {0,8}"
    r"(?P<at>\d{1,15})/(?P<total>\d{1,15}) "
    r"\[(?P<passed>[\d:]{1,20})<[^,\]]{0,20}, {0,8}[\d.?]{1,20} ?(?:it/s|s/it)(?P<more>[^\]]{0,1000})\]"
)
_LONGEST = 1e9
_EPOCH = re.compile(r"Epoch (\d{1,15})$")
_NAMES = ("", "Training", "Train", "train")
_LOSS = re.compile(r"(?:^|[ ,])(?:train[_/])?loss(?:_step)?=([-\d.einfa]+)")


def progress(text: str) -> StepLine | None:
    """The step of a bar that counts training steps: without a name, or Lightning's "Epoch 3"."""
    states = list(_BAR.finditer(text))
    if not states:
        return None
    bar = states[-1]
    name = bar["name"] or ""
    epoch = _EPOCH.search(name)
    count, total, elapsed = int(bar["at"]), int(bar["total"]), _seconds(bar["passed"])
    if not (epoch or name in _NAMES) or not count or elapsed > _LONGEST:
        return None
    return StepLine(
        iteration=count + (int(epoch[1]) * total if epoch else 0),
        total=None if epoch else total,
        loss=_loss(bar["more"]),
        elapsed=elapsed,
        bar=f"{'Epoch' if epoch else name} of {total}",
        weak=True,
    )


def _seconds(clock: str) -> float:
    """Seconds in "1:02:03"."""
    seconds = 0.0
    for part in clock.split(":"):
        seconds = seconds * 60 + float(part or 0)
    return seconds


def _loss(text: str) -> float | None:
    match = _LOSS.search(text)
    try:
        return float(match[1]) if match else None
    except ValueError:
        return None
