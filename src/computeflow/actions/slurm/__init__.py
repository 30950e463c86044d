"""Slurm by its command line: `SlurmEngine` looks with `squeue` and `sinfo`, and acts with `scontrol`
and `sbatch`.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {"SlurmEngine": "slurm_engine"}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
