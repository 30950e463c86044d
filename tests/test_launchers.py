"""Launch files: they parse, start as many ranks as planned, and pass the command on word for word."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.cluster import find_cluster
from computeflow.errors import InputError, UnavailableError
from computeflow.planning.exports.config_formats import Setup
from computeflow.planning.exports.launchers import LAUNCHERS, LaunchSettings, launchers
from computeflow.planning.exports.launchers.ranks import variables
from computeflow.planning.exports.launchers.slurm import duration
from computeflow.prediction.stack import STACKS
from computeflow.workload import Job, Layout

FACTS = load_catalog()
JOB = Job(model=FACTS.models["llama-3.1-8b"], global_batch=1024, seq_len=4096)
TRAIN = ["python", "train.py", "--lr", "3e-4"]
SHELL = {"slurm": "job.sbatch", "torchrun": "torchrun.sh", "mpirun": "mpirun.sh"}
HOSTILE = [
    "train.py", "it's", '"two"', "$(touch pwned)", "`id`", "a\nb", "", "-x", "$$", "$(NODE_RANK)", "*",
    "é\x7f\x85\u2028😀", "\\", "#SBATCH --nodes=99", "EOF", "{x}",
]  # fmt: skip
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=12).map(lambda t: f"m {t}")


def a_setup(cluster: str = "h100-sxm:32", *, stack: str = "megatron", **sizes: Any) -> Setup:
    machine = find_cluster(cluster, FACTS)
    layout = Layout(gpus=machine.gpus, **sizes)
    return Setup(job=JOB, cluster=machine, layout=layout, stack=STACKS[stack])


@st.composite
def setups(draw: st.DrawFn) -> tuple[Setup, LaunchSettings]:
    device = draw(st.sampled_from(["h100-sxm", "mi300x", "gb200", "a100-80-pcie"]))
    gpus = draw(st.sampled_from([1, 2, 4, 8, 16, 64, 144]))
    setup = a_setup(f"{device}:{gpus}", tp=draw(st.sampled_from([1, gpus])))
    model = replace(JOB.model, name=draw(NAMES))
    hosts = tuple(f"node-{n}.rack" for n in range(setup.nodes)) if draw(st.booleans()) else ()
    terms = LaunchSettings(
        name=draw(st.none() | NAMES),
        hosts=hosts,
        queue=draw(st.sampled_from([None, "big"])),
        topology=draw(st.sampled_from([None, "example.com/block"])),
        topology_required=draw(st.booleans()),
        domain_topology=draw(st.sampled_from([None, "nvidia.com/gpu.clique"])),
    )
    return replace(setup, job=replace(JOB, model=model)), terms


commands = st.lists(st.sampled_from(HOSTILE) | WORDS, max_size=6).map(
    lambda rest: ["python", *rest]
)


def files(
    setup: Setup, terms: LaunchSettings, launcher: str, command: list[str]
) -> Mapping[str, str]:
    return launchers(terms)[launcher].write(setup, command).files


def manifest(
    setup: Setup, terms: LaunchSettings, launcher: str, command: list[str]
) -> dict[str, Any]:
    text = files(setup, terms, launcher, command)[f"{launcher}.yaml"]
    found: dict[str, Any] = json.loads(re.sub(r"\A(#.*\n)+", "", text))
    return found


@settings(max_examples=40, deadline=None)
@given(setups(), commands)
def test_every_shell_script_parses(case: tuple[Setup, LaunchSettings], command: list[str]) -> None:
    texts = [files(*case, name, command)[file] for name, file in SHELL.items()]
    texts.append(files(*case, "ray", command)["ray_submit.sh"])
    for text in texts:
        subprocess.run(["bash", "-n"], input=text.encode(), check=True)


STUBS = {
    "torchrun": 'while [ "$1" != --no-python ]; do shift; done; shift\nprintf "%s\\0" "$@" > "$TOLD"',
    "srun": 'while [ "$1" != bash ]; do shift; done\nSLURM_PROCID=0 exec "$@"',
    "mpirun": 'while [ "$1" != bash ]; do shift; done\nOMPI_COMM_WORLD_RANK=0 exec "$@"',
    "scontrol": "echo first; echo second",
    "python": 'printf "%s\\0" python "$@" > "$TOLD"',
}


@pytest.fixture
def stubs(tmp_path: Path) -> dict[str, str]:
    """Stub programs that print their arguments."""
    for name, body in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    return {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "TOLD": str(tmp_path / "told"),
        "NODE_RANK": "0",
        "NODE_NAME": "node-0.rack",
        "MASTER_ADDR": "here",
        "SLURM_JOB_NODELIST": "x",
    }


@pytest.mark.parametrize("launcher", SHELL)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=setups(), command=commands)
def test_the_command_arrives_word_for_word(
    stubs: dict[str, str],
    tmp_path: Path,
    launcher: str,
    case: tuple[Setup, LaunchSettings],
    command: list[str],
) -> None:
    text = files(*case, launcher, command)[SHELL[launcher]]
    subprocess.run(
        ["bash"], input=text.encode(), env=stubs, cwd=tmp_path, check=True, capture_output=True
    )
    assert Path(stubs["TOLD"]).read_bytes().decode().split("\0")[:-1] == command
    assert not (tmp_path / "pwned").exists()


@given(setups(), commands)
def test_only_our_options_are_read_from_the_batch_script(
    case: tuple[Setup, LaunchSettings], command: list[str]
) -> None:
    """sbatch reads options up to the first line that is not a comment."""
    lines = files(*case, "slurm", command)["job.sbatch"].split("\n")
    head = lines[: next(n for n, line in enumerate(lines) if line and not line.startswith("#"))]
    options = dict(o.split()[1].partition("=")[::2] for o in head if o.startswith("#SBATCH"))
    assert int(options["--nodes"]) == case[0].nodes
    assert options["--gres"] == f"gpu:{case[0].node_devices}"
    assert "--exclusive" in options


@settings(deadline=None)
@given(setups(), commands)
def test_a_jobset_has_a_gpu_for_every_rank(
    case: tuple[Setup, LaunchSettings], command: list[str]
) -> None:
    setup, terms = case
    found = manifest(setup, terms, "jobset", command)
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (jobs,) = found["spec"]["replicatedJobs"]
    spec = jobs["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    (gpus,) = container["resources"]["limits"].values()
    assert jobs["replicas"] * spec["parallelism"] * int(gpus) == setup.layout.gpus
    assert spec["completions"] == spec["parallelism"]
    assert expand(container["command"])[-len(command) :] == command
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", found["metadata"]["name"])
    assert len(f"{found['metadata']['name']}-node-0-{setup.nodes}") <= 63


@settings(deadline=None)
@given(setups(), commands)
def test_a_trainjob_has_a_gpu_for_every_rank(
    case: tuple[Setup, LaunchSettings], command: list[str]
) -> None:
    setup, terms = case
    found = manifest(setup, terms, "trainjob", command)
    assert (found["apiVersion"], found["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    trainer = found["spec"]["trainer"]
    (gpus,) = trainer["resourcesPerNode"]["limits"].values()
    assert trainer["numNodes"] * int(gpus) == setup.layout.gpus
    assert trainer["numProcPerNode"] == int(gpus)
    assert expand(trainer["args"]) == command
    assert found["spec"]["runtimeRef"]["name"]
    assert not [v for v in trainer["env"] if v["name"].startswith("PET_")], "the runtime's own"


def expand(words: list[str]) -> list[str]:
    """Expand variables of a container as Kubernetes does; NODE_RANK is one."""
    rules = {"$$": "$", "$(NODE_RANK)": "7"}
    return [re.sub(r"\$\$|\$\(NODE_RANK\)", lambda m: rules[m[0]], word) for word in words]


@settings(max_examples=40, deadline=None)
@given(setups(), commands)
def test_manifests_are_the_same_as_yaml(
    case: tuple[Setup, LaunchSettings], command: list[str]
) -> None:
    yaml = pytest.importorskip("yaml")
    for launcher in ("jobset", "trainjob"):
        text = files(*case, launcher, command)[f"{launcher}.yaml"]
        assert yaml.safe_load(text) == manifest(*case, launcher, command)


@settings(max_examples=40, deadline=None)
@given(setups(), commands)
def test_the_ray_driver_is_python_with_the_command_in_it(
    case: tuple[Setup, LaunchSettings], command: list[str]
) -> None:
    tree = ast.parse(files(*case, "ray", command)["ray_train.py"])
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert values["COMMAND"] == command
    assert values["NODES"] * values["NODE_GPUS"] == case[0].layout.gpus


def kueue(cluster: str, **terms: Any) -> dict[str, str]:
    found = manifest(a_setup(cluster), LaunchSettings(**terms), "jobset", TRAIN)
    pod = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    annotations: dict[str, str] = pod["metadata"]["annotations"]
    patch = manifest(a_setup(cluster), LaunchSettings(**terms), "trainjob", TRAIN)["spec"][
        "runtimePatches"
    ][0]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert job["template"]["spec"]["template"]["metadata"]["annotations"] == annotations
    return annotations


def test_kueue_is_told_the_topology() -> None:
    assert kueue("h100-sxm:32") == {}
    block = "example.com/block"
    assert kueue("h100-sxm:32", topology=block) == {
        "kueue.x-k8s.io/podset-preferred-topology": block
    }
    assert kueue("h100-sxm:32", topology=block, topology_required=True) == {
        "kueue.x-k8s.io/podset-required-topology": block
    }


def test_kueue_fills_nvlink_domains() -> None:
    setup = a_setup("gb200:144")
    found = kueue("gb200:144", domain_topology="nvidia.com/gpu.clique")
    size = int(found["kueue.x-k8s.io/podset-slice-size"])
    assert size * setup.node_devices == 72
    assert kueue("h100-sxm:32", domain_topology="nvidia.com/gpu.clique") == {}, "a domain is a node"


def test_nvlink_between_nodes_must_not_fall_back() -> None:
    names = {v.name for v in variables(a_setup("gb200:144"), LaunchSettings())}
    assert "NCCL_MNNVL_ENABLE" in names
    assert "NCCL_MNNVL_ENABLE" not in {v.name for v in variables(a_setup(), LaunchSettings())}


def test_megatron_alone_orders_its_launches() -> None:
    def ordered(**how: Any) -> bool:
        found = variables(a_setup(**how), LaunchSettings())
        return "CUDA_DEVICE_MAX_CONNECTIONS" in {v.name for v in found}

    assert ordered(tp=8)
    assert not ordered(tp=1)
    assert not ordered(tp=8, sharding="fsdp")
    assert not ordered(tp=8, stack="torchtitan")


def test_every_file_says_what_it_was_checked_against() -> None:
    for launcher in LAUNCHERS.values():
        written = launcher.write(a_setup(), TRAIN)
        for name, text in written.files.items():
            assert launcher.version in text, name
            assert all(" ".join(line.split()) in text for line in written.left_out), name


def test_every_variable_says_why() -> None:
    lines = LAUNCHERS["slurm"].write(a_setup(tp=8), TRAIN).files["job.sbatch"].splitlines()
    for variable in variables(a_setup(tp=8), LaunchSettings()):
        place = lines.index(f"export {variable.name}={variable.value}")
        assert lines[place - 1] == f"# {variable.why}"


def test_timeouts_nest() -> None:
    terms = LaunchSettings(limit_seconds=3600, grace_seconds=120, collective_seconds=900)
    found = {v.name: int(v.value) for v in variables(a_setup(), terms) if v.value.isdecimal()}
    assert found["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] <= 900
    assert found["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] < 120
    text = files(a_setup(), terms, "slurm", TRAIN)["job.sbatch"]
    assert "--time=0-01:00:00\n" in text
    assert "--signal=TERM@120\n" in text
    with pytest.raises(InputError, match="the limit must be longer"):
        LaunchSettings(limit_seconds=600)


def test_slurm_writes_durations_with_days() -> None:
    assert duration(90061) == "1-01:01:01"


def test_a_placement_orders_tasks_and_ranks() -> None:
    terms = LaunchSettings(hosts=("n3", "n1", "n2", "n0"))
    batch = files(a_setup(), terms, "slurm", TRAIN)["job.sbatch"]
    assert "#SBATCH --nodelist=n3,n1,n2,n0\n" in batch
    assert "--distribution=arbitrary --ntasks=4 " in batch
    assert "export MASTER_ADDR=n3\n" in batch
    assert "--host n3:8,n1:8,n2:8,n0:8 " in files(a_setup(), terms, "mpirun", TRAIN)["mpirun.sh"]
    assert "  n1) NODE_RANK=1 ;;\n" in files(a_setup(), terms, "torchrun", TRAIN)["torchrun.sh"]


@pytest.mark.parametrize(
    ("terms", "match"),
    [
        ({"hosts": ("a; rm -rf /",)}, "host"),
        ({"hosts": ("a", "a")}, "twice"),
        ({"partition": "x\n#SBATCH --uid=0"}, "partition"),
        ({"account": "$(id)"}, "account"),
        ({"topology": "no label"}, "topology"),
        ({"port": 80}, "port"),
        ({"grace_seconds": 0}, "one or more"),
    ],
)
def test_terms_that_no_scheduler_takes_are_refused(terms: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        LaunchSettings(**terms)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_cannot_start_is_refused(launcher: str) -> None:
    write = LAUNCHERS[launcher].write
    for command in ([], [""], ["--help"], ["python", "a\0b"], ["python", "\udcff"]):
        with pytest.raises(InputError, match="command"):
            write(a_setup(), command)
    with pytest.raises(InputError, match="do not fill nodes of 8"):
        write(a_setup("h100-sxm:12"), TRAIN)
    with pytest.raises(UnavailableError, match="NVIDIA and AMD"):
        write(a_setup("tpu-v5p:16"), TRAIN)
    with pytest.raises(InputError, match="1 hosts for 4 nodes"):
        launchers(LaunchSettings(hosts=("a",)))[launcher].write(a_setup(), TRAIN)


STEP = """
import os, sys
import torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.full((2, 4), float(rank))).sum().backward()
gradient = model.module.weight.grad[0, 0].item()
name = os.environ.get("NODE_NAME", "one")
line = f"{rank} {torch.distributed.get_world_size()} {name} {gradient} {sys.argv[1]!r}"
os.write(1, f"{line}\\n".encode())  # at once: ranks share the stream
torch.distributed.barrier()
# At once: gloo's threads may abort a process that takes its objects down (torch 2.13).
os._exit(0)
"""


def launch(folder: Path, setup: Setup, terms: LaunchSettings, nodes: list[str]) -> list[str]:
    """Run torchrun.sh as on every node; returns what ranks print, in their order."""
    (folder / "step.py").write_text(STEP)
    command = [sys.executable, "step.py", "it's $(id)"]
    (folder / "torchrun.sh").write_text(files(setup, terms, "torchrun", command)["torchrun.sh"])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    running = [
        subprocess.Popen(
            ["bash", "torchrun.sh"],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PATH": path, "NODE_NAME": node, "OMP_NUM_THREADS": "1"},
        )
        for node in nodes
    ]
    try:
        lines = [line for one in running for line in one.communicate(timeout=300)[0].splitlines()]
    finally:
        for one in running:
            one.kill()
    assert [one.returncode for one in running] == [0] * len(nodes)
    return sorted(lines)


@pytest.mark.live
def test_torchrun_really_trains_on_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if shutil.which("torchrun", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("needs torchrun: pip install 'computeflow[lab]'")
    # Rank 0 has the gradient 0, rank 1 has 2: both end with the mean.
    assert launch(tmp_path, a_setup("h100-sxm:2"), LaunchSettings(), ["one"]) == [
        f"{rank} 2 one 1.0 {chr(34)}it's $(id){chr(34)}" for rank in (0, 1)
    ]


@pytest.mark.live
def test_torchrun_keeps_the_order_of_nodes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    setup = a_setup("h100-sxm:2")
    tier = setup.cluster.tiers[0]
    tiers = (replace(tier, devices=1), replace(tier, devices=2))
    pair = replace(setup.cluster, tiers=tiers, node_devices=1)
    terms = LaunchSettings(hosts=("localhost", "another"), port=port)
    lines = launch(tmp_path, replace(setup, cluster=pair), terms, ["another", "localhost"])
    assert [line.split()[:3] for line in lines] == [["0", "2", "localhost"], ["1", "2", "another"]]


def test_a_rack_of_trays_is_started_tray_by_tray() -> None:
    cluster = find_cluster("gb200:72", load_catalog())
    job = Job(model=load_catalog().models["llama-3.1-8b"], global_batch=72, seq_len=8192)
    setup = Setup(job=job, cluster=cluster, layout=Layout(gpus=72), stack=STACKS["megatron"])
    assert (setup.node_devices, setup.nodes) == (4, 18)
