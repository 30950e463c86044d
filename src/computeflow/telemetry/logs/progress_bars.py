"""Progress bars of tqdm, as Lightning and the Hugging Face Trainer draw them."""

from __future__ import annotations

import re

from computeflow.telemetry.logs.line_events import StepLine

_BAR = re.compile(
    r"(?:^|(?<=\s))(?:(?P<name>[A-Za-z][^|%]{0,60}?): {1,8})?\d{1,3}%\|[^|]{0,1000}\| {0,8}"
    r"(?P<at>\d{1,15})/(?P<total>\d{1,15}) "
    r"\[(?P<passed>[\d:]{1,20})<[^,\]]{0,20}, {0,8}(?P<rate>[\d.?]{1,20}) ?(?P<unit>it/s|s/it)"
    r"(?P<more>[^\]]{0,1000})\]"
)
_LONGEST = 1e9
_FRACTION = 0.999
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
        elapsed=within_second(elapsed, count, _steps_per_second(bar)),
        bar=f"{'Epoch' if epoch else name} of {total}",
        weak=True,
    )


def within_second(elapsed: float, count: float, rate: float | None) -> float:
    """A bar's clock, which leaves out fractions of a second, with the fraction that its rate gives."""
    if not rate:
        return elapsed
    return min(max(count / rate, elapsed), elapsed + _FRACTION)


def _steps_per_second(bar: re.Match[str]) -> float | None:
    try:
        rate = float(bar["rate"])
    except ValueError:
        return None
    return rate if bar["unit"] == "it/s" or not rate else 1 / rate


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
