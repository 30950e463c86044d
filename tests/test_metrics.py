"""Metrics: text files, node monitors, and real Prometheus and VictoriaMetrics servers."""

from __future__ import annotations

import gzip
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow import codec
from computeflow.catalog import load_catalog
from computeflow.diagnosis import diagnose_source
from computeflow.diagnosis.rules.fleet import stem
from computeflow.errors import InputError
from computeflow.ledger import check_claimed_seconds, gaps
from computeflow.telemetry.metrics import prometheus_server as server_module
from computeflow.telemetry.metrics.exporter_fields import is_blank, reasons_of
from computeflow.telemetry.metrics.metrics_source import MetricsSource
from computeflow.telemetry.metrics.prometheus_server import TOKEN, connect, observe_server
from computeflow.telemetry.metrics.samples import SampledFleet
from computeflow.telemetry.opening import head_of
from computeflow.telemetry.source_reports import SourceReport, SourceRequest
from computeflow.views.sources.metrics import tables
from computeflow.views.tables import to_text
from metrics_servers import Quiet, Synthetic, exporter, prometheus, serving, victoria

FACTS = load_catalog()
ASKED = SourceRequest(catalog=FACTS)
SHARED = Path(os.environ.get("COMPUTEFLOW_DATA", "../shared/data")) / "recordings" / "metrics"
SICK = Synthetic(throttled=frozenset({5}), idle=frozenset({12}), xid=frozenset({5}))
SERVERS = [prometheus, victoria]


def observe(*paths: Path, asked: SourceRequest = ASKED) -> SourceReport:
    source = MetricsSource()
    assert all(source.recognises(path, head_of(path)) for path in paths)
    (found,) = source.observe(paths, asked)
    return found


def text(tmp_path: Path, content: str, name: str = "scrape.prom") -> Path:
    path = tmp_path / name
    path.write_text(content)
    return path


def rules(found: SourceReport) -> list[str]:
    return sorted(finding.rule for finding in diagnose_source(found).findings)


def window(fleet: Synthetic) -> SourceRequest:
    return SourceRequest(catalog=FACTS, start=fleet.start, end=fleet.end)


def check_sick(found: SourceReport) -> None:
    """Exactly the throttled GPU and the idle allocation, with what they cost."""
    by_rule = {finding.rule: finding for finding in diagnose_source(found).findings}
    assert rules(found) == ["clock-throttle", "idle-allocation"]
    slow, idle = by_rule["clock-throttle"], by_rule["idle-allocation"]
    assert slow.title.startswith("node-0 GPU 5 ") and "hardware thermal slowdown" in slow.title
    assert slow.gpu_seconds == pytest.approx(0.35 * SICK.seconds, rel=0.05)
    assert idle.title.startswith("node-1 GPU 4, held by research/notebook-12")
    assert idle.gpu_seconds == pytest.approx(SICK.seconds)
    ledger = found.ledger
    assert ledger is not None and ledger.gpus == 16 and ledger.mfu is None
    assert ledger.accounts == pytest.approx({"compute": 15 * 3600, "idle": 3600})
    watts = (14 * 640 + 640 * (1 - 0.7 * 0.35) + 72) / 16
    assert ledger.joules == pytest.approx(16 * 3600 * watts, rel=0.05)
    faults = [one for one in found.happenings if one.fault]
    assert {one.what for one in faults} == {
        "xid 79",
        "throttled: hardware slowdown",
        "throttled: hardware thermal slowdown",
    }
    (xid,) = [one for one in faults if one.what == "xid 79"]
    assert xid.seconds == pytest.approx(SICK.start + SICK.seconds / 2, abs=15)
    assert (xid.node, xid.gpu) == ("node-0", "5")


@pytest.mark.live
@pytest.mark.parametrize("server", SERVERS)
def test_a_real_server_shows_the_throttled_gpu_and_the_idle_allocation(
    server: Callable[..., Any], tmp_path: Path
) -> None:
    with server(tmp_path / "server", SICK) as address:
        (found,) = observe_server(address, window(SICK))
        assert found.sources == (address,)
    check_sick(found)
    one = found.facts.gpus[0]
    assert (one.node, one.gpu, one.accelerator) == ("node-0", "0", "h100-sxm")
    assert one.utilisation > 0.98 and 0.7 < one.sm_active < 0.72 and 0.41 < one.tensor_active < 0.43
    assert one.mfu_upper == pytest.approx(one.tensor_active * one.clock_hertz / 1.83e9)
    assert one.clock_max_hertz == 1.98e9 and one.memory_temperature_most is None


