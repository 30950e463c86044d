"""Dumps of PyTorch's flight recorder: who keeps a job from going on. Start with `source`."""
