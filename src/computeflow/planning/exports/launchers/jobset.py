"""A JobSet: one indexed job, one pod for every node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from computeflow.planning.exports.config_formats import Setup, WrittenConfig
from computeflow.planning.exports.launchers import pods, ranks
from computeflow.planning.exports.launchers.launch_settings import (
    TORCH,
    LaunchSettings,
    check_launch,
    header,
    job_name,
)

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
RESTARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSet:
    terms: LaunchSettings
    name: str = "jobset"
    version: str = f"JobSet v0.12.0 (jobset.x-k8s.io/v1alpha2), Kueue v0.19.2, {TORCH}"

    def write(self, setup: Setup, command: list[str]) -> WrittenConfig:
        check_launch(setup, self.terms, command)
        left_out = pods.left_out(setup, self.terms)
        name = job_name(setup, self.terms)
        manifest = {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": name, "labels": pods.labels(self.terms)},
            "spec": {
                "network": {"enableDNSHostnames": True, "subdomain": name},
                "failurePolicy": {"maxRestarts": RESTARTS},
                "replicatedJobs": [
                    {
                        "name": "node",
                        "replicas": 1,
                        "template": {"spec": self._job(setup, name, command)},
                    }
                ],
            },
        }
        opening = header(setup, self.version, left_out) + pods.why(setup, self.terms)
        return WrittenConfig(
            files={"jobset.yaml": pods.document(opening, manifest)}, left_out=left_out
        )

    def _job(self, setup: Setup, name: str, command: list[str]) -> dict[str, Any]:
        return {
            "parallelism": setup.nodes,
            "completions": setup.nodes,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "activeDeadlineSeconds": self.terms.limit_seconds,
            "template": {
                "metadata": {"annotations": pods.topology(setup, self.terms)},
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": self.terms.grace_seconds,
                    "containers": [self._container(setup, name, command)],
                    "volumes": [pods.SHARED_MEMORY],
                },
            },
        }

    def _container(self, setup: Setup, name: str, command: list[str]) -> dict[str, Any]:
        port = self.terms.port
        start = ranks.torchrun(
            setup, rank="$(NODE_RANK)", address=f"{name}-node-0-0.{name}", port=str(port)
        )
        index = {"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}}
        return {
            "name": "node",
            "image": self.terms.image,
            "command": [*start.split(), *pods.literal(command)],
            "env": [index, *pods.environment(setup, self.terms)],
            "ports": [{"containerPort": port}],
            "resources": pods.resources(setup),
            "securityContext": pods.RDMA,
            "volumeMounts": [pods.SHARED_MEMORY_MOUNT],
        }
