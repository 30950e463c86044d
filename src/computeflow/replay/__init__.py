"""The recorded step, run again: unchanged, without the profiler's cost, and with a change."""

from computeflow.replay.edits import Edit
from computeflow.replay.profiler_cost import Range
from computeflow.replay.replayed_step import ReplayedStep, replay_step

__all__ = ["Edit", "Range", "ReplayedStep", "replay_step"]