@pytest.mark.live
@pytest.mark.parametrize("server", SERVERS)
def test_a_real_server_of_a_healthy_fleet_gives_no_finding(
    server: Callable[..., Any], tmp_path: Path
) -> None:
    with server(tmp_path / "server", Synthetic()) as address:
        (found,) = observe_server(address, window(Synthetic()))
    assert diagnose_source(found).findings == () and diagnose_source(found).abstained == ()
    assert found.ledger is not None and found.ledger.accounts == {"compute": 16 * 3600}
    assert not [one for one in found.happenings if one.fault]


@pytest.mark.live
def test_a_window_in_pieces_is_the_same_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with prometheus(tmp_path / "server", SICK) as address:
        (whole,) = observe_server(address, window(SICK))
        monkeypatch.setattr(server_module, "METRIC_ANSWER_SAMPLES", 16 * 50)
        (parts,) = observe_server(address, window(SICK))
    assert codec.encode(parts.facts) == codec.encode(whole.facts)


@pytest.mark.live
def test_a_live_scrape_is_read_by_the_servers_clock(tmp_path: Path) -> None:
    with exporter(SICK) as target, prometheus(tmp_path / "server", scrape=target) as address:
        until = time.monotonic() + 300
        found = None
        while found is None and time.monotonic() < until:
            try:
                (found,) = observe_server(address, ASKED)
            except InputError as error:  # nothing scraped yet
                assert "no GPU metrics" in str(error)
                time.sleep(0.5)
    assert found is not None and len(found.facts.gpus) == 16
    assert {one.model for one in found.facts.gpus} == {SICK.model}
    assert (
        "minutes of samples"
        in {a.rule: a.missing for a in diagnose_source(found).abstained}["idle-allocation"]
    )


def test_a_text_history_concludes_the_same(tmp_path: Path) -> None:
    path = tmp_path / "history.prom.gz"
    path.write_bytes(gzip.compress(SICK.history().encode()))
    check_sick(observe(path))
    check_sick(observe(text(tmp_path, SICK.openmetrics())))


def test_findings_claim_no_more_than_the_ledger_holds(tmp_path: Path) -> None:
    sick = observe(text(tmp_path, SICK.history()))
    healthy = observe(text(tmp_path, Synthetic().history(), "healthy.prom"))
    assert sick.ledger and healthy.ledger
    lines = gaps(sick.ledger, healthy.ledger, work_ratio=0.9)
    check_claimed_seconds(diagnose_source(sick).findings, lines)


def test_half_of_the_window_asked_for_is_half(tmp_path: Path) -> None:
    asked = SourceRequest(catalog=FACTS, start=SICK.start, end=SICK.start + 1800)
    found = observe(text(tmp_path, SICK.history()), asked=asked)
    assert found.ledger is not None and found.ledger.wall_seconds == pytest.approx(1800)
    assert any("outside the requested times" in words for words in found.left_out)


def test_without_the_reasons_the_rule_abstains_and_names_the_field(tmp_path: Path) -> None:
    """Metrics that dcgm-exporter's default counters lack."""
    lacking = Synthetic(
        throttled=frozenset({5}),
        without=frozenset({"DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_PROF_SM_ACTIVE"}),
    )
    found = observe(text(tmp_path, lacking.history()))
    assert diagnose_source(found).findings == ()
    (abstained,) = diagnose_source(found).abstained
    assert abstained.rule == "clock-throttle"
    assert "DCGM_FI_DEV_CLOCKS_EVENT_REASONS" in abstained.missing
    assert "node-0 GPU 5 runs 35." in abstained.missing and "cause unknown" in abstained.missing
    assert found.facts.gpus[0].sm_active is None


