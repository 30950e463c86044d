"""Shell scripts as people keep them, read and never run: `script.launch_words`."""

from computeflow.planning.exports.frameworks.shell.script import launch_words, slurm

__all__ = ["launch_words", "slurm"]
