"""Formats that end in Megatron Core: Megatron-LM's arguments, Megatron-Bridge, NeMo."""
