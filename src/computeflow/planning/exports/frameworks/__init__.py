"""Configurations of training frameworks, by name."""

from computeflow.planning.exports.frameworks.accelerate import Accelerate
from computeflow.planning.exports.frameworks.config_keys import Framework
from computeflow.planning.exports.frameworks.deepspeed import DeepSpeed
from computeflow.planning.exports.frameworks.fsdp2 import Fsdp2
from computeflow.planning.exports.frameworks.maxtext import MaxText
from computeflow.planning.exports.frameworks.megatron import Megatron, MegatronBridge, Nemo
from computeflow.planning.exports.frameworks.torchtitan import Torchtitan
from computeflow.planning.exports.frameworks.trainer import HuggingFaceTrainer

_ALL: tuple[Framework, ...] = (
    Torchtitan(), DeepSpeed(), Megatron(), Accelerate(), HuggingFaceTrainer(), MegatronBridge(), Nemo(),
    MaxText(), Fsdp2(),
)  # fmt: skip
FRAMEWORKS: dict[str, Framework] = {framework.name: framework for framework in _ALL}

__all__ = ["FRAMEWORKS", "Framework"]
