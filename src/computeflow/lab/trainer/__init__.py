"""The reference trainer: `Settings` in, `Summary` out. `train` is in `loop` and needs torch."""

from computeflow.lab.trainer.settings import FAULTS, Fault, Settings, parse_settings

__all__ = ["FAULTS", "Fault", "Settings", "parse_settings"]
