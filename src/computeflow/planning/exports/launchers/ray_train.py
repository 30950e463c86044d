"""A driver for Ray Train: one worker on every node, which starts that node's ranks with torchrun.

Ray finds the nodes, watches them and starts again; ranks are torchrun's, so that any command runs
(a worker of Ray's has joined a process group already, and a script that joins one would fail in it).
"""

from __future__ import annotations

from dataclasses import dataclass

from computeflow.files.languages import PYTHON_OPENING, comment, to_python
from computeflow.planning.exports.config_formats import Setup, WrittenConfig
from computeflow.planning.exports.launchers import ranks
from computeflow.planning.exports.launchers.launch_settings import (
    TORCH,
    LaunchSettings,
    check_launch,
    header,
    job_name,
)

RESTARTS = 3
_DRIVER = '''\
import os
import socket
import subprocess

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer

NAME = {name}
NODES = {nodes}
NODE_GPUS = {node_gpus}
PORT = {port}
HOSTS = {hosts}  # in the order of ranks; empty: as Ray numbers them
COMMAND = {command}
ENVIRONMENT = {{
{environment}}}


def node_ids():
    """Of the hosts, in their order."""
    known = {{node["NodeManagerHostname"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}}
    return [known[host] for host in HOSTS]


def train():
    """On every node: torchrun, with rank and address that Ray knows."""
    if HOSTS:
        here = ray.get_runtime_context().get_node_id()
        rank, address = node_ids().index(here), HOSTS[0]
    else:
        rank, address = get_context().get_world_rank(), os.environ["MASTER_ADDR"]
    os.makedirs({records}, exist_ok=True)
    line = [
        "torchrun", f"--nnodes={{NODES}}", f"--nproc-per-node={{NODE_GPUS}}", f"--node-rank={{rank}}",
        f"--master-addr={{address}}", f"--master-port={{PORT}}", "--max-restarts=0", "--no-python",
    ]
    print(f"node {{rank}} of {{NODES}} on {{socket.gethostname()}}", flush=True)
    subprocess.run([*line, *COMMAND], env=os.environ | ENVIRONMENT, check=True)


def main():
    ray.init()
    trainer = TorchTrainer(
        train,
        # Ray's own process group only counts the nodes; it lasts as long as the training.
        torch_config=TorchConfig(backend="gloo", timeout_s={collective}),
        scaling_config=ScalingConfig(
            num_workers=NODES,
            use_gpu=True,
            resources_per_worker={{"GPU": NODE_GPUS}},
            placement_strategy="STRICT_SPREAD",
            label_selector=[{{"ray.io/node-id": i}} for i in node_ids()] if HOSTS else None,
        ),
        run_config=RunConfig(name=NAME, failure_config=FailureConfig(max_failures={restarts})),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class RayTrain:
    terms: LaunchSettings
    name: str = "ray"
    version: str = f"Ray 2.60, {TORCH}"

    def write(self, setup: Setup, command: list[str]) -> WrittenConfig:
        check_launch(setup, self.terms, command)
        left_out = (
            "a time limit: Ray has none for a job",
            f"storage for checkpoints, and a shared folder for {ranks.RECORDS}",
        )
        name = job_name(setup, self.terms)
        variables = ranks.variables(setup, self.terms)
        environment = "".join(
            f"    {comment([v.why])}    {to_python(v.name)}: {to_python(v.value)},\n"
            for v in variables
        )
        opening = header(setup, self.version, left_out)
        driver = (
            PYTHON_OPENING
            + opening
            + _DRIVER.format(
                name=to_python(name),
                nodes=setup.nodes,
                node_gpus=setup.node_devices,
                port=self.terms.port,
                hosts=to_python(list(self.terms.hosts)),
                command=to_python(command),
                environment=environment,
                records=to_python(ranks.RECORDS),
                collective=self.terms.collective_seconds,
                restarts=RESTARTS,
            )
        )
        line = "ray job submit --working-dir . -- python ray_train.py"
        script = f"#!/bin/bash\n{opening}set -euo pipefail\n\nexec {line}\n"
        return WrittenConfig(
            files={"ray_train.py": driver, "ray_submit.sh": script}, left_out=left_out
        )
