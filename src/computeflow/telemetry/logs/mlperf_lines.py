"""MLPerf training logs, `:::MLLOG {json}`: mlcommons/logging, mlperf_logging/mllog."""

from __future__ import annotations

import msgspec

from computeflow.codec import refuse_repeats
from computeflow.errors import InputError
from computeflow.telemetry.logs.line_events import (
    Evaluation,
    Event,
    Finished,
    Launch,
    SettingLine,
    StepLine,
)

MARK = ":::MLLOG"
_LATEST_MS = 1e13
"""Latest time that is believed: the year 2286."""


class _Entry(msgspec.Struct):
    key: str = ""
    time_ms: float | None = None
    value: object = None
    metadata: dict[str, object] | None = None


_EVENTS: dict[str, Event] = {
    "init_start": Launch(),
    "run_start": Launch(begins=True),
    "run_stop": Finished(),
    "eval_start": Evaluation(phase="start"),
    "eval_stop": Evaluation(phase="end"),
}
_DECODER = msgspec.json.Decoder(_Entry)


def decode(text: str) -> _Entry | None:
    """The entry of a line; None where there is none, or where a key appears twice."""
    content = text.partition(MARK)[2].strip().encode()
    try:
        entry = _DECODER.decode(content)
        refuse_repeats(content, "entry")
    except (msgspec.MsgspecError, InputError, RecursionError):
        return None
    return entry


def time_of(text: str) -> float | None:
    entry = decode(text)
    if entry is None or entry.time_ms is None or not 0 < entry.time_ms < _LATEST_MS:
        return None
    return entry.time_ms / 1e3


class MlperfLines:
    """Events of a run: its steps are counted in samples where stated, else in blocks or epochs."""

    def __init__(self) -> None:
        self._batch = 0.0

    def event(self, text: str) -> Event | None:
        entry = decode(text)
        if entry is None:
            return None
        if entry.key in _EVENTS:
            return _EVENTS[entry.key]
        metadata = entry.metadata or {}
        match entry.key:
            case "eval_accuracy":
                return Evaluation(phase="end", loss=_float(entry.value))
            case "global_batch_size":
                batch = _float(entry.value) or 0.0
                self._batch = batch if batch >= 1 else 0.0
                return SettingLine(values={"batch": str(int(self._batch)), "framework": "MLPerf"})
            case "block_stop" | "epoch_stop":
                return self._step(metadata, None)
            case "train_loss":
                return self._step(metadata, _float(entry.value))
        return None

    def _step(self, metadata: dict[str, object], loss: float | None) -> StepLine | None:
        samples = _float(metadata.get("samples_count"))
        if samples is not None and self._batch:
            iteration = round(samples / self._batch)
            return (
                StepLine(iteration=iteration, loss=loss, batch=int(self._batch))
                if iteration
                else None
            )
        for name in ("step_num", "epoch_num", "first_epoch_num"):
            number = _float(metadata.get(name))
            if number is not None:
                unit = "steps" if name == "step_num" else "epochs"
                return StepLine(iteration=round(number), loss=loss, unit=unit)
        return None


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e15 else None