def test_without_utilisation_another_activity_is_taken_or_none(tmp_path: Path) -> None:
    no_util = frozenset({"DCGM_FI_DEV_GPU_UTIL"})
    found = observe(text(tmp_path, Synthetic(idle=frozenset({3}), without=no_util).history()))
    assert rules(found) == ["idle-allocation"]
    assert "engine active 0" in diagnose_source(found).findings[0].evidence[0].what
    none = no_util | {"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_SM_ACTIVE"}
    found = observe(text(tmp_path, Synthetic(without=none).history()))
    assert found.ledger is None and "DCGM_FI_DEV_GPU_UTIL" in found.ledger_reason
    assert {one.rule for one in diagnose_source(found).abstained} == {
        "idle-allocation",
        "clock-throttle",
    }


def test_memory_in_use_says_that_somebody_holds_a_gpu(tmp_path: Path) -> None:
    found = observe(
        text(tmp_path, Synthetic(idle=frozenset({3}), free=frozenset({4}), labels=False).history())
    )
    (finding,) = diagnose_source(found).findings
    assert finding.title.startswith("node-0 GPU 3, with memory in use,")
    assert found.ledger is not None and found.ledger.gpus == 15  # nobody holds the sixteenth
    blind = Synthetic(idle=frozenset({3}), labels=False, without=frozenset({"DCGM_FI_DEV_FB_USED"}))
    found = observe(text(tmp_path, blind.history()))
    assert diagnose_source(found).findings == ()
    assert found.ledger is not None and found.ledger.accounts["unexplained"] == 3600
    assert "idle" in found.ledger.unavailable
    assert "DCGM_FI_DEV_FB_USED" in diagnose_source(found).abstained[0].missing


def test_gpus_that_nobody_holds_are_no_finding(tmp_path: Path) -> None:
    found = observe(text(tmp_path, Synthetic(free=frozenset({4, 9})).history()))
    assert diagnose_source(found).findings == ()
    assert found.ledger is not None and found.ledger.gpus == 14
    assert found.facts.gpus[4].held_share == 0


def test_an_exporters_own_pod_holds_nothing(tmp_path: Path) -> None:
    """Prometheus writes its target's pod over the exporter's, which becomes `exported_pod`."""
    labels = 'UUID="GPU-{0}",gpu="{0}",Hostname="a",pod="nvidia-dcgm-exporter-x2x",namespace="ops"'
    lines = []
    for at in range(0, 1200, 30):
        for gpu, more in ((0, ""), (1, ',exported_pod="train-0",exported_namespace="ml"')):
            head = labels.format(gpu) + more
            lines.append(f"DCGM_FI_DEV_GPU_UTIL{{{head}}} 0 {1_700_000_000_000 + 1000 * at}")
    found = observe(text(tmp_path, "\n".join(lines)))
    assert [one.workloads for one in found.facts.gpus] == [(), ("ml/train-0",)]
    (finding,) = diagnose_source(found).findings
    assert finding.title.startswith("a GPU 1, held by ml/train-0,")


def test_a_power_cap_on_gpus_that_work_harder_is_no_fault(tmp_path: Path) -> None:
    """Two jobs on one kind of GPU: the smaller draws more and clocks lower by its work."""
    lines = []
    for at in range(0, 1800, 30):
        for gpu in range(16):
            hard = gpu >= 12
            values = {
                "GPU_UTIL": 100,
                "SM_CLOCK": 1400 + gpu if hard else 1900 + gpu,
                "CLOCKS_EVENT_REASONS": 4 if hard else 0,
                "POWER_USAGE": 695 if hard else 410,
            }
            for name, value in values.items():
                labels = f'gpu="{gpu}",Hostname="a",modelName="NVIDIA H100 80GB HBM3"'
                lines.append(
                    f"DCGM_FI_DEV_{name}{{{labels}}} {value} {1_700_000_000_000 + 1000 * at}"
                )
    content = "\n".join(lines)
    assert diagnose_source(observe(text(tmp_path, content))).findings == ()
    starved = content.replace("} 695 ", "} 350 ")  # lower clocks at less power: a limit too low
    assert rules(observe(text(tmp_path, starved))) == ["clock-throttle"] * 4


