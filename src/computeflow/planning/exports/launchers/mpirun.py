"""One rank for every process of Open MPI."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from computeflow.planning.exports.config_formats import Setup, WrittenConfig
from computeflow.planning.exports.launchers import ranks
from computeflow.planning.exports.launchers.launch_settings import (
    LaunchSettings,
    check_launch,
    header,
)

RANK = (
    "export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE "
    "LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE\n"
    'exec "$@"'
)
"""Variables that torch.distributed reads (init_method env://), from those that Open MPI sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mpirun:
    terms: LaunchSettings
    name: str = "mpirun"
    version: str = "Open MPI 5.0 (mpirun(1)); run with 4.1"

    def write(self, setup: Setup, command: list[str]) -> WrittenConfig:
        check_launch(setup, self.terms, command)
        left_out = ("the grace before the limit: mpirun ends all ranks at once",)
        where, address = self._where(setup)
        names = [v.name for v in ranks.variables(setup, self.terms)]
        passed = " ".join(f"-x {name}" for name in (*names, "MASTER_ADDR", "MASTER_PORT"))
        text = (
            "#!/bin/bash\n"
            + header(setup, self.version, left_out)
            + "set -euo pipefail\n\n"
            + address
            + f"export MASTER_PORT={self.terms.port}\n"
            + ranks.exports(setup, self.terms)
            + f"\nexec mpirun -n {setup.layout.gpus} {where} --bind-to none "
            f"--timeout {self.terms.limit_seconds} \\\n  {passed} \\\n"
            f"  bash -c '{RANK}' rank \\\n  {shlex.join(command)}\n"
        )
        return WrittenConfig(files={"mpirun.sh": text}, left_out=left_out)

    def _where(self, setup: Setup) -> tuple[str, str]:
        """Options that place ranks, and lines that say where rank 0 is."""
        each = setup.node_devices
        if hosts := self.terms.hosts:
            listed = shlex.quote(",".join(f"{host}:{each}" for host in hosts))
            address = f"export MASTER_ADDR={shlex.quote(hosts[0])}\n"
            return f"--host {listed} --map-by slot", address
        if setup.nodes == 1:
            return f"--host localhost:{each} --map-by slot", "export MASTER_ADDR=127.0.0.1\n"
        return (
            f'${{HOSTFILE:+--hostfile "$HOSTFILE"}} --map-by ppr:{each}:node',
            "# HOSTFILE: `name slots=n` in the order of ranks; not needed inside a Slurm job.\n"
            'export MASTER_ADDR="${MASTER_ADDR:?node of rank 0}"\n',
        )
