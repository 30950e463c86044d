"""The reference trainer: `TrainerSettings` in, `Summary` out. `train` is in
`training_loop` and needs torch.
"""

from computeflow.lab.trainer.trainer_settings import (
    FAULTS,
    InjectedFault,
    TrainerSettings,
    parse_settings,
)

__all__ = ["FAULTS", "InjectedFault", "TrainerSettings", "parse_settings"]