@pytest.mark.parametrize("seed", range(8))
def test_of_many_fleets_the_sick_gpus_are_found_and_no_others(seed: int, tmp_path: Path) -> None:
    sick = frozenset({seed, seed + 9}) if seed % 2 else frozenset()
    fleet = Synthetic(
        gpus=24,
        seconds=1200,
        step=30,
        seed=seed,
        throttled=sick,
        idle=frozenset({23}),
        deep=0.15,
        spread=0.015,
    )
    found = observe(text(tmp_path, fleet.history()))
    assert rules(found) == ["clock-throttle"] * len(sick) + ["idle-allocation"]
    for gpu in sick:
        label = f"node-{gpu // 8} GPU {gpu % 8} "
        assert any(finding.title.startswith(label) for finding in diagnose_source(found).findings)


BLANKS = [
    9223372036854775792, 9223372036854775793, 9223372036854775794, 9223372036854775795,
    2147483632, 2147483634, 140737488355328.0, 140737488355330.0, math.nan, math.inf,
]  # fmt: skip


@pytest.mark.parametrize("value", BLANKS)
def test_a_blank_is_nothing(value: float, tmp_path: Path) -> None:
    assert is_blank(float(value))
    line = f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="GPU-1"}} {value}\n'
    found = observe(text(tmp_path, "# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n" + line))
    assert found.facts.gpus[0].power_watts is None
    assert any("not supported" in words for words in found.left_out)


def test_large_counters_are_no_blanks() -> None:
    assert not any(is_blank(value) for value in (0, 65535, 4294967295, 2**46, 1e15))
    assert is_blank(65535, amd=True) and is_blank(4294967295, amd=True)
    assert reasons_of(0x4 | 0x40) == ("power cap", "hardware thermal slowdown")
    assert reasons_of(0x401) == ("idle", "reason 0x400")


def test_escapes_times_and_exemplars_are_read_as_written(tmp_path: Path) -> None:
    content = "\n".join(
        [
            "# TYPE DCGM_FI_DEV_GPU_UTIL gauge",
            r'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-\\a\"b}",Hostname="x # {y}"} 40 1700000000000',
            r'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-\\a\"b}",Hostname="x # {y}"} 60 1700000010.5',
            'DCGM_FI_DEV_PCIE_REPLAY_COUNTER_total{gpu="0",UUID="u2"} 3 1700000000 # {t="a}"} 1 1.5',
            'DCGM_FI_DEV_PCIE_REPLAY_COUNTER_total{gpu="0",UUID="u2"} 5 1700000009 # {t="a"} 1',
            'DCGM_FI_DEV_GPU_UTIL{gpu="0" 40',
            "DCGM_FI_DEV_GPU_UTIL 1_0",
            "process_cpu 1",
            "# EOF",
        ]
    )
    found = observe(text(tmp_path, content))
    by_uuid = {one.uuid: one for one in found.facts.gpus}
    one = by_uuid['GPU-\\a"b}']
    assert one.node == "x # {y}" and one.observed_seconds == 10.5 and one.utilisation == 0.4
    assert by_uuid["u2"].pcie_replays == 2
    assert any("2 lines that are not samples, the first is line 6" in w for w in found.left_out)
    assert any("not read: process_cpu" in words for words in found.left_out)


def test_a_scrape_without_times_has_figures_and_no_ledger(tmp_path: Path) -> None:
    found = observe(text(tmp_path, "\n".join(Synthetic().lines())))
    assert (
        found.facts.start is None and found.ledger is None and diagnose_source(found).findings == ()
    )
    assert "fewer than two times" in found.ledger_reason
    assert found.facts.gpus[0].power_watts is not None


