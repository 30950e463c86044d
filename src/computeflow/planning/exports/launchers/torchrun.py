"""A script to run on every node."""

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
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Torchrun:
    terms: LaunchSettings
    name: str = "torchrun"
    version: str = TORCH

    def write(self, setup: Setup, command: list[str]) -> WrittenConfig:
        check_launch(setup, self.terms, command)
        left_out = ("a time limit: torchrun has none",)
        start, line = self._line(setup)
        text = (
            "#!/bin/bash\n"
            + header(setup, self.version, left_out)
            + start
            + "set -euo pipefail\n\n"
            + ranks.exports(setup, self.terms)
            + f"\nexec {line} \\\n  {shlex.join(command)}\n"
        )
        return WrittenConfig(files={"torchrun.sh": text}, left_out=left_out)

    def _line(self, setup: Setup) -> tuple[str, str]:
        if setup.nodes == 1:
            each = f"--nproc-per-node={setup.node_devices}"
            return "", f"torchrun --standalone {each} --max-restarts=0 --no-python"
        line = ranks.torchrun(
            setup, rank='"$NODE_RANK"', address='"$MASTER_ADDR"', port=str(self.terms.port)
        )
        if not self.terms.hosts:
            return (
                "# On every node: NODE_RANK=0,1,... MASTER_ADDR=<the node of rank 0> bash torchrun.sh\n"
                ': "${NODE_RANK:?number of this node, from 0}" "${MASTER_ADDR:?node of rank 0}"\n'
            ), line
        hosts = [shlex.quote(host) for host in self.terms.hosts]
        cases = "".join(f"  {host}) NODE_RANK={n} ;;\n" for n, host in enumerate(hosts))
        return (
            f"MASTER_ADDR={hosts[0]}\n"
            'case "${NODE_NAME:-$(hostname -s)}" in\n' + cases + "  *)\n"
            '    echo "$(hostname -s) is not a node of this plan" >&2\n    exit 1\n    ;;\nesac\n'
        ), line
