"""Where a job runs: accelerators, how many, and what joins them.

Start with `find_cluster("h100-sxm:512", catalog)`.
"""

from computeflow.cluster.machine import Cluster, find_cluster

__all__ = ["Cluster", "find_cluster"]
