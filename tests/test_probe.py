"""The probe: graded figures, planted degradations found, a healthy machine passed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install torch")

import torch

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.lab.probe.collectives import OPERATIONS, CollectiveTiming, fit
from computeflow.lab.probe.dataset import DatasetProbe, advise
from computeflow.lab.probe.expected_figures import expected_range
from computeflow.lab.probe.grading import ProbeFigure, against_baseline, outliers
from computeflow.lab.probe.host_cpus import cgroup_quota
from computeflow.lab.probe.profiler_cost import (
    HostStepTiming,
    ProfilerCost,
    launch_call_seconds,
    profiler_costs,
)
from computeflow.lab.probe.result import Probe, ProbedRanks
from computeflow.views.probes import probe_tables

PROGRAM = [
    sys.executable,
    "-m",
    "computeflow.cli",
    "probe",
    "--quick",
    "--quiet",
    "-o",
    "json",
    "--device",
    "cpu",
]
CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
IO_GROUPS = Path("/sys/fs/cgroup/blkio")


def probe(*flags: str, group: Path | None = None, alone: bool = False) -> dict[str, Any]:
    """A real probe: here, or in a process of its own, in a control group if one is given."""
    if group is None and not alone:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            code = run([*PROGRAM[3:], *flags])
        text = shown.getvalue()
    else:
        enter = (f"echo $$ > {group}/cgroup.procs; " if group else "") + 'exec "$@"'
        done = subprocess.run(
            ["bash", "-c", enter, "-", *PROGRAM, *flags],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        code, text = done.returncode, done.stdout
        assert code in (0, 3), done.stderr
    found: dict[str, Any] = json.loads(text)
    found["exit_code"] = code
    return found


def tool(name: str, package: str) -> str:
    """The path of a system program, which may be outside a user's PATH."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"{name} is missing: apt-get install {package}")
    return path


def bad(found: dict[str, Any]) -> set[str]:
    reasons = [reason for reasons in found["bad_nodes"].values() for reason in reasons]
    return {reason.split(" is ")[0] for reason in reasons}


def root_only(allowed: bool, what: str) -> None:
    if os.geteuid() != 0 or not allowed:
        pytest.skip(f"{what} needs root and a writable control group or network name space")


@pytest.fixture
def cpu_group() -> Iterator[Path]:
    root_only(os.access(CPU_GROUPS / "cpu.cfs_quota_us", os.W_OK), "a CPU quota")
    yield from _group(CPU_GROUPS)


@pytest.fixture
def io_group() -> Iterator[Path]:
    root_only(os.access(IO_GROUPS, os.W_OK), "a slow disk")
    yield from _group(IO_GROUPS)


def _group(root: Path) -> Iterator[Path]:
    group = root / f"computeflow-{os.getpid()}"
    group.mkdir()
    yield group
    for pid in (group / "cgroup.procs").read_text().split():
        (root / "cgroup.procs").write_text(pid)
    group.rmdir()


@pytest.mark.live
def test_a_healthy_machine_passes(tmp_path: Path) -> None:
    found = probe("--storage", str(tmp_path), "--accept")
    assert bad(found) <= {"host steal"}  # a shared host may be busy; that is its fault, and said
    names = {item["name"] for item in found["probes"][0]["items"]}
    assert names >= {"host cpus", "matmul fp32", "memory copy", "launch", "storage read"}
    assert names >= {"profiler step", "profiler operator"}
    assert "collectives" in found["probes"][0]["unavailable"]


@pytest.mark.live
def test_a_cpu_quota_is_found(cpu_group: Path, tmp_path: Path) -> None:
    (cpu_group / "cpu.cfs_quota_us").write_text("50000")
    found = probe("--storage", str(tmp_path), "--accept", group=cpu_group)
    assert "host quota" in bad(found)
    assert found["exit_code"] == 3
    host = found["probes"][0]["host"]
    assert host["quota_cpus"] == pytest.approx(0.5)
    assert host["share"]["delivered"] < 0.9  # what other work took is subtracted: more beside tests


