"""Settings of the job that the log states, bounded in number."""

from __future__ import annotations

from computeflow.files.limits import LOG_SETTINGS
from computeflow.telemetry.logs.line_events import SettingLine

_MAX_DIGITS = 11
_PRECISIONS = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
_LAYOUT = ("tp", "pp", "dp", "cp", "ep", "dp_replicate", "dp_shard")


class LoggedSettings:
    def __init__(self) -> None:
        self.framework = ""
        self.worlds: set[int] = set()
        """World sizes stated so far; more than one where the job was resized."""
        self._values: dict[str, str] = {}

    def take(self, setting: SettingLine) -> None:
        for name, value in setting.values.items():
            if len(self._values) < LOG_SETTINGS or name in self._values:
                self._values[name] = value
        self.framework = setting.values.get("framework", self.framework)
        world = self.number("world_size")
        if "world_size" in setting.values and world:
            self.worlds.add(world)

    def number(self, name: str) -> int | None:
        text = self._values.get(name, "")
        return int(text) if text.isdigit() and len(text) <= _MAX_DIGITS else None

    @property
    def precision(self) -> str | None:
        """Precision of the matmuls, where the log states it."""
        if self._values.get("fp8", "False") != "False":
            return "fp8"
        return _PRECISIONS.get(self._values.get("dtype", ""))

    @property
    def layout(self) -> dict[str, int]:
        return {name: size for name in _LAYOUT if (size := self.number(name))}
