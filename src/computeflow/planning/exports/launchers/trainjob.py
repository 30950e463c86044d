"""A TrainJob of Kubeflow Trainer, on its `torch-distributed` runtime."""

from __future__ import annotations

from dataclasses import dataclass

from computeflow.planning.exports.config_formats import Setup, WrittenConfig
from computeflow.planning.exports.launchers import pods
from computeflow.planning.exports.launchers.launch_settings import (
    TORCH,
    LaunchSettings,
    check_launch,
    header,
    job_name,
)

RUNTIME = "torch-distributed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    terms: LaunchSettings
    name: str = "trainjob"
    version: str = (
        f"Kubeflow Trainer v2.3.0 (trainer.kubeflow.org/v1alpha1), Kueue v0.19.2, {TORCH}"
    )

    def write(self, setup: Setup, command: list[str]) -> WrittenConfig:
        check_launch(setup, self.terms, command)
        left_out = pods.left_out(setup, self.terms)
        terms = self.terms
        manifest = {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": job_name(setup, terms), "labels": pods.labels(terms)},
            "spec": {
                "runtimeRef": {"name": RUNTIME, "kind": "ClusterTrainingRuntime"},
                "activeDeadlineSeconds": terms.limit_seconds,
                "trainer": {
                    "image": terms.image,
                    # The runtime gives torchrun its nodes, ranks and rendezvous (PET_* variables).
                    "command": ["torchrun", "--max-restarts=0", "--no-python"],
                    "args": pods.literal(command),
                    "env": pods.environment(setup, terms),
                    "numNodes": setup.nodes,
                    "numProcPerNode": setup.node_devices,
                    "resourcesPerNode": pods.resources(setup),
                },
                "runtimePatches": [self._patch(setup)],
            },
        }
        opening = header(setup, self.version, left_out) + pods.why(setup, terms)
        return WrittenConfig(
            files={"trainjob.yaml": pods.document(opening, manifest)}, left_out=left_out
        )

    def _patch(self, setup: Setup) -> dict[str, object]:
        """What a trainer has no field for: annotations, shared memory, the right to pin memory."""
        pod = {
            "metadata": {"annotations": pods.topology(setup, self.terms)},
            "spec": {
                "terminationGracePeriodSeconds": self.terms.grace_seconds,
                "volumes": [pods.SHARED_MEMORY],
                "containers": [
                    {
                        "name": "node",
                        "volumeMounts": [pods.SHARED_MEMORY_MOUNT],
                        "securityContext": pods.RDMA,
                    }
                ],
            },
        }
        job = {"name": "node", "template": {"spec": {"template": pod}}}
        return {
            "manager": "computeflow/launch",
            "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
        }
