"""The one trace that Kineto, Nsight and JAX profiles are read into, and its accounting.

Start with `rank.measure_trace` (one rank's accounts) and `job.job_ledger` (the ranks together).
"""
