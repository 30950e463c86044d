"""Decisions carried out: `preview`, then step by step through the engine that people run.

Start with `Controller`: findings of a store in, decisions of `scheduling` out, written to the journal,
carried out by an `Engine` (Slurm) and by the run's recorder, and measured afterwards.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "ActionJournal": "journal",
    "ActionRecord": "journal",
    "ControlLimits": "control_limits",
    "ControlOptions": "controller",
    "Controller": "controller",
    "Engine": "engine",
    "SlurmEngine": "slurm",
    "latest_checkpoint": "saved_checkpoints",
    "read_limits": "control_limits",
    "run_controller": "control_loop",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
