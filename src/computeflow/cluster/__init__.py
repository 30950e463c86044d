"""Where a job runs: accelerators, how many, and what joins them.

Start with `find_cluster("h100-sxm:512", catalog)`; `collectives` has the time of rings and all-to-alls.
"""

from computeflow.cluster.machine import MAX_GPUS, Cluster, LinkTier, find_cluster, resize_cluster

__all__ = ["MAX_GPUS", "Cluster", "LinkTier", "find_cluster", "resize_cluster"]
