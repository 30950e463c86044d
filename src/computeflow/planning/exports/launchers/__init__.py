"""A plan as files that start it: `LAUNCHERS["slurm"].write(setup, ["python", "train.py"])`.

`launchers(terms)` gives the same with a site's and a user's own terms.
"""

from __future__ import annotations

from computeflow.planning.exports.launchers.jobset import JobSet
from computeflow.planning.exports.launchers.launch_settings import Launcher, LaunchSettings
from computeflow.planning.exports.launchers.mpirun import Mpirun
from computeflow.planning.exports.launchers.ray_train import RayTrain
from computeflow.planning.exports.launchers.slurm import Slurm
from computeflow.planning.exports.launchers.torchrun import Torchrun
from computeflow.planning.exports.launchers.trainjob import TrainJob

__all__ = ["LAUNCHERS", "LaunchSettings", "Launcher", "launchers"]


def launchers(terms: LaunchSettings) -> dict[str, Launcher]:
    every: tuple[Launcher, ...] = (
        Slurm(terms=terms),
        Torchrun(terms=terms),
        Mpirun(terms=terms),
        JobSet(terms=terms),
        TrainJob(terms=terms),
        RayTrain(terms=terms),
    )
    return {launcher.name: launcher for launcher in every}


LAUNCHERS: dict[str, Launcher] = launchers(LaunchSettings())
