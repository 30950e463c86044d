"""Progress bars of tqdm, as Lightning and the Hugging Face Trainer draw them."""

from __future__ import annotations

import re

from computeflow.telemetry.logs.events import Step

_BAR = re.compile(
    r"(?:^|(?<=\s))(?:(?P<name>[A-Za-z][^|%]{0,60}?): +)?\d+%\|[^|]*\| *"
    r"(?P<at>\d{1,15})/(?P<total>\d{1,15}) "
    r"\[(?P<passed>[\d:]+)<[^,\]]*, *[\d.?]+ ?(?:it/s|s/it)(?P<more>[^\]]*)\]"
)
_LONGEST = 1e9
_EPOCH = re.compile(r"Epoch (\d{1,15})$")
_LOSS = re.compile(r"(?:^|[ ,])(?:train[_/])?loss(?:_step)?=([-\d.einfa]+)")


def progress(text: str) -> Step | None:
    """A step of a bar that counts training steps: one without a name, or Lightning's "Epoch 3"."""
    states = list(_BAR.finditer(text))
    if not states:
        return None
    found = states[-1]
    name = found["name"] or ""
    epoch = _EPOCH.search(name)
    if name and not epoch and name not in ("Training", "Train", "train"):
        return None
    at, total = int(found["at"]), int(found["total"])
    if not at:
        return None
    passed = 0.0
    for part in found["passed"].split(":"):
        passed = passed * 60 + float(part or 0)
    if passed > _LONGEST:
        return None
    loss = _LOSS.search(found["more"])
    return Step(
        iteration=at + (int(epoch[1]) * total if epoch else 0),
        total=None if epoch else total,
        loss=_float(loss[1]) if loss else None,
        elapsed=passed,
        bar=f"{'Epoch' if epoch else name} of {total}",
        weak=True,
    )


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
