"""Formats that end in Megatron Core: Megatron-LM's arguments, Megatron-Bridge, NeMo."""

from computeflow.planning.exports.frameworks.megatron.arguments import Megatron
from computeflow.planning.exports.frameworks.megatron.bridge import MegatronBridge
from computeflow.planning.exports.frameworks.megatron.nemo import Nemo

__all__ = ["Megatron", "MegatronBridge", "Nemo"]