@pytest.fixture
def loop_disk(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """An ext4 file system on a loop device, and the device's number."""
    image, folder = tmp_path / "disk.img", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(256 << 20)
    losetup, format_disk = tool("losetup", "util-linux"), tool("mkfs.ext4", "e2fsprogs")
    made = subprocess.run(
        [losetup, "-f", "--show", str(image)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip("no loop device: needs root")
    device = made.stdout.strip()
    subprocess.run([format_disk, "-q", device], check=True)
    subprocess.run(["mount", device, str(folder)], check=True)
    number = Path(device).stat().st_rdev
    yield folder, f"{os.major(number)}:{os.minor(number)}"
    subprocess.run(["umount", str(folder)], check=True)
    subprocess.run([losetup, "-d", device], check=True)


@pytest.mark.live
def test_a_slow_disk_is_found_against_an_earlier_probe(
    loop_disk: tuple[Path, str], io_group: Path, tmp_path: Path
) -> None:
    folder, device = loop_disk
    healthy = probe("--storage", str(folder))
    (tmp_path / "healthy.json").write_text(json.dumps(healthy))
    against = [
        "--storage",
        str(folder),
        "--against",
        str(tmp_path / "healthy.json"),
        "--slack",
        "0.9",
        "--accept",
    ]
    # Others use the disk too: one probe of three that they leave alone is enough.
    assert any("storage read" not in bad(probe(*against)) for _ in range(3))
    (io_group / "blkio.throttle.read_bps_device").write_text(f"{device} {16 << 20}")
    slow = probe(*against, group=io_group)
    assert "storage read" in bad(slow)
    assert slow["exit_code"] == 3


@pytest.fixture
def two_hosts() -> Iterator[tuple[str, str]]:
    """Two network name spaces joined by one link; their names."""
    one, two = f"cf{os.getpid() % 10000}a", f"cf{os.getpid() % 10000}b"
    ip = tool("ip", "iproute2")
    tried = subprocess.run([ip, "netns", "add", one], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("no network name spaces: needs root")
    steps = [
        f"{ip} netns add {two}",
        f"{ip} link add {one} type veth peer name {two}",
        f"{ip} link set {one} netns {one}",
        f"{ip} link set {two} netns {two}",
        f"{ip} -n {one} addr add 10.231.0.1/24 dev {one}",
        f"{ip} -n {two} addr add 10.231.0.2/24 dev {two}",
        *(f"{ip} -n {name} link set {dev} up" for name in (one, two) for dev in (name, "lo")),
    ]
    for step in steps:
        subprocess.run(step.split(), check=True)
    yield one, two
    for name in (one, two):
        subprocess.run([ip, "netns", "del", name], check=True)


def probe_both(hosts: tuple[str, str], folder: Path, *flags: str) -> dict[str, Any]:
    """One rank on each host over gloo; the answer of rank 0."""
    running = []
    for rank, name in enumerate(hosts):
        environment = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "10.231.0.1",
            "MASTER_PORT": "29533",
            "GLOO_SOCKET_IFNAME": name,
        }
        command = [
            tool("ip", "iproute2"),
            "netns",
            "exec",
            name,
            *PROGRAM,
            "--storage",
            str(folder),
            *flags,
        ]
        running.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
            )
        )
    answers = [process.communicate(timeout=300) for process in running]
    assert running[0].returncode in (0, 3), answers[0][1]
    found: dict[str, Any] = json.loads(answers[0][0])
    return found


@pytest.mark.live
def test_a_slow_link_is_found_against_an_earlier_probe(
    two_hosts: tuple[str, str], tmp_path: Path
) -> None:
    healthy = probe_both(two_hosts, tmp_path)
    assert len(healthy["probes"]) == 2
    (tmp_path / "healthy.json").write_text(json.dumps(healthy))
    ip, tc = tool("ip", "iproute2"), tool("tc", "iproute2")
    limit = "tbf rate 40mbit burst 64kb latency 200ms"
    for name in two_hosts:
        shape = f"{ip} netns exec {name} {tc} qdisc add dev {name} root {limit}"
        subprocess.run(shape.split(), check=True)
    slow = probe_both(
        two_hosts, tmp_path, "--against", str(tmp_path / "healthy.json"), "--slack", "0.8"
    )
    assert bad(slow) >= {f"{name} x2" for name in OPERATIONS}


@pytest.mark.live
def test_tasks_of_srun_find_each_other(tmp_path: Path) -> None:
    """The environment that srun sets, without Slurm itself."""
    running = []
    for rank in range(2):
        environment = os.environ | {
            "SLURM_PROCID": str(rank),
            "SLURM_NTASKS": "2",
            "SLURM_LOCALID": str(rank),
            "SLURM_STEP_NODELIST": "localhost",
            "MASTER_PORT": "29535",
        }
        running.append(
            subprocess.Popen(
                [*PROGRAM, "--storage", str(tmp_path)],
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
    answers = [process.communicate(timeout=240)[0] for process in running]
    assert [p["rank"] for p in json.loads(answers[0])["probes"]] == [0, 1]
    assert answers[1] == ""


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu[03-07,09],login1", "gpu03"), ("node7", "node7"), ("a1,b2", "a1"), ("n[1-4]", "n1")],
)
def test_the_first_host_of_a_slurm_list_is_the_master(nodes: str, first: str) -> None:
    from computeflow.lab.probe.run_probe import first_host

    assert first_host(nodes) == first


def test_an_expectation_comes_from_the_catalogs_row() -> None:
    device = load_catalog().accelerators["h200-sxm"]
    good = expected_range(ProbeFigure(name="matmul bf16", value=665e12, unit="FLOP/s"), device)
    assert (good.verdict, good.of_peak) == ("normal", 989e12)
    throttled = expected_range(ProbeFigure(name="matmul bf16", value=500e12, unit="FLOP/s"), device)
    assert throttled.bad
    assert (
        expected_range(ProbeFigure(name="launch", value=1e-5, unit="s"), device).verdict
        == "unknown"
    )


def test_better_than_expected_is_not_bad() -> None:
    item = ProbeFigure(name="x", value=2.0, unit="B/s")
    fast, slow = (
        against_baseline([item], {"x": 1.0}, 0.2),
        against_baseline([item], {"x": 4.0}, 0.2),
    )
    assert (fast[0].verdict, fast[0].bad) == ("high", False)
    assert (slow[0].verdict, slow[0].bad) == ("low", True)


COST = ProfilerCost(
    plain=HostStepTiming(seconds=2e-3, high_seconds=2.1e-3),
    profiled=HostStepTiming(seconds=3e-3, high_seconds=3.4e-3),
    operators=1000,
    launches=150,
    launch_call_seconds=6e-6,
)


def test_the_profilers_cost_is_per_step_and_per_operator() -> None:
    assert COST.ratio == pytest.approx(1.5)
    assert COST.added_operator_seconds == pytest.approx(1e-6)


def test_a_baseline_without_the_profilers_cost_leaves_it_unknown() -> None:
    items = [ProbeFigure(name="profiler step", value=1.5, unit="ratio", better="less")]
    (old,) = against_baseline(items, {"launch": 5e-6}, 0.25)
    (slower,) = against_baseline(items, {"profiler step": 1.1}, 0.25)
    assert (old.verdict, slower.bad) == ("unknown", True)


def test_launch_calls_are_those_of_any_runtime() -> None:
    names = ["aten::mm", "cudaLaunchKernel", "cuLaunchKernelEx", "hipLaunchKernel", "cudaMalloc"]
    took = SimpleNamespace(elapsed_us=lambda: 6.0)
    events = [SimpleNamespace(name=name, time_range=took) for name in names]
    assert launch_call_seconds(events) == pytest.approx([6e-6] * 3)


def test_a_ratio_and_a_cost_of_nothing_are_shown() -> None:
    items = (
        ProbeFigure(name="profiler step", value=1.5, unit="ratio", spread=0.03),
        ProbeFigure(name="profiler operator", value=0.0, unit="s", spread=1e-7),
    )
    machine = Probe(
        schema="computeflow.probe/1",
        environment={"torch": "2.6.0"},
        node="node1",
        rank=0,
        world=1,
        repeats=2,
        items=items,
        measurements=(),
    )
    (table,) = probe_tables(ProbedRanks(probes=(machine,), outliers=()))
    assert [row[:3] for row in table.rows] == [
        ("profiler step", "1.50x", "±2.0 %"),
        ("profiler operator", "0 s", "-"),
    ]


@pytest.mark.live
def test_the_profilers_cost_is_measured_in_every_pass() -> None:
    threads = torch.get_num_threads()
    costs = profiler_costs(torch.device("cpu"), passes=2)
    assert len(costs) == 2
    for cost in costs:
        assert 0 < cost.plain.seconds <= cost.plain.high_seconds
        assert 0 < cost.profiled.seconds <= cost.profiled.high_seconds
        assert cost.operators > 500
        assert (cost.launches, cost.launch_call_seconds) == (0, None)
    assert torch.get_num_threads() == threads


@pytest.mark.live
def test_kineto_says_nothing_while_the_profilers_cost_is_measured() -> None:
    """In a process of its own, as `probe` runs: Kineto reads its log level once, at its first use."""
    code = (
        "import torch; from computeflow.lab.probe.profiler_cost import profiler_costs; "
        "print(len(profiler_costs(torch.device('cpu'), passes=1)))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "KINETO_LOG_LEVEL"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert (ran.stdout, ran.stderr) == ("1\n", "")


def nodes(*values: float) -> dict[str, list[ProbeFigure]]:
    return {
        f"node{i}": [ProbeFigure(name="matmul", value=v, unit="FLOP/s")]
        for i, v in enumerate(values)
    }


def test_the_odd_node_out_is_named() -> None:
    (only,) = outliers(nodes(100, 101, 99, 100, 82))
    assert (only.node, only.value) == ("node4", 82)


@pytest.mark.parametrize(
    "values",
    [(100, 101, 99, 100, 98), (100, 101, 99, 100, 130), (100, 50), (100, 100, 100, 100, 99)],
)
def test_healthy_nodes_have_no_outlier(values: tuple[float, ...]) -> None:
    assert outliers(nodes(*values)) == []


def test_latency_and_bandwidth_are_fitted_to_a_sweep() -> None:
    timings = [
        CollectiveTiming(
            operation="all-reduce",
            ranks=2,
            payload_bytes=size,
            seconds=20e-6 + size / 10e9,
            bus_bytes_per_second=0.0,
        )
        for size in (1 << 10, 1 << 16, 1 << 22, 1 << 28)
    ]
    (line,) = fit(timings)
    assert line.alpha_seconds == pytest.approx(20e-6, rel=1e-3)
    assert line.bytes_per_second == pytest.approx(10e9, rel=1e-3)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"a/b/cpu.max": "150000 100000"}, 1.5),
        ({"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 0.5),
        ({"a/b/cpu.max": "max 100000"}, None),
        ({}, None),
    ],
)
def test_the_quota_is_read_from_the_group_and_those_above(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    (tmp_path / "self").write_text("0::/a/b\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_quota(tmp_path / "self", tmp_path) == quota


def test_the_numa_node_of_a_device_is_read_from_the_kernel(tmp_path: Path) -> None:
    from computeflow.lab.sensors import numa_node

    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "numa_node").write_text("1\n")
    assert numa_node("00000000:3B:00.0", tmp_path) == 1
    assert numa_node("00000000:AF:00.0", tmp_path) is None


def write_corpus(folder: Path, count: int, lines: int) -> None:
    folder.mkdir()
    for number in range(count):
        text = "".join(json.dumps({"text": f"word {i} " * 20}) + "\n" for i in range(lines))
        (folder / f"part-{number}.jsonl").write_text(text)


@pytest.mark.live
def test_every_remedy_of_a_data_set_says_what_it_buys() -> None:
    slow = DatasetProbe(
        folder="x",
        format="jsonl",
        files=5000,
        total_bytes=int(5e9),
        median_file_bytes=1e6,
        smallest_file_bytes=1,
        largest_file_bytes=2,
        sequential_bytes_per_second=200e6,
        random_bytes_per_second=20e6,
        decode_bytes_per_second=100e6,
        bytes_per_token=4.0,
        tokens_per_second_per_worker=16e6,
        tokens_per_second=48e6,
        workers=4,
    )
    lines = advise(slow, None).advice
    assert [line.split(":")[0] for line in lines] == [
        "shards",
        "order and cache",
        "format",
        "workers",
        "tier",
    ]
    assert "10.0 times" in lines[1] and "3.1 times" in lines[2]
    assert "3.0 times" in lines[3] and "35.0 times" in lines[4]
    fast = replace(slow, format="tokens", files=3, random_bytes_per_second=7e9, workers=1)
    assert advise(replace(fast, sequential_bytes_per_second=7e9), None).advice == ()


def test_the_data_pipeline_has_a_ceiling_and_advice(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", count=3, lines=500)
    (tmp_path / "corpus" / "notes.md").write_text("not data")
    (tmp_path / "corpus" / "empty.jsonl").touch()
    found = probe(
        "--storage",
        str(tmp_path),
        "--data",
        str(tmp_path / "corpus"),
        "--tokens-per-second",
        "1e15",
    )
    data = found["probes"][0]["dataset"]
    assert (data["files"], data["format"]) == (3, "jsonl")
    assert data["left_out"] == {".md: another format": 1, "empty": 1}
    assert data["tokens_per_second"] > 0
    assert any("is NOT enough" in line for line in data["advice"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--data", "absent"], "no such file or folder"),
        (["--storage", "absent"], "cannot write there"),
        (["--against", "absent.json"], "No such file"),
        (["--accelerator", "h100-smx"], "nearest: h100-sxm"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_2(
    flags: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code = run([*PROGRAM[3:], *flags])
    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (2, 1), said
    assert words in said


def test_without_torch_the_probe_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        PROGRAM, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode != 0
    assert "probe needs torch: pip install torch" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.live
def test_a_calibration_carries_its_provenance(tmp_path: Path) -> None:
    probe(
        "--storage", str(tmp_path), "--passes", "2", "--write-calibration", str(tmp_path / "c.json")
    )
    calibration = json.loads((tmp_path / "c.json").read_text())
    assert calibration["schema"] == "computeflow.calibration/1"
    assert calibration["provenance"]["repeats"] == 2
    assert calibration["gemm"][0]["flops"] > 0
    assert len({(g["part"], g["m"]) for g in calibration["gemm"]}) == len(calibration["gemm"])
