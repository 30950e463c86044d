"""NVML's answers in a file: `RecordedNvml` replays them, `NvmlRecorder` keeps them.

    python -m computeflow.collection.agent.recorded_nvml FILE [LOOKS [SECONDS]]

records the driver of this machine. The file is JSON: `origin` says where the answers are from, `looks`
has one table for each look, from "GPU function arguments" to the answer or {"error": reason}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.collection.agent.nvml_library import NODE, NvmlCalls, NvmlMissingError, open_nvml
from computeflow.collection.agent.nvml_readings import NvmlReadings
from computeflow.errors import InputError
from computeflow.telemetry.opening import read_whole

SCHEMA = "computeflow.nvml/1"
COUNT = "nvmlDeviceGetCount"
"""Each look begins with it."""
_MAX_BYTES = 64 << 20


class RecordedNvml:
    """Replays looks one after the other; the last one stays."""

    def __init__(self, looks: Sequence[Mapping[str, Any]], origin: str = "") -> None:
        if not looks:
            raise InputError("a recording of NVML without a look")
        self._looks, self.origin = looks, origin
        self._next = 0

    @classmethod
    def load(cls, path: Path) -> RecordedNvml:
        content = read_whole(path, _MAX_BYTES, "record fewer looks")
        data = codec.from_json(content, str(path))
        looks = data.get("looks") if isinstance(data, dict) else None
        right = isinstance(looks, list) and all(isinstance(look, dict) for look in looks)
        if not right or not looks or data.get("schema") != SCHEMA:
            raise InputError(f"{path}: no recording of NVML ({SCHEMA})")
        return cls(looks, str(data.get("origin", "")))

    def ask(self, gpu: int, function: str, *arguments: int) -> Any:
        if gpu == NODE and function == COUNT:
            self._next += 1
        look = self._looks[min(max(self._next - 1, 0), len(self._looks) - 1)]
        answer = look.get(_key(gpu, function, arguments), {"error": "not recorded"})
        if isinstance(answer, dict) and "error" in answer:
            raise NvmlMissingError(str(answer["error"]))
        return answer


class NvmlRecorder:
    """Passes questions on and keeps the answers."""

    def __init__(self, calls: NvmlCalls) -> None:
        self._calls = calls
        self.looks: list[dict[str, Any]] = []

    def ask(self, gpu: int, function: str, *arguments: int) -> Any:
        if gpu == NODE and function == COUNT:
            self.looks.append({})
        key = _key(gpu, function, arguments)
        try:
            answer = self._calls.ask(gpu, function, *arguments)
        except NvmlMissingError as missing:
            self.looks[-1][key] = {"error": str(missing)}
            raise
        self.looks[-1][key] = answer
        return answer


def _key(gpu: int, function: str, arguments: Sequence[int]) -> str:
    return " ".join([str(gpu), function, ",".join(map(str, arguments))]).strip()


def record_nvml(path: Path, looks: int, seconds: float) -> None:
    """Keep what the driver of this machine answers."""
    recorder = NvmlRecorder(open_nvml())
    source = NvmlReadings(recorder, "recorded")
    for _ in range(looks):
        source.look(time.time_ns() // 1000)
        time.sleep(seconds)
    driver = recorder.looks[0].get(_key(NODE, "nvmlSystemGetDriverVersion", ()), "")
    origin = f"recorded {time.strftime('%Y-%m-%d')}, driver {driver}"
    data = {"schema": SCHEMA, "origin": origin, "looks": recorder.looks}
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _words = sys.argv[1:]
    record_nvml(
        Path(_words[0]),
        int(_words[1]) if len(_words) > 1 else 10,
        float(_words[2]) if len(_words) > 2 else 1.0,
    )
