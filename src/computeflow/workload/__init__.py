"""What a job needs from the machine: FLOPs, bytes and messages of a transformer under a layout.

Start with `Job` and `Layout`; `flops_per_token` counts; `refusals` is the gate.
"""

from computeflow.workload.flops import TokenFlops, flops_per_token
from computeflow.workload.job import Job
from computeflow.workload.layout import Layout, Layouts, check_layout, refusals

__all__ = ["Job", "Layout", "Layouts", "TokenFlops", "check_layout", "flops_per_token", "refusals"]