def test_amds_exporter_is_read(tmp_path: Path) -> None:
    labels = 'gpu_id="{0}",card_series="AMD Instinct MI300X OAM",hostname="tw38",job_id="8"'
    lines = []
    for at in range(0, 900, 30):
        for gpu in range(4):
            head = labels.format(gpu)
            stamp = 1_700_000_000_000 + 1000 * at
            lines += [
                f"amd_gpu_gfx_activity{{{head}}} {0 if gpu == 3 else 97} {stamp}",
                f"gpu_package_power{{{head}}} {65535 if gpu == 2 else 700} {stamp}",
                f'gpu_clock{{{head},clock_type="system",clock_index="0"}} 2000 {stamp}',
                f'gpu_clock{{{head},clock_type="system",clock_index="1"}} 2100 {stamp}',
                f'gpu_clock{{{head},clock_type="memory",clock_index="2"}} 900 {stamp}',
                f"gpu_violation_ppt_residency_percentage{{{head}}} 12 {stamp}",
            ]
    found = observe(text(tmp_path, "\n".join(lines)))
    one = found.facts.gpus[0]
    assert (one.node, one.gpu, one.workloads) == ("tw38", "0", ("8",))
    assert one.clock_hertz == 2.05e9 and one.power_watts == 700
    assert one.reasons == {"power violation": 1.0}
    assert found.facts.gpus[2].power_watts is None
    assert rules(found) == ["idle-allocation"]


def test_node_exporters_counters_become_rates(tmp_path: Path) -> None:
    series = {
        'memory_MemTotal_bytes{instance="n1:9100"}': (100, 0),
        'memory_MemAvailable_bytes{instance="n1:9100"}': (25, 0),
        'network_receive_bytes_total{device="eth0",instance="n1:9100"}': (0, 1000),
        'network_receive_bytes_total{device="lo",instance="n1:9100"}': (0, 9e9),
    }
    for cpu in range(4):
        series[f'cpu_seconds_total{{cpu="{cpu}",mode="idle",instance="n1:9100"}}'] = (0, 7.5)
    lines = [
        f"node_{head} {first + grown * step} {1_700_000_000_000 + 10_000 * step}"
        for step in range(3)
        for head, (first, grown) in series.items()
    ]
    found = observe(text(tmp_path, "\n".join(lines)))
    (node,) = found.facts.nodes
    assert node.node == "n1" and node.cpus_busy == pytest.approx(1.0)
    assert node.memory_used_share == 0.75 and node.network_received_bytes_per_second == 100
    assert found.ledger is None and found.ledger_reason == "no samples of GPUs"


MONITOR = {
    "gpu_usage:0": 56,
    "gpu_mem_used:0": 4 << 30,
    "gpu_temperature:0": 26,
    "ib0_receive_bw": 1e-5,
}


def test_a_node_monitors_lines_are_read(tmp_path: Path) -> None:
    lines = [
        json.dumps({"time": f"2021-12-06 04:{m:02}:00", "cpu_usage": 200.0} | MONITOR)
        for m in range(5)
    ]
    lines.insert(2, '{"time": "soon"}')
    found = observe(text(tmp_path, "\n".join(lines), "monitor.jsonl"))
    assert found.facts.start == 1638763200 and found.facts.gpus[0].utilisation == 0.56
    assert found.facts.nodes[0].cpus_busy == 2.0
    assert found.ledger is not None and found.ledger.accounts == {"compute": 240}
    assert any("1 lines that are not samples" in words for words in found.left_out)
    assert any("network rates" in words for words in found.left_out)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="needs COMPUTEFLOW_DATA")
def test_every_shared_file_is_read_or_named() -> None:
    files = sorted(path for path in SHARED.rglob("*") if path.is_file())
    assert len(files) == 12
    said = {path.name: observe(path) for path in files}
    for name, found in said.items():
        assert found.facts.gpus or any("not samples" in words for words in found.left_out), name
    monitor = said["superbench_monitor.jsonl"]
    assert len(monitor.facts.gpus) == 8 and monitor.ledger is not None
    assert monitor.ledger.accounts == pytest.approx({"compute": 330, "idle": 22})
    assert monitor.facts.gpus[0].ecc_corrected == 12
    sample = said["readme_sample.prom"].facts.gpus
    assert len(sample) == 1 and sample[0].clock_hertz == 139e6
    assert sample[0].memory_temperature_most is None
    counters = " ".join(said["default-counters.csv"].left_out)
    assert "26 counters for dcgm-exporter, not samples" in counters
    assert "DCGM_FI_DEV_CLOCKS_EVENT_REASONS" in counters and "DCGM_FI_PROF_SM_ACTIVE" in counters


