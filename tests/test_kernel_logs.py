"""Kernel logs: every form, every fault, folded; and nothing else taken for a fault."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow import codec
from computeflow.catalog import load_catalog
from computeflow.errors import InputError
from computeflow.telemetry.kernel_logs import messages
from computeflow.telemetry.kernel_logs.gpu_burn import GpuBurnSource
from computeflow.telemetry.kernel_logs.kernel_log_source import KernelLogs, KernelLogSource
from computeflow.telemetry.kernel_logs.line_stamps import stamp_of
from computeflow.telemetry.kernel_logs.messages import classify_message, classify_xid, pci_address
from computeflow.telemetry.opening import head_of
from computeflow.telemetry.source_reports import SourceReport, SourceRequest
from computeflow.views.sources.kernel_logs import tables
from computeflow.views.tables import to_text

FACTS = load_catalog()
SOURCE = KernelLogSource()
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
WHEN = 1740327858.0
"""Time of the messages: 2025-02-23 16:24:18 UTC."""


def log(folder: Path, *lines: str, name: str = "kern.log") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def observe(*paths: Path, **asked: Any) -> SourceReport:
    assert all(SOURCE.recognises(path, head_of(path)) for path in paths)
    (observed,) = SOURCE.observe(paths, SourceRequest(catalog=FACTS, **asked))
    return observed


@pytest.mark.parametrize(
    ("line", "clock", "seconds", "node"),
    [
        (f"6,3964,206764307,-;{XID}", "boot", 206.764307, ""),
        (f"[  206.764307] {XID}", "boot", 206.764307, ""),
        (f"<4>[  206.764307] {XID}", "boot", 206.764307, ""),
        (f"[  206.764307][ T1234] {XID}", "boot", 206.764307, ""),
        (f"kern  :warn  : [  206.764307] {XID}", "boot", 206.764307, ""),
        (f"[Sun Feb 23 16:24:18 2025] {XID}", "unix", WHEN, ""),
        (f"2025-02-23T16:24:18,250000+00:00 {XID}", "unix", WHEN + 0.25, ""),
        (f"kern  :warn  : 2025-02-23T17:24:18,250000+01:00 {XID}", "unix", WHEN + 0.25, ""),
        (
            f"2025-02-23T16:24:18.250000+00:00 gpu7 kernel: [  206.764307] {XID}",
            "unix",
            WHEN + 0.25,
            "gpu7",
        ),
        (f"2025-02-23T16:24:18+0000 gpu7 kernel: {XID}", "unix", WHEN, "gpu7"),
        (f"Sun 2025-02-23 16:24:18 UTC gpu7 kernel: {XID}", "unix", WHEN, "gpu7"),
        (f"Feb 23 16:24:18 gpu7 kernel: [  206.764307] {XID}", "no year", None, "gpu7"),
        (f"Feb  3 16:24:18 gpu7 kernel: {XID}", "no year", None, "gpu7"),
        (
            json.dumps(
                {
                    "__REALTIME_TIMESTAMP": "1740327858000000",
                    "_HOSTNAME": "gpu7",
                    "SYSLOG_IDENTIFIER": "kernel",
                    "MESSAGE": XID,
                }
            ),
            "unix",
            WHEN,
            "gpu7",
        ),
        (
            json.dumps(
                {
                    "__REALTIME_TIMESTAMP": "1740327858000000",
                    "_HOSTNAME": "gpu7",
                    "MESSAGE": list(XID.encode()),
                },
                separators=(",", ":"),
            ),
            "unix",
            WHEN,
            "gpu7",
        ),
    ],
)
def test_every_form_of_a_line(
    line: str, clock: str, seconds: float | None, node: str, tmp_path: Path
) -> None:
    stamp = stamp_of(line)
    assert stamp is not None
    assert (stamp.clock, stamp.node, stamp.text) == (clock, node, XID)
    if seconds is not None:
        assert stamp.seconds == pytest.approx(seconds)
    observed = observe(log(tmp_path, line))
    (fault,) = observed.facts.faults
    assert (fault.what, fault.gpu, fault.node) == ("xid 79", "0000:9b:00", node)
    (event,) = observed.happenings
    assert event.fault
    assert event.seconds == (pytest.approx(seconds) if clock == "unix" else None)
    said = {"no year": "no year", "boot": "since boot"}.get(clock, "")
    assert any(said in note for note in observed.notes)


@pytest.mark.parametrize(
    ("text", "what", "device", "stops"),
    [
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "xid 14", "0000:03:00", "unknown"),
        (
            "NVRM: Xid (PCI:0000:01:00): 31, pid=77, name=python, Ch 00000018, intr 10000000.",
            "xid 31",
            "0000:01:00",
            "yes",
        ),
        (
            "NVRM: Xid (PCI:0001:00:00 GPU-I:05): 94, pid=7194, name=py, Contained: SM (0x1).",
            "xid 94",
            "0001:00:00 instance 05",
            "yes",
        ),
        (
            "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping",
            "xid 63",
            "0000:10:1c",
            "no",
        ),
        (
            "NVRM: Xid (PCI:0000:04:00): 144, SAW_MVB Nonfatal XC0 i0 Link 00 (0x1 0x1 0x0 0x0)",
            "xid 144",
            "0000:04:00",
            "no",
        ),
        (
            "NVRM: Xid (PCI:0000:04:00): 145, RLW_REMAP Fatal XC0 i0 Link 00 (0x4 0x40 0x0 0x0)",
            "xid 145",
            "0000:04:00",
            "yes",
        ),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress",
            "sxid 12028",
            "nvswitch 0000:05:00",
            "yes",
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "sxid 20034",
            "nvswitch 0000:00:00",
            "yes",
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 99999, Non-fatal, Link 30 new",
            "sxid 99999",
            "nvswitch 0000:00:00",
            "maybe",
        ),
        ("mlx5_core 0000:5c:00.0 ens1f0np0: Link down", "link down", "0000:5c:00", "maybe"),
        ("mlx5_core 0000:5c:00.0 ens1f0np0: Link up", "link up", "0000:5c:00", "no"),
        (
            "mlx5_core 0000:d2:00.0: mlx5_port_module_event:1131:(pid 0): Port module event[error]: "
            "module 0, Cable error, High Temperature",
            "cable error",
            "0000:d2:00",
            "maybe",
        ),
        (
            "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 9): "
            "ACCESS_REG(0x805) op_mod(0x1) failed",
            "nic command refused",
            "0000:d2:00",
            "no",
        ),
        (
            "mlx5_core 0000:5c:00.0: poll_health:976:(pid 0): device's health compromised - reached "
            "miss count",
            "nic failed",
            "0000:5c:00",
            "yes",
        ),
        (
            "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",
            "peermem error",
            "",
            "maybe",
        ),
        (
            "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0",
            "memory error, corrected",
            "MC0",
            "no",
        ),
        (
            "EDAC MC1: 1 UE memory read error on CPU_SrcID#0",
            "memory error, uncorrected",
            "MC1",
            "yes",
        ),
        ("mce: [Hardware Error]: Machine check events logged", "machine check", "", "maybe"),
        ("Out of memory: Killed process 4242 (python3) total-vm:1kB", "out of memory", "", "yes"),
        (
            "Memory cgroup out of memory: Killed process 7 (pt_main_thread)",
            "out of memory",
            "",
            "yes",
        ),
        (
            "pcieport 0000:80:01.1: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer",
            "pcie error, corrected",
            "0000:80:01",
            "no",
        ),
        (
            "nvidia 0000:9b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
            "pcie error, fatal",
            "0000:9b:00",
            "yes",
        ),
        (
            "pcieport 0000:80:01.1: pciehp: Slot(9): Link Down",
            "pcie link down",
            "0000:80:01",
            "yes",
        ),
        (
            "CPU12: Package temperature above threshold, cpu clock throttled (total events = 1)",
            "cpu throttled: heat",
            "12",
            "no",
        ),
        ("INFO: task python3:136986 blocked for more than 120 seconds.", "hung task", "", "maybe"),
        (
            "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]",
            "cpu lockup",
            "18",
            "maybe",
        ),
        (
            "nfs: server 10.0.0.1 not responding, still trying",
            "nfs server silent",
            "10.0.0.1",
            "maybe",
        ),
        ("nfs: server 10.0.0.1 OK", "nfs server back", "10.0.0.1", "no"),
        (
            "Lustre: fs-OST0001-osc-ffff: Connection to fs-OST0001 (at 10.0.0.9@o2ib) was lost; in "
            "progress operations using this service will wait",
            "lustre server silent",
            "fs-OST0001",
            "maybe",
        ),
        (
            "LustreError: 167-0: fs-MDT0000-mdc: This client was evicted by fs-MDT0000; in progress",
            "lustre evicted",
            "fs-MDT0000",
            "yes",
        ),
        ("python[77]: segfault at 0 ip 0 sp 0 error 4 in libc.so.6[7f+1]", "segfault", "", "maybe"),
        ("blk_update_request: I/O error, dev nvme0n1, sector 5", "disk error", "nvme0n1", "maybe"),
        (
            "NVRM: GPU 0000:2b:00.0: GPU has fallen off the bus.",
            "gpu fell off the bus",
            "0000:2b:00",
            "yes",
        ),
        (
            "NVRM: GPU 0000:2b:00.0: RmInitAdapter failed! (0x24:0xffff:1220)",
            "gpu failed to start",
            "0000:2b:00",
            "yes",
        ),
        ("Kernel panic - not syncing: Fatal exception", "kernel panic", "", "yes"),
    ],
)
def test_every_fault_is_known(text: str, what: str, device: str, stops: str) -> None:
    read = classify_message(text)
    assert read is not None
    assert (read.sign.what, read.device, read.sign.stops) == (what, device, stops)
    assert read.sign.action
    assert read.sign.source


@pytest.mark.parametrize(
    "text",
    [
        "nvidia-nvswitch2: open (major=510)",
        "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
        "ata1: SATA link down (SStatus 0 SControl 300)",
        "usb 1-6: Manufacturer: Realtek",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07",
        "EDAC MC: Ver: 3.0.0",
        "perf: interrupt took too long (2509 > 2500)",
        "mlx5_core 0000:01:00.0: firmware version: 16",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
    ],
)
def test_what_is_no_fault_says_nothing(text: str) -> None:
    assert classify_message(text) is None


def test_the_driver_s_own_word_for_recovery_is_the_action() -> None:
    text = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    assert classify_xid(154, text).action == "the driver asks for: GPU Reset Required"
    assert classify_xid(79).action.startswith("drain the node, reboot it")
    assert classify_xid(9999).stops == "unknown"


def test_addresses_are_written_alike() -> None:
    names = ("00000000:9B:00.0", "0000:9b:00", "0000:9b:00.0")
    assert {pci_address(text) for text in names} == {"0000:9b:00"}
    assert pci_address("eth0") == "eth0"


def test_the_tables_are_whole_and_name_their_sources() -> None:
    folder = Path(messages.__file__).parent
    xids = tomllib.loads((folder / "xids.toml").read_text())
    codes = [row["code"] for row in xids["xid"]]
    assert codes == sorted(set(codes))
    assert {119, 79, 48, 63, 74, 94, 95} <= set(codes)
    for row in xids["xid"]:
        assert row["stops"] in ("yes", "maybe", "no")
        assert all(row[key] in xids["buckets"] for key in ("now", "then") if row[key])
    assert xids["source"].startswith("https://docs.nvidia.com/")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", xids["as_of"])
    texts = tomllib.loads((folder / "messages.toml").read_text())
    for row in texts["message"]:
        re.compile(row["pattern"])
        assert row["source"]


def test_repeats_are_one_fault_with_a_count_bursts_and_a_rate(tmp_path: Path) -> None:
    head = "NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=python, Timeout"
    path = log(
        tmp_path,
        "[Sun Feb 23 16:00:00 2025] Linux version 5.15.0",
        "[Sun Feb 23 16:24:18 2025] NVRM: GPU at PCI:0000:9b:00: "
        "GPU-509665ad-b600-ac93-3616-d754b23d636d",
        f"[Sun Feb 23 16:24:18 2025] {head}",
        f"[Sun Feb 23 16:24:18 2025] {head}",
        f"[Sun Feb 23 16:26:18 2025] {head}",
        "[Sun Feb 23 16:26:19 2025] message repeated 4 times: [ " + head + "]",
        f"[Sun Feb 23 17:00:00 2025] {head}",
        "[Sun Feb 23 17:00:01 2025] last message repeated 2 times",
        "[Sun Feb 23 18:00:00 2025] usb 1-6: Manufacturer: Realtek",
    )
    observed = observe(path)
    fault, booted = observed.facts.faults
    assert (fault.count, fault.bursts, fault.per_hour) == (10, 2, 5.0)
    assert fault.gpu == "GPU-509665ad-b600-ac93-3616-d754b23d636d"
    assert fault.who == ("python",)
    assert booted.what == "node booted"
    assert not booted.fault
    assert [event.what for event in observed.happenings] == ["node booted", "xid 119", "xid 119"]
    assert observed.happenings[1].detail.endswith("7 times")
    assert observed.ledger is None
    later = observe(path, start=WHEN + 600)
    assert [event.detail for event in later.happenings] == ["GSP RPC Timeout, 3 times"]


def test_a_line_in_two_logs_of_a_node_counts_once(tmp_path: Path) -> None:
    line = f"Feb 23 16:24:18 gpu7 kernel: {XID}"
    one = log(tmp_path, line, line)
    other = log(tmp_path, "Feb 23 16:24:17 gpu7 systemd[1]: Started.", line, name="syslog")
    (fault,) = observe(one, other).facts.faults
    assert fault.count == 2
    unnamed = [log(tmp_path, f"[ 5.000000] {XID}", name=name) for name in ("a", "b")]
    faults = observe(*unnamed).facts.faults  # of two nodes, for all we know
    assert [fault.count for fault in faults] == [1, 1]


def test_the_bus_message_beside_an_xid_79_is_not_a_second_fault(tmp_path: Path) -> None:
    path = log(
        tmp_path,
        f"[ 5.000000] {XID}",
        "[ 5.000001] NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.",
        "[ 6.000000] NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
    )
    faults = observe(path).facts.faults
    assert {(fault.what, fault.device) for fault in faults} == {
        ("xid 79", "0000:9b:00"),
        ("gpu fell off the bus", "0000:1b:00"),
    }


def test_dates_without_a_year_go_on_over_new_year(tmp_path: Path) -> None:
    path = log(
        tmp_path,
        f"Dec 31 23:59:59 gpu7 kernel: {XID}",
        f"Jan  1 00:00:01 gpu7 kernel: {XID}",
    )
    (fault,) = observe(path).facts.faults
    assert fault.last - fault.first == 2
    assert fault.bursts == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GPU 0: NVIDIA A100 (UUID: GPU-b8)\n50.0%  proc'd: 2261 (7150 Gflop/s)\n",
        "vendid=0x2c9\ndevid=0xd2f0\n",
        "2025-01-01T00:00:00 INFO trainer: step 1 loss 2.0\n" * 5,
        "2025-01-01 00:00:00,123 INFO step 1\n" * 5,
        '{"step": 1, "loss": 2.0}\n' * 5,
        "[2025-01-01 00:00:00,000] [INFO] [engine.py:1:f] [Rank 0] step=10\n" * 5,
        "[Sun Feb 23 16:24:18 2025] [error] client denied\n" * 5,
        "JobID|State\n1|FAILED\n",
        "iteration 10/ 100 | elapsed time per iteration (ms): 5.0\n" * 5,
    ],
)
def test_other_files_are_not_taken_for_kernel_logs(text: str, tmp_path: Path) -> None:
    assert not SOURCE.recognises(tmp_path, text.encode())


_TEXT = st.text(alphabet="[]()0123456789:.,;<>{}\"' FebXidNVRMSkernlmx5_PCI-\\n\x00é", max_size=60)


@given(
    lines=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "[  5.000000] ",
                    "6,1,99999999999999999,-;",
                    "Feb 30 99:99:99 h kernel: ",
                    "{",
                    "Feb 29 12:00:00 h kernel: ",
                    "[Sun Feb 31 16:24:18 2025] ",
                    '{"MESSAGE":[1,999],',
                    "2025-02-30T00:00:00+99:99 h kernel: ",
                    "NVRM: Xid (",
                    "",
                ]
            ),
            st.sampled_from([XID, "nvswitch0: SXid (PCI:0000:00:00.0): 99999999999, Fatal", ""]),
            _TEXT,
        ),
        max_size=20,
    )
)
def test_no_log_ends_in_a_traceback(
    lines: list[tuple[str, str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = log(tmp_path_factory.mktemp("hostile"), *("".join(parts) for parts in lines))
    (observed,) = SOURCE.observe([path], SourceRequest(catalog=FACTS))
    codec.to_json(codec.encode(observed.facts))
    for table in tables(observed):
        to_text(table)


def test_compressed_logs_and_missing_ones(tmp_path: Path) -> None:
    path = tmp_path / "kern.log.1.gz"
    path.write_bytes(gzip.compress(f"[ 5.000000] {XID}\n".encode()))
    (fault,) = observe(path).facts.faults
    assert fault.what == "xid 79"
    with pytest.raises(InputError):
        SOURCE.observe([tmp_path / "missing"], SourceRequest(catalog=FACTS))


def test_the_table_says_what_to_do_within_a_terminal(tmp_path: Path) -> None:
    path = log(tmp_path, f"[ 5.000000] {XID}", "[ 5.000000] mlx5_core 0000:5c:00.0 eth1: Link down")
    text = "\n".join(to_text(table) for table in tables(observe(path)))
    assert "drain the node, reboot it" in re.sub(r"\s+", " ", text) or "reboot" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    quiet = observe(log(tmp_path, "[ 5.000000] usb 1-6: Manufacturer: Realtek"))
    assert "none" in to_text(tables(quiet)[0])
    assert any("no fault in 1 lines" in note for note in quiet.notes)


@pytest.mark.shared
def test_every_recorded_log_is_read_and_nothing_else(data_folder: Path) -> None:
    folder = data_folder / "recordings" / "node_health"
    found: dict[str, KernelLogs] = {}
    for path in sorted(folder.iterdir()):
        if SOURCE.recognises(path, head_of(path)):
            found[path.name] = observe(path).facts
    assert sorted(found) == [
        "dmesg-with-xid-119.log",
        "fabricmanager.log",
        "kmsg.1.log",
        "kmsg.2.peermem.log",
        "nccl_dmesg.log",
    ]
    xid, held = found["dmesg-with-xid-119.log"].faults
    assert (xid.what, xid.count, xid.bursts, xid.stops) == ("xid 119", 5, 2, "yes")
    assert xid.gpu == "GPU-509665ad-b600-ac93-3616-d754b23d636d"
    assert xid.first == WHEN
    assert held.what == "gsp messages held back"
    (switch,) = found["fabricmanager.log"].faults
    assert (switch.what, switch.device) == ("sxid 12028", "nvswitch 0000:86:00 port 61")
    assert found["kmsg.1.log"].faults == ()
    (peermem,) = found["kmsg.2.peermem.log"].faults
    assert (peermem.what, peermem.count, peermem.clock) == ("peermem error", 7, "boot")
    (segfault,) = found["nccl_dmesg.log"].faults
    assert (segfault.what, segfault.who, segfault.count) == (
        "segfault in libnccl",
        ("pt_main_thread",),
        2,
    )


@pytest.mark.shared
def test_gpu_burn_is_known_for_what_it_is(data_folder: Path) -> None:
    path = data_folder / "recordings" / "node_health" / "gpu_burn.log"
    source = GpuBurnSource()
    assert source.recognises(path, head_of(path))
    (observed,) = source.observe([path], SourceRequest(catalog=FACTS))
    assert [gpu.verdict for gpu in observed.facts.gpus] == ["OK"] * 8
    assert all(0.98 < gpu.of_median < 1.02 for gpu in observed.facts.gpus)
    assert observed.happenings == ()
    assert "not training" in observed.ledger_reason
    assert "NVIDIA A100-SXM4-80GB" in to_text(tables(observed)[0])


def test_a_gpu_that_gpu_burn_calls_faulty_is_a_fault(tmp_path: Path) -> None:
    path = log(
        tmp_path,
        "GPU 0: NVIDIA A100 (UUID: GPU-b876c63f-396c-f826-5cd0-6b8409990352)",
        "50.0%  proc'd: 20 (7000 Gflop/s) - 10 (3500 Gflop/s)   errors: 0 - 12  (WARNING!)  "
        "temps: 38 C - 90 C ",
        "Tested 2 GPUs:",
        "\tGPU 0: OK",
        "\tGPU 1: FAULTY",
    )
    (observed,) = GpuBurnSource().observe([path], SourceRequest(catalog=FACTS))
    good, bad = observed.facts.gpus
    assert (good.errors, bad.errors, bad.most_celsius) == (0, 12, 90)
    assert (good.flops_per_second, bad.flops_per_second) == (7000e9, 3500e9)
    (event,) = observed.happenings
    assert event.fault
    with pytest.raises(InputError):
        GpuBurnSource().observe([log(tmp_path, "nothing")], SourceRequest(catalog=FACTS))
