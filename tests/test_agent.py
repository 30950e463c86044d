"""What an agent reads of its node, and what it calls a run."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from computeflow.answers import AgentAnswer, ManifestAnswer, agent
from computeflow.cli import run
from computeflow.collection.agent.agent_state import AgentState
from computeflow.collection.agent.exposition import address_of
from computeflow.collection.agent.host_readings import HostReadings
from computeflow.collection.agent.infiniband import InfinibandReadings
from computeflow.collection.agent.kernel_signals import KernelSignals
from computeflow.collection.agent.node_sources import NodeLook
from computeflow.collection.agent.nvml_library import NODE, NvmlMissingError
from computeflow.collection.agent.nvml_readings import NvmlReadings
from computeflow.collection.agent.processes import (
    ProcessWatch,
    RankProcesses,
    TrainingProcess,
    quota_figures,
    quota_groups,
)
from computeflow.collection.agent.recorded_nvml import NvmlRecorder, RecordedNvml
from computeflow.collection.agent.run_ids import facts_to_send, read_facts, run_id
from computeflow.errors import InputError

NVML = Path(__file__).parent / "data" / "nvml" / "h200-made.json"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."


def figures(look: NodeLook, **labels: str) -> dict[str, float]:
    return {
        reading.name: reading.value
        for reading in look.readings
        if labels.items() <= reading.labels.items()
    }


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# NVML


def test_gpus_are_read_under_the_names_of_dcgm_exporter() -> None:
    look = NvmlReadings(RecordedNvml.load(NVML), "n1").look(7)
    first = figures(look, gpu="0")
    assert first["DCGM_FI_DEV_POWER_USAGE"] == pytest.approx(704, abs=1)
    assert first["DCGM_FI_DEV_SM_CLOCK"] == 1733
    assert first["DCGM_FI_DEV_MAX_SM_CLOCK"] == 1980
    assert first["DCGM_FI_DEV_FB_TOTAL"] == pytest.approx(143_771, abs=1)
    assert first["DCGM_FI_DEV_CLOCKS_EVENT_REASONS"] == 4
    labels = look.readings[0].labels
    assert labels["modelName"] == "NVIDIA H200"
    assert labels["Hostname"] == "n1"
    assert labels["UUID"].startswith("GPU-")
    assert {reading.at for reading in look.readings} == {7}


def test_what_a_gpu_does_not_give_is_missing_with_its_reason() -> None:
    look = NvmlReadings(RecordedNvml.load(NVML), "n1").look(0)
    assert look.missing["DCGM_FI_DEV_RETIRED_DBE"] == "the driver does not give this field"
    assert "DCGM_FI_DEV_RETIRED_DBE" not in figures(look)


def test_a_throttle_that_begins_and_errors_that_grow_are_signals_of_their_gpu() -> None:
    source = NvmlReadings(RecordedNvml.load(NVML), "n1")
    looks = [source.look(at) for at in range(6)]
    said = [(look, signal) for look in looks for signal in look.signals]
    throttles = [signal for _, signal in said if signal.what == "clock throttle"]
    assert [(signal.at, signal.detail) for signal in throttles] == [
        (2, "gpu 1: hardware thermal slowdown")
    ]
    assert throttles[0].gpu.startswith("GPU-00000001")
    assert [signal.at for _, signal in said if signal.what == "memory row remapped"] == [4]
    assert len([1 for _, signal in said if signal.what == "nvlink replays"]) == 5
    assert not looks[0].signals
    slowed = [one for one in looks[3].readings if one.name == "computeflow_gpu_throttled"]
    assert {(one.labels["gpu"], one.labels["reason"]) for one in slowed} == {
        ("0", "power cap"),
        ("1", "hardware thermal slowdown"),
    }


def test_a_real_h200_is_read_while_it_trains() -> None:
    """Forty looks, five seconds apart, at the driver of a GPU that trained under its power limit."""
    source = NvmlReadings(RecordedNvml.load(NVML.with_name("h200.json")), "n1")
    looks = [source.look(5 * number) for number in range(40)]
    first, last = figures(looks[0], gpu="0"), figures(looks[-1], gpu="0")
    assert first["DCGM_FI_DEV_POWER_USAGE"] < 100 < 650 < last["DCGM_FI_DEV_POWER_USAGE"] < 710
    spent = (
        last["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] - first["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"]
    )
    mean = sum(figures(look, gpu="0")["DCGM_FI_DEV_POWER_USAGE"] for look in looks) / 40
    assert spent / 1e3 / 195 == pytest.approx(mean, rel=0.2)
    assert 0 < last["DCGM_FI_DEV_POWER_VIOLATION"] / 1e6 < 195
    assert last["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"] == 0
    assert not [signal for look in looks for signal in look.signals]


def test_processes_on_gpus_are_told_by_their_number() -> None:
    look = NvmlReadings(RecordedNvml.load(NVML), "n1").look(0)
    pids = {
        reading.labels["pid"]
        for reading in look.readings
        if reading.name == "computeflow_gpu_process_memory_bytes"
    }
    assert pids == {"4711", "4712"}


def test_a_recording_of_a_replay_replays_the_same(tmp_path: Path) -> None:
    recorder = NvmlRecorder(RecordedNvml.load(NVML))
    first = [NvmlReadings(recorder, "n1").look(at) for at in range(3)]
    again = RecordedNvml(json.loads(json.dumps(recorder.looks)))
    assert [NvmlReadings(again, "n1").look(at) for at in range(3)] == first


def test_a_gpu_that_is_lost_is_missing_and_the_others_are_read() -> None:
    class LostGpu:
        def ask(self, gpu: int, function: str, *arguments: int) -> Any:
            if gpu == NODE and function == "nvmlDeviceGetCount":
                return 2
            raise NvmlMissingError("GPU is lost") if gpu == 1 else NvmlMissingError("unknown")

    look = NvmlReadings(LostGpu(), "n1").look(0)
    assert look.missing["gpu 1"] == "GPU is lost"
    assert look.readings == ()


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"schema": "computeflow.nvml/1", "looks": 1}']
)
def test_a_file_that_is_no_recording_of_nvml_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"x\.json"):
        RecordedNvml.load(path)


# /proc and /sys


def test_the_host_is_read_under_the_names_of_node_exporter() -> None:
    look = HostReadings().look(0)
    found = figures(look)
    assert found["node_memory_MemTotal_bytes"] > 1e6
    assert found["computeflow_node_cores"] == os.cpu_count() or found["computeflow_node_cores"] > 0
    assert figures(look, mode="user")["node_cpu_seconds_total"] > 0


def test_parts_of_a_host_that_cannot_be_read_are_missing(tmp_path: Path) -> None:
    proc = write(tmp_path, {"loadavg": "1.5 1.0 0.5 1/2 3\n", "stat": "cpu  1 x\n"})
    look = HostReadings(proc, tmp_path / "sys").look(0)
    assert figures(look) == {"node_load1": 1.5, "node_load5": 1.0}
    assert look.missing.keys() == {"cpu", "memory", "pressure", "disk", "network"}
    assert "No such file" in look.missing["memory"]


PORT = "class/infiniband/mlx5_0/ports/1/"
TREE = {
    PORT + "counters/port_rcv_data": "250\n",
    PORT + "counters/port_xmit_wait": "7\n",
    PORT + "counters/link_downed": "1\n",
    PORT + "counters/symbol_error": "0\n",
    PORT + "hw_counters/out_of_sequence": "3\n",
    PORT + "state": "4: ACTIVE\n",
    PORT + "rate": "400 Gb/sec (4X NDR)\n",
}


def test_infiniband_ports_are_read_and_a_flap_is_a_signal(tmp_path: Path) -> None:
    source = InfinibandReadings(write(tmp_path, TREE))
    found = figures(source.look(0), device="mlx5_0", port="1")
    assert found["node_infiniband_port_data_received_bytes_total"] == 1000
    assert found["node_infiniband_out_of_sequence_total"] == 3
    assert found["node_infiniband_rate_bytes_per_second"] == 50e9
    write(tmp_path, {PORT + "counters/link_downed": "2\n", PORT + "state": "1: DOWN\n"})
    signals = source.look(5).signals
    assert {signal.what for signal in signals} == {"infiniband link down"}
    assert signals[0].detail == "mlx5_0 port 1: 1 more"
    assert source.look(6).signals == ()


def test_a_node_without_infiniband_says_so(tmp_path: Path) -> None:
    assert "no port" in InfinibandReadings(tmp_path).look(0).missing["infiniband"]


# processes that train


def cgroup_tree(tmp_path: Path, throttled_usec: int) -> tuple[Path, Path]:
    proc = write(tmp_path / "proc", {"42/cgroup": "0::/job/task\n"})
    stat = f"usage_usec 9\nnr_periods 100\nnr_throttled 40\nthrottled_usec {throttled_usec}\n"
    groups = write(
        tmp_path / "cgroup",
        {
            "cgroup.controllers": "cpu\n",
            "job/cpu.stat": stat,
            "job/cpu.max": "150000 100000\n",
            "job/task/cpu.stat": "usage_usec 9\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
            "job/task/cpu.max": "max 100000\n",
        },
    )
    return proc, groups


def test_a_quota_above_a_process_is_found(tmp_path: Path) -> None:
    assert quota_figures(quota_groups(*cgroup_tree(tmp_path, 2_500_000), 42)) == {
        "cgroup_periods_total": 100,
        "cgroup_throttled_periods_total": 40,
        "cgroup_throttled_seconds_total": 2.5,
        "cgroup_quota_cores": 1.5,
    }


def test_a_quota_of_the_first_version_of_control_groups_is_found(tmp_path: Path) -> None:
    proc = write(tmp_path / "proc", {"42/cgroup": "3:cpu,cpuacct:/job\n1:name=systemd:/\n"})
    groups = write(
        tmp_path / "cgroup",
        {
            "cpu/job/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 1500000000\n",
            "cpu/job/cpu.cfs_quota_us": "50000\n",
            "cpu/job/cpu.cfs_period_us": "100000\n",
        },
    )
    found = quota_figures(quota_groups(proc, groups, 42))
    assert found["cgroup_throttled_seconds_total"] == 1.5
    assert found["cgroup_quota_cores"] == 0.5


def test_a_rank_that_its_quota_holds_back_is_a_signal_when_it_begins(tmp_path: Path) -> None:
    proc, groups = cgroup_tree(tmp_path, 0)
    ranks = [TrainingProcess(run="r", rank=3, pid=42)]
    source = RankProcesses(lambda: ranks, proc=proc, cgroups=groups)
    said = []
    for second, throttled in enumerate((0.0, 0.0, 0.6, 1.2, 1.2, 1.2, 2.0)):
        cgroup_tree(tmp_path, round(throttled * 1e6))
        said.append([signal.detail for signal in source.look(second * 1_000_000).signals])
    assert [bool(some) for some in said] == [False, False, True, False, False, False, True]
    assert said[2] == ["rank 3 of r: held back 0.60 s each second; its control group has 1.5 cores"]


def test_the_cpu_time_of_a_rank_is_read() -> None:
    ranks = [TrainingProcess(run="r", rank=0, pid=os.getpid())]
    found = figures(RankProcesses(lambda: ranks).look(0), run="r", rank="0")
    assert found["computeflow_rank_cpu_seconds_total"] > 0
    assert found["computeflow_rank_resident_bytes"] > 1e6


def test_a_process_is_alive_until_it_ends_and_unknown_if_it_was_never_seen() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        watch = ProcessWatch(child.pid, time.time())
        assert watch.alive() is True
        child.kill()
        child.wait()
    assert watch.alive() is False
    assert ProcessWatch(child.pid, time.time()).alive() is None
    assert ProcessWatch(os.getpid(), 0.0).alive() is None  # a number that is used again


# the kernel log


def kmsg(text: str, seconds_ago: float = 0.0) -> str:
    return f"4,100,{round((time.monotonic() - seconds_ago) * 1e6)},-;{text}\n"


def micros() -> int:
    return time.time_ns() // 1000


def test_an_xid_in_the_kernel_log_is_a_signal_of_its_gpu(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(kmsg("usb 1-1: new device"))
    source = KernelSignals(log)
    assert source.look(micros()).signals == ()
    with log.open("a") as file:
        file.write(kmsg(XID))
    (signal,) = source.look(micros()).signals
    assert (signal.what, signal.gpu, signal.fault) == ("xid 79", "0000:3b:00", True)
    assert abs(signal.at - micros()) < 5e6
    assert source.look(micros()).signals == ()


def test_messages_from_before_the_start_count_if_they_are_recent(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(kmsg(XID, seconds_ago=3600) + kmsg(XID.replace(" 79", " 48"), seconds_ago=60))
    assert [signal.what for signal in KernelSignals(log).look(micros()).signals] == ["xid 48"]


def test_a_storm_of_messages_is_said_twenty_times_a_minute(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("")
    source = KernelSignals(log)
    source.look(micros())
    log.write_text(kmsg(XID) * 5000)
    assert len(source.look(micros()).signals) == 20
    with log.open("a") as file:
        file.write(kmsg(XID))
    assert len(source.look(micros() + 61_000_000).signals) == 1


def test_a_log_that_is_rotated_is_followed_on(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("")
    source = KernelSignals(log)
    source.look(micros())
    log.rename(tmp_path / "kmsg.1")
    log.write_text(kmsg(XID))
    assert sum(len(source.look(micros()).signals) for _ in range(3)) == 1


def test_a_kernel_log_that_is_not_there_is_missing(tmp_path: Path) -> None:
    source = KernelSignals(tmp_path / "none")
    assert "No such file" in source.look(micros()).missing["kernel log"]
    (tmp_path / "none").write_text(kmsg(XID))
    assert len(source.look(micros()).signals) == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_kernel_log_of_noise_is_no_signal_and_no_crash(tmp_path: Path, seed: int) -> None:
    noise = random.Random(seed)
    log = tmp_path / "kmsg"
    log.write_bytes(noise.randbytes(200_000) + XID.encode()[:30] + b"\n" + b"Xid (" * 50_000)
    assert KernelSignals(log).look(micros()).signals == ()


# what a run is called

SLURM = {"ids": {"slurm_job": "77"}, "environment": {"SLURM_STEP_ID": "3"}, "name": "train"}
ELASTIC = ["torchrun", "--rdzv-id", "job9", "--rdzv-endpoint=n1:29400", "train.py"]


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (SLURM, SLURM),
        ({"command": ELASTIC, "name": "torchrun"}, {"command": ELASTIC, "name": "torchrun"}),
        (
            {"ids": {"pod": "llama-master-0"}, "environment": {"MASTER_ADDR": "llama-master-0"}},
            {"ids": {"pod": "llama-worker-12"}, "environment": {"MASTER_ADDR": "llama-master-0"}},
        ),
        (
            {"ids": {"ray_job": "0100"}, "environment": {"MASTER_ADDR": "10.0.0.1"}},
            {"ids": {"ray_job": "0100"}, "environment": {"MASTER_ADDR": "10.0.0.1"}},
        ),
    ],
)
def test_nodes_of_a_run_give_it_one_name(here: dict[str, Any], there: dict[str, Any]) -> None:
    own = [
        run_id({"name": "x", **facts, "host": host, "started": started}, Path(folder))
        for facts, host, started, folder in (
            (here, "n1", 1.0, "/state/a"),
            (there, "n2", 2.0, "/state/b"),
        )
    ]
    assert own[0] == own[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"started": 1.0}, {"started": 2.0}),
        ({"host": "n1"}, {"host": "n2"}),
        (SLURM, {**SLURM, "environment": {"SLURM_STEP_ID": "4"}}),
        ({"ids": {"slurm_job": "77"}, "started": 1}, {"ids": {"slurm_job": "77"}, "started": 2}),
        (
            {"command": ["torchrun", "--rdzv-id=none", "--master-addr", "n1"], "started": 1},
            {"command": ["torchrun", "--rdzv-id=none", "--master-addr", "n1"], "started": 2},
        ),
        ({}, {"name": "x"}),
    ],
)
def test_runs_that_differ_have_other_names(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert run_id(one, Path("/runs/a")) != run_id(other, Path("/runs/a"))


def test_a_name_is_short_and_plain_whatever_a_run_is_called() -> None:
    name = run_id({"name": "../../etc/passwd\0\n" + "x" * 5000, "started": 1}, Path("/r"))
    assert len(name) < 100
    assert all(letter.isalnum() or letter in "-._" for letter in name)


@pytest.mark.parametrize("content", ["", "[1]", "{", "[" * 100_000, '{"command": 5, "ids": [1]}'])
def test_a_run_json_that_is_none_makes_no_trouble(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    facts = read_facts(path)
    assert run_id(facts, tmp_path) and isinstance(facts_to_send(facts), dict)


def test_what_is_sent_of_run_json_is_bounded_and_masked() -> None:
    sent = facts_to_send(
        {
            "name": "x" * 100_000,
            "command": ["a", "--token=hf_abcdefghijklmnop", "b"] * 2000,
            "environment": {"A": "b"},
            "git": {"deep": {"er": {"and": {"er": {"er": 1}}}}},
            "unknown": 1,
        }
    )
    assert len(sent["name"]) == 4000
    assert len(sent["command"]) == 2000 and "hf_abc" not in str(sent)
    assert sent.keys() == {"name", "command", "git"}


# the command


def test_a_second_agent_with_the_same_state_is_refused(tmp_path: Path) -> None:
    first = AgentState(tmp_path / "state", "n1")
    with pytest.raises(InputError, match="another agent uses it"):
        AgentState(tmp_path / "state", "n1")
    first.close()
    again = AgentState(tmp_path / "state", "n1")
    assert again.agent == first.agent
    again.close()


def test_an_agent_without_a_place_for_its_state_has_a_name_nevertheless() -> None:
    first, again = (AgentState(Path("/proc/nowhere"), "n1") for _ in range(2))
    assert first.agent == again.agent != AgentState(Path("/proc/nowhere"), "n2").agent
    assert "/proc/nowhere" in first.note


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--collector", "ftp://x"], "write http://HOST:PORT"),
        (["--collector", "http://user:pw@x:1"], "use --token-file"),
        (["--collector", "http://x:99999"], "no such port"),
        (["--collector", "http://x:1", "--ca", "README.md"], "belongs to https"),
        (["--ca", "README.md"], "--ca belongs to --collector"),
        (["--collector", "https://x:1", "--ca", "README.md"], "--ca README.md"),
        (["--collector", "http://x:1", "--token-file", "none"], "--token-file none: No such file"),
        (["--collector", "http://x:1", "--token-file", "README.md"], "one line with the token"),
        (["--listen", "0.0.0.0:0"], "add --token-file"),
        (["--listen", "127.0.0.1:x"], "write HOST:PORT"),
        (["--otlp", "x:4318"], "write http://HOST:4318"),
        (["--every", "0.1"], "between 1 and 3600"),
        (["--nvml", "README.md", "--once"], "README.md: not JSON"),
        (["--print-manifest", "nomad"], "systemd"),
    ],
)
def test_a_users_mistake_is_one_line(
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    assert run(["agent", "--state", str(tmp_path), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_look_without_a_collector_is_an_answer(tmp_path: Path) -> None:
    answer = agent(once=True, nvml=NVML, state=tmp_path, runs=[tmp_path], node="n1")
    assert isinstance(answer, AgentAnswer)
    assert answer.headline.startswith("n1: 2 GPUs, ")
    data = answer.to_dict()
    assert data["schema"] == "computeflow.agent/1" and data["connected"] is None
    assert answer.exit_code == 0


@pytest.mark.parametrize("address", ["127.0.0.1:9471", "[::1]:9471", "9471", "localhost:0"])
def test_addresses_to_listen_on(address: str) -> None:
    host, port = address_of(address)
    assert host in ("127.0.0.1", "::1", "localhost") and port in (9471, 0)


# manifests


def manifest_text(kind: str) -> str:
    answer = agent(print_manifest=kind, collector="https://c:8471", runs=["/data/runs"])  # type: ignore[arg-type]
    assert isinstance(answer, ManifestAnswer)
    assert "@COLLECTOR@" not in answer.text and "@RUNS@" not in answer.text
    assert "https://c:8471" in answer.text and "/data/runs" in answer.text
    return answer.text


def test_the_systemd_unit_is_hardened_and_limited() -> None:
    lines = manifest_text("systemd").splitlines()
    assert {"NoNewPrivileges=yes", "DynamicUser=yes", "ProtectSystem=strict"} <= set(lines)
    assert any(line.startswith("MemoryMax=") for line in lines)
    assert any(line.startswith("CPUQuota=") for line in lines)
    assert "User=root" not in lines


def test_the_slurm_script_is_one_that_bash_reads(tmp_path: Path) -> None:
    script = tmp_path / "agent.sh"
    script.write_text(manifest_text("slurm"))
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert "runuser" in script.read_text()


def test_the_daemon_set_is_whole_and_not_privileged() -> None:
    namespace, daemon = yaml.safe_load_all(manifest_text("kubernetes"))
    assert (namespace["kind"], daemon["kind"]) == ("Namespace", "DaemonSet")
    pod = daemon["spec"]["template"]
    assert pod["metadata"]["labels"] == daemon["spec"]["selector"]["matchLabels"]
    (container,) = pod["spec"]["containers"]
    context = container["securityContext"]
    assert context["privileged"] is False and context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"]["drop"] == ["ALL"]
    writable = [mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["state"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["spec"]["volumes"]
    }
    assert {"cpu", "memory"} == set(container["resources"]["limits"])


def test_words_of_the_manifests_are_options_of_the_command() -> None:
    from computeflow.cli.agent import agent as command

    known = {word for option in command.params for word in option.opts}
    for kind in ("systemd", "slurm", "kubernetes"):
        text = manifest_text(kind).split("computeflow agent" if kind != "kubernetes" else "args:")[
            1
        ]
        used = {word.split("=")[0] for word in text.split() if word.startswith("--")} - {"--"}
        assert used and used <= known
