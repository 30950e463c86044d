"""What a job takes and where to run it: `size.size`, `compare.compare`; sites, build or rent, claims.

Nothing is imported here: `size` answers in a second because it does not load the simulator.
"""
