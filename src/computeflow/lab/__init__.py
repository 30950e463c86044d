"""Tools that run on a real accelerator: the reference trainer and the probe.

`computeflow.lab.trainer` is a Llama-style trainer with a flag for every setting and faults that can
be injected; `computeflow.lab.probe` measures what a machine delivers. Both need torch and little
else.
"""

__all__ = ["probe", "trainer"]
