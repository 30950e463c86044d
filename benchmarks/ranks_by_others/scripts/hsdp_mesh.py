"""FSDP2 with two replicas of the shards (HSDP); the script is that of fsdp_mesh."""

from pathlib import Path

from benchmarks.ranks_by_others.drill import Drill
from benchmarks.ranks_by_others.scripts.fsdp_mesh import train


def main(drill: Drill, out: Path) -> None:
    """Train with two replicas."""
    train(drill, out, replicas=2)