def test_mig_instances_are_no_gpus(tmp_path: Path) -> None:
    whole = 'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1"} 300'
    part = 'DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-1",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"} 0.5'
    found = observe(text(tmp_path, f"# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n{whole}\n{part}\n"))
    assert len(found.facts.gpus) == 1 and found.facts.gpus[0].sm_active is None
    assert any("MIG" in words for words in found.left_out)


def test_samples_beyond_the_bound_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from computeflow.telemetry.metrics import samples

    monkeypatch.setattr(samples, "METRIC_SAMPLES", 100)
    found = observe(text(tmp_path, Synthetic(seconds=60).history()))
    assert found.facts.samples == 100
    assert any("beyond the limits" in words for words in found.left_out)


def test_gpus_beyond_the_limit_are_left_out_of_the_ledger_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from computeflow.telemetry.metrics import samples

    path = text(tmp_path, Synthetic(seconds=60).history())
    whole = observe(path)
    monkeypatch.setattr(samples, "METRIC_DEVICES", 3)
    found = observe(path)
    assert len(whole.facts.gpus) > 3 and not any("beyond" in words for words in whole.left_out)
    assert len(found.facts.gpus) + len(found.facts.nodes) == 3
    assert found.ledger is not None and found.ledger.gpus <= 3
    (words,) = [words for words in found.left_out if "beyond" in words]
    series = {line.rpartition("}")[0] for line in path.read_text().splitlines() if line[0] != "#"}
    assert 0 < int(words.split()[0]) < len(series)


def test_a_series_in_two_answers_counts_once() -> None:
    fleet = SampledFleet()
    for labels in ({"gpu": "0", "pod": "a"}, {"gpu": "0", "pod": "b"}, {"gpu": "1"}):
        assert fleet.slot("DCGM_FI_DEV_GPU_UTIL", labels, "server") is not None
    assert fleet.series == 2 and fleet.workloads == ["", "a", "b"]


def test_replicas_of_a_job_are_peers() -> None:
    assert {stem(f"ml/llama-worker-{i}") for i in range(3)} == {"ml/llama-worker"}
    assert (
        stem("llama-0-x7k2p") == "llama"
        and stem("4711") == "4711"
        and stem("notebook") == "notebook"
    )


def test_tables_fit_the_screen(tmp_path: Path) -> None:
    found = observe(text(tmp_path, SICK.history()))
    shown = [to_text(table) for table in tables(found)]
    assert all(len(line) <= 80 for table in shown for line in table.splitlines())
    whole = "\n".join(shown)
    assert "upper estimate" in whole and "xid 79" in whole and "hardware thermal" in whole
    json.dumps(codec.encode(found), allow_nan=False)


LINES = st.text(
    alphabet=st.sampled_from('DCGM_FI_EVUTL{}=",\\ 0123456789.eN+-#\ngpu\t\0é'), max_size=400
)


@given(LINES)
def test_no_text_breaks_the_reader(content: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.prom"
        path.write_text("# TYPE x gauge\n" + content)
        observe(path)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5000), st.integers(0, 2), st.integers(0, 100), st.integers(0, 3000)
        ),
        min_size=1,
        max_size=60,
    )
)
def test_whatever_was_sampled_the_ledger_closes(samples: list[tuple[int, int, int, int]]) -> None:
    import tempfile

    lines = []
    for at, gpu, util, memory in samples:
        stamp = 1_700_000_000_000 + 1000 * at
        lines.append(f'DCGM_FI_DEV_GPU_UTIL{{gpu="{gpu}"}} {util // 2} {stamp}')
        lines.append(f'DCGM_FI_DEV_FB_USED{{gpu="{gpu}"}} {memory} {stamp}')
        lines.append(f'DCGM_FI_DEV_POWER_USAGE{{gpu="{gpu}"}} {100 + util} {stamp}')
    with tempfile.TemporaryDirectory() as folder:
        found = observe(text(Path(folder), "\n".join(lines)))
    if found.ledger is None:
        assert found.ledger_reason
    else:
        assert sum(found.ledger.accounts.values()) == pytest.approx(found.ledger.gpu_seconds)


# A server that misbehaves: one line each, in bounded time.


