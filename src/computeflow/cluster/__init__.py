"""Where a job runs: accelerators, how many, and what joins them.

Start with `find_cluster("h100-sxm:512", catalog)`.
"""

from computeflow.cluster.machine import Cluster, Tier, find_cluster, resized

__all__ = ["Cluster", "Tier", "find_cluster", "resized"]
