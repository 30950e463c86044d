"""Op timelines of all workers: what a step would take if some operations took their usual time.
Start with `source`.
"""
