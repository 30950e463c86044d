"""Logs of the kernel and of the fabric manager: faults, what they are, and what to do.

Start with `kernel_log_source.KernelLogSource`; `messages.classify_message` classifies a message;
`line_stamps.stamp_of` reads when and where a line was written.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "GpuBurnRun": "gpu_burn",
    "NodeFault": "node_faults",
    "GpuBurnSource": "gpu_burn",
    "KernelLogSource": "kernel_log_source",
    "KernelLogs": "kernel_log_source",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