def answering(body: bytes, status: int = 200, **headers: str) -> type[Quiet]:
    class Answer(Quiet):
        def answer(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Answer


def refused(handler: type[Quiet]) -> str:
    with serving(handler) as port, pytest.raises(InputError) as error:
        observe_server(f"http://127.0.0.1:{port}", ASKED)
    words = str(error.value)
    assert words.startswith("http://127.0.0.1:") and "\n" not in words
    return words


def succeeding(data: str) -> type[Quiet]:
    return answering(f'{{"status":"success","data":{data}}}'.encode())


FAULTS = [
    (answering(b"<html>hello</html>"), "not JSON"),
    (answering(b"<html>gone</html>", 404), "answered 404"),
    (answering(b'{"status":"error","errorType":"bad","error":"no\\nway"}', 400), "bad: no way"),
    (answering(b"[]"), "not an answer of Prometheus"),
    (succeeding('{"resultType":"matrix","result":[[]]}'), "format of Prometheus"),
    (succeeding('{"resultType":"scalar","result":["x","y"]}'), "format of Prometheus"),
    (succeeding('{"resultType":"scalar","result":[1,"1"]}'), "format of Prometheus"),
    (answering(b"", 401), TOKEN),
    (answering(b"", 302, Location="http://127.0.0.2:1/"), "another address"),
    (answering(b"", 302, Location="https://example.com/"), "another address"),
    (answering(b"", 307, Location="/again"), "without end"),
    (answering(b"[" * 100_000), "JSON"),
]


@pytest.mark.parametrize(("handler", "words"), FAULTS)
def test_a_bad_answer_is_one_line(handler: type[Quiet], words: str) -> None:
    assert words in refused(handler)


def test_a_server_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Drip(Quiet):
        def answer(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            for _ in range(100):
                try:
                    self.wfile.write(b" ")
                    self.wfile.flush()
                except OSError:
                    return
                time.sleep(0.1)

    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 1.0)
    assert "no answer within 1 s" in refused(Drip)


def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "METRIC_ANSWER_BYTES", 1 << 20)
    assert "more than 1 MiB" in refused(answering(b" " * (2 << 20)))


def test_nobody_listening_is_one_line() -> None:
    with serving(Quiet) as port:
        pass
    with pytest.raises(InputError, match=f"127.0.0.1:{port}: .*refused"):
        observe_server(f"http://127.0.0.1:{port}", ASKED)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "ftp://a",
        "http://",
        "http://a:99999",
        "http://u:p@a",
        "http://a/?x=1",
        "http://a:0",
        "http://[::",
    ],
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InputError):
        connect(address)


def test_the_token_goes_to_tls_or_to_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    class Listening(Quiet):
        def answer(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.reply(b"{}", status=400)

    monkeypatch.setenv(TOKEN, "s3cret")
    refused(Listening)
    assert seen == ["Bearer s3cret"]
    assert "s3cret" not in repr(connect("https://prometheus.example"))
    with pytest.raises(InputError, match="in the clear") as error:
        connect("http://prometheus.example:9090")
    assert "s3cret" not in str(error.value)
    monkeypatch.setenv(TOKEN, "a\r\nX: y")
    with pytest.raises(InputError, match="characters"):
        connect("https://prometheus.example")


def test_a_saved_answer_is_read_like_the_server(tmp_path: Path) -> None:
    rows = [
        {
            "metric": {
                "__name__": "DCGM_FI_DEV_GPU_UTIL",
                "gpu": "0",
                "UUID": "u",
                "pod": "train-0",
            },
            "values": [[1_700_000_000 + 30 * i, "0"] for i in range(40)],
        },
    ]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": rows}}
    found = observe(text(tmp_path, json.dumps(answer), "answer.json"))
    assert rules(found) == ["idle-allocation"]


def test_other_files_are_not_taken_for_metrics() -> None:
    source = MetricsSource()
    heads = (
        b"",
        b'{"traceEvents": []}',
        b"#!/bin/sh\n# TYPE your name\n",
        b"step 10/100 | loss 2.0",
        b"name,count\na,1\n",
        b'{"time": "x"}\n',
        b"\x80\x02}q\x00",
    )
    for head in heads:
        assert not source.recognises(Path("x"), head)
