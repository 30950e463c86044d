"""Logs that are tables: the Hugging Face Trainer's trainer_state.json, Lightning's metrics.csv.

Both give the same events as log lines do; neither has times of day.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from computeflow.codec import refuse_repeats
from computeflow.errors import InputError
from computeflow.files.limits import TRAINER_STATE_BYTES
from computeflow.telemetry.lines import check_columns
from computeflow.telemetry.logs.line_events import (
    Evaluation,
    Event,
    Finished,
    LinePosition,
    SettingLine,
    StepLine,
)
from computeflow.telemetry.logs.log_lines import read
from computeflow.telemetry.opening import read_whole

_LOSSES = (
    "loss",
    "train_loss",
    "train/loss",
    "train_loss_step",
    "reduced_train_loss",
    "train-loss",
)
_SCORES = ("val_loss", "val/loss", "validation_loss", "eval_loss")
_TIME = ("train|time", "train/time")
_EACH = ("train_step_timing in s", "train_step_timing")
_MFU = ("train|device/mfu", "train/device/mfu")
_READ = ("step", *_LOSSES, *_SCORES, *_TIME, *_EACH, *_MFU)


class _State(msgspec.Struct):
    log_history: list[dict[str, object]]
    max_steps: int | None = None
    global_step: int | None = None


def is_trainer_state(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and b'"log_history"' in head


def is_metrics_csv(head: bytes) -> bool:
    line, newline, _ = head.partition(b"\n")
    names = [name.strip().strip(b'"') for name in line.split(b",")]
    return (
        bool(newline)
        and b"step" in names
        and len(names) > 1
        and (b"epoch" in names or any(name.decode("utf-8", "replace") in _LOSSES for name in names))
    )


def trainer_state(path: Path) -> Iterator[tuple[Event, LinePosition]]:
    text = read_whole(path, TRAINER_STATE_BYTES, "larger than a trainer_state.json can be")
    try:
        state = msgspec.json.decode(text, type=_State)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not a trainer_state.json ({error})") from None
    refuse_repeats(text, str(path))
    place = LinePosition(file=str(path), line=1)
    yield SettingLine(values={"framework": "Hugging Face Trainer"}), place
    if state.max_steps:
        yield SettingLine(values={"total": str(state.max_steps)}), place
    for row in state.log_history:
        event = _history_event(row)
        if event is not None:
            yield event, place


def _history_event(row: dict[str, object]) -> Event | None:
    step = _number(row.get("step"))
    iteration = None if step is None or math.isnan(step) else int(step)
    if "train_runtime" in row:
        return Finished(seconds=_number(row["train_runtime"]))
    if any(name.startswith("eval_") for name in row):
        seconds = _number(row.get("eval_runtime"))
        return Evaluation(
            phase="end", iteration=iteration, loss=_number(row.get("eval_loss")), seconds=seconds
        )
    if iteration is None or iteration <= 0 or "loss" not in row:
        return None
    return StepLine(iteration=iteration, loss=_number(row["loss"]))


def metrics_csv(path: Path, broken: list[str]) -> Iterator[tuple[Event, LinePosition]]:
    """Events of a metrics.csv. Lightning counts steps from 0 and leaves unknown cells empty."""
    lines = read(path, broken)
    line_number = [1]

    def texts() -> Iterator[str]:
        for line in lines:
            line_number[0] = line.number
            yield line.text

    yield SettingLine(values={"framework": "Lightning"}), LinePosition(file=str(path), line=1)
    try:
        rows = csv.DictReader(texts())
        check_columns(rows.fieldnames or (), _READ, path)
        for row in rows:
            place = LinePosition(file=str(path), line=line_number[0])
            step = _number(row.get("step"))
            if step is not None and step >= 0:
                yield from ((event, place) for event in _row_events(row, int(step)))
    except csv.Error as error:
        raise InputError(f"{path}: line {line_number[0]}: {error}") from None


def _row_events(row: dict[str, str], iteration: int) -> Iterator[Event]:
    score = _first(row, _SCORES)
    if score is not None:
        yield Evaluation(phase="end", iteration=iteration, loss=score)
    loss, step_seconds, elapsed = _first(row, _LOSSES), _first(row, _EACH), _first(row, _TIME)
    if loss is not None or step_seconds is not None or elapsed is not None:
        yield StepLine(
            iteration=iteration,
            loss=loss,
            seconds=step_seconds,
            elapsed=elapsed,
            mfu=_first(row, _MFU),
            from_zero=True,
        )


def _first(row: dict[str, str], names: tuple[str, ...]) -> float | None:
    return next((v for name in names if (v := _number(row.get(name))) is not None), None)


def _number(value: object) -> float | None:
    if not isinstance(value, int | float | str) or value == "":
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 1e15 or math.isnan(number) else None
