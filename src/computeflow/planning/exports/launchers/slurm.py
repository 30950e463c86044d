"""A batch script: whole nodes, one torchrun on each, rendezvous on the first."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from computeflow.planning.exports.config_formats import Setup, WrittenConfig
from computeflow.planning.exports.launchers import ranks
from computeflow.planning.exports.launchers.launch_settings import (
    TORCH,
    LaunchSettings,
    check_launch,
    header,
    job_name,
)

_FIRST_NODE = """\
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR="${nodes[0]}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    terms: LaunchSettings
    name: str = "slurm"
    version: str = f"Slurm 26.05 (sbatch(1), srun(1)), {TORCH}; run with Slurm 22.05"

    def write(self, setup: Setup, command: list[str]) -> WrittenConfig:
        check_launch(setup, self.terms, command)
        placed = self._placed() if self.terms.hosts else _FIRST_NODE
        options = f"--distribution=arbitrary --ntasks={setup.nodes} " if self.terms.hosts else ""
        line = ranks.torchrun(
            setup, rank='"$SLURM_PROCID"', address='"$MASTER_ADDR"', port='"$MASTER_PORT"'
        )
        text = (
            "#!/bin/bash\n"
            + header(setup, self.version, ())
            + "".join(f"#SBATCH {option}\n" for option in self._options(setup))
            + "set -euo pipefail\n\n"
            + placed
            + f"export MASTER_PORT={self.terms.port}\n\n"
            + ranks.exports(setup, self.terms)
            + "\n# One task on every node; when one fails, all end. Binding is left to the ranks.\n"
            f"srun {options}--kill-on-bad-exit=1 --cpu-bind=none --mpi=none \\\n"
            f"  bash -c 'exec {line} \"$@\"' torchrun \\\n  {shlex.join(command)}\n"
        )
        return WrittenConfig(files={"job.sbatch": text})

    def _options(self, setup: Setup) -> list[str]:
        terms = self.terms
        given = {"partition": terms.partition, "account": terms.account}
        return [
            f"--job-name={job_name(setup, terms)}",
            *(f"--{name}={text}" for name, text in given.items() if text is not None),
            f"--nodes={setup.nodes}",
            *([f"--nodelist={','.join(terms.hosts)}"] if terms.hosts else []),
            "--ntasks-per-node=1",
            f"--gres=gpu:{setup.node_devices}",
            "--exclusive",
            "--mem=0",
            f"--time={duration(terms.limit_seconds)}",
            f"--signal=TERM@{terms.grace_seconds}",
            "--requeue",
            "--open-mode=append",
            "--output=%x-%j.out",
        ]

    def _placed(self) -> str:
        """Tasks in the order of the plan: srun(1), --distribution=arbitrary."""
        names = shlex.join(self.terms.hosts)
        return (
            "# The plan's order of nodes: task n runs on the n-th line.\n"
            'SLURM_HOSTFILE="$(mktemp)"\nexport SLURM_HOSTFILE\n'
            f"printf '%s\\n' {names} > \"$SLURM_HOSTFILE\"\n"
            f"export MASTER_ADDR={shlex.quote(self.terms.hosts[0])}\n"
        )


def duration(seconds: int) -> str:
    """days-hours:minutes:seconds."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:{second:02}"
