"""What runs on a real accelerator: the reference trainer and the probe.

`computeflow.lab.trainer` is a Llama-style trainer whose every knob is a flag and whose faults can be
planted; `computeflow.lab.probe` measures what a machine really gives. Both need torch and little else.
"""

__all__ = ["probe", "trainer"]
