"""Manifests as the projects' published types, no field lost; their jobs as Kubernetes' own objects.

JobSet and TrainJob are read by Kubeflow Trainer's models (which carry JobSet's); the pod template
inside, in a Job of `batch/v1`, by the schemas of a Kubernetes release, which refuse unknown fields.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.parsers.answers import Asked, answer, expect

RELEASE = "1.37"
KINDS = {"JobSet": "JobsetV1alpha2JobSet", "TrainJob": "TrainerV1alpha1TrainJob"}


def take(request: Asked) -> None:
    (file,) = Path(request.folder).iterdir()
    manifest = import_module("yaml").safe_load(file.read_text())
    kind = getattr(import_module("kubeflow_trainer_api.models"), KINDS[manifest["kind"]])
    kept = kind.from_dict(manifest).to_dict()
    lost = _lost(manifest, kept)
    expect(not lost, f"fields that the type does not have: {lost}")
    spec = manifest["spec"]
    if manifest["kind"] == "JobSet":
        (jobs,) = spec["replicatedJobs"]
        _check_job(jobs["template"]["spec"], request)
    else:
        _check_trainer(spec, request)


def _lost(given: Any, kept: Any, where: str = "") -> list[str]:
    """Paths that a round trip through the type drops."""
    if isinstance(given, dict):
        held = kept if isinstance(kept, dict) else {}
        missing = [f"{where}.{key}" for key in given if key not in held]
        below = [
            _lost(value, held[key], f"{where}.{key}") for key, value in given.items() if key in held
        ]
        return missing + [path for paths in below for path in paths]
    if isinstance(given, list):
        pairs = zip(given, kept, strict=True)
        return [
            path
            for given_item, kept_item in pairs
            for path in _lost(given_item, kept_item, f"{where}[]")
        ]
    return [] if given == kept else [where]


def _check_job(spec: dict[str, Any], request: Asked) -> None:
    expect(spec["completions"] == request.nodes, f"{spec['completions']} pods")
    (container,) = spec["template"]["spec"]["containers"]
    (gpus,) = container["resources"]["limits"].values()
    expect(int(gpus) * request.nodes == request.gpus, f"{gpus} GPUs a pod")
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec}
    _validate(job)


def _check_trainer(spec: dict[str, Any], request: Asked) -> None:
    """Check the patches applied to a pod as the runtime applies them."""
    trainer = spec["trainer"]
    count = trainer["numNodes"] * trainer["numProcPerNode"]
    expect(count == request.gpus, f"{count} processes")
    (patch,) = spec["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]
    (added,) = pod["spec"]["containers"]
    container = added | {
        "image": trainer["image"],
        "command": trainer["command"],
        "args": trainer["args"],
        "env": trainer["env"],
        "resources": trainer["resourcesPerNode"],
    }
    template = pod | {"spec": pod["spec"] | {"restartPolicy": "Never", "containers": [container]}}
    spec = {"template": template}
    _validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec})


def _validate(manifest: dict[str, Any]) -> None:
    import_module("kubernetes_validate").validate(manifest, RELEASE, strict=True)


if __name__ == "__main__":
    answer(take)
