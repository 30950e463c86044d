"""Where a job runs: accelerators, how many, and what joins them.

Start with `find_cluster("h100-sxm:512", catalog)`.
"""

from computeflow.cluster.machine import MAX_GPUS, Cluster, Tier, find_cluster, resized

__all__ = ["MAX_GPUS", "Cluster", "Tier", "find_cluster", "resized"]
