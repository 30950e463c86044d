"""Logs of the kernel and of the fabric manager: faults, what they are, and what to do.

Start with `source.KernelLogSource`; `signs.sign_of` classifies a message; `stamps.stamp_of` reads when
and where a line was written.
"""
