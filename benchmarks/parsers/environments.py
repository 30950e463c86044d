"""Virtual environments for the projects' parsers, made once in a cache folder and kept.

Torch is always installed first and by version, so that nothing pulls a larger build after it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("COMPUTEFLOW_PROOFS", Path.home() / ".cache" / "computeflow-proofs"))
TORCH = ("torch==2.13.0", "setuptools", "wheel", "numpy")
TRITON = "triton==3.9.0"
QUIET = ("--quiet", "--disable-pip-version-check")


class MissingError(RuntimeError):
    """A requirement of an environment is missing on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    name: str
    steps: tuple[tuple[str, ...], ...]
    """Arguments of successive `pip install` calls."""
    python: str = f"{sys.version_info.major}.{sys.version_info.minor}"
    unpacked: tuple[str, ...] = ()
    """Pure-Python wheels for 3.12, unpacked into an older Python's environment."""

    @property
    def folder(self) -> Path:
        return CACHE / self.name


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment(name="torchtitan", steps=(TORCH, ("torchtitan==0.2.2", TRITON))),
        Environment(
            name="torchtitan-0.1",
            steps=(
                TORCH,
                ("torchtitan==0.1.0", "tyro==0.9.26", "torchdata", "tensorboard", TRITON),
            ),
        ),
        Environment(name="deepspeed", steps=(TORCH, ("deepspeed==0.19.8", "ninja"))),
        Environment(
            name="huggingface",
            steps=(
                TORCH,
                (
                    "transformers==5.22.2",
                    "accelerate==1.15.0",
                    "deepspeed==0.19.8",
                    "torchao==0.18.0",
                    "bitsandbytes",
                ),
            ),
        ),
        Environment(
            name="megatron",
            steps=(
                TORCH,
                (
                    TRITON,
                    "packaging",
                    "omegaconf",
                    "pyyaml",
                    "einops",
                    "psutil",
                    "typing_extensions",
                    "transformers==5.12.1",
                    "hydra-core==1.3.2",
                    "datasets",
                    "tensorboard",
                    "multi-storage-client",
                    "rich",
                    "regex",
                    "six",
                    "tqdm",
                ),
            ),
            unpacked=("megatron-core==0.19.2", "megatron-bridge==0.6.0"),
        ),
        Environment(
            name="nemo",
            steps=(
                TORCH,
                ("--no-deps", "nemo_toolkit==2.4.0", "megatron-core==0.13.1"),
                (
                    "nemo_run==0.5.0",
                    "lightning==2.4.0",
                    "pytorch-lightning==2.4.0",
                    "hydra-core==1.3.2",
                    "transformers==4.53.3",
                    "huggingface_hub==0.36.2",
                    "datasets==3.6.0",
                    "numpy==2.2.6",
                    "pandas==2.3.3",
                    "nvidia-resiliency-ext==0.4.1",
                    "peft",
                    "webdataset",
                    "lhotse",
                    "onnx",
                    "numba",
                    "einops",
                    "sentencepiece",
                    "tiktoken",
                    "tensorboard",
                    "tensorstore",
                    "wrapt",
                    "ruamel.yaml",
                    "text-unidecode",
                    "braceexpand",
                    "jiwer",
                    "pyannote.core==5.0.0",
                    "ijson",
                    "matplotlib",
                    "scikit-learn",
                    "rouge_score",
                    "sacrebleu",
                    "opencc",
                    "faiss-cpu",
                    "jieba",
                    "pangu==4.0.6.1",
                    "wget",
                    "python-dateutil",
                    "torchmetrics",
                ),
            ),
        ),
        Environment(
            name="maxtext",
            python="3.12",
            steps=(
                ("--no-deps", "maxtext==0.2.4"),
                (
                    "jax==0.10.2",
                    "jaxlib==0.10.2",
                    "omegaconf",
                    "pydantic",
                    "absl-py",
                    "pyyaml",
                    "etils",
                    "flax",
                    "optax",
                    "orbax-checkpoint",
                    "packaging",
                    "pathwaysutils",
                    "jinja2",
                ),
            ),
        ),
        Environment(
            name="kubernetes",
            steps=(("kubernetes-validate==1.37.0", "kubeflow-trainer-api==2.3.0", "pyyaml"),),
        ),
        Environment(name="ray", steps=(TORCH, ("ray[train]==2.60.0",))),
    )
}


def interpreter(name: str) -> Path:
    """The interpreter of an environment, which is made if missing or changed."""
    if not name:
        return Path(sys.executable)
    environment = ENVIRONMENTS[name]
    python = environment.folder / "bin" / "python"
    ready = environment.folder / "ready"
    if not ready.exists() or ready.read_text() != repr(environment):
        print(f"  making the environment of {name}", flush=True)
        _make(environment, python)
        ready.write_text(repr(environment))
    return python


def _make(environment: Environment, python: Path) -> None:
    base = _find_python(environment.python)
    _run([base, "-m", "venv", "--clear", str(environment.folder)])
    for step in environment.steps:
        _run([str(python), "-m", "pip", "install", *QUIET, *step])
    for wheel in environment.unpacked:
        _unpack(wheel, python, environment)


def _find_python(version: str) -> str:
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    kept = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}")
    for candidate in (*map(str, kept), shutil.which(f"python{version}")):
        if (
            candidate
            and not subprocess.run([candidate, "--version"], capture_output=True).returncode
        ):
            return candidate
    raise MissingError(f"Python {version} is not there")


def _unpack(wheel: str, python: Path, environment: Environment) -> None:
    target = environment.folder / "wheels"
    platforms = [f"--platform={name}_x86_64" for name in ("manylinux_2_28", "manylinux2014")]
    _run(
        [
            str(python),
            "-m",
            "pip",
            "download",
            *QUIET,
            "--no-deps",
            "--only-binary=:all:",
            "--python-version=3.12",
            *platforms,
            f"--dest={target}",
            wheel,
        ]
    )
    (packages,) = environment.folder.glob("lib/python*/site-packages")
    for file in target.glob("*.whl"):
        with zipfile.ZipFile(file) as opened:
            opened.extractall(packages)
        file.unlink()


def _run(line: list[str]) -> None:
    done = subprocess.run(line, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        last = [text for text in done.stderr.splitlines() if "WARNING" not in text][-3:]
        raise MissingError(f"{' '.join(line[1:4])}: {' '.join(last)[:300]}")
