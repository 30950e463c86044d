"""What a collector says to be scraped: names, bounds, and names that others made up."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from computeflow.collection.outputs.metrics import MAX_RANKS_PER_RUN, MAX_RUNS, render_metrics
from live_value_maker import NOW, hostile_values, live_finding, live_node, live_run
from metrics_servers import needed

SERVICE = {"batches_total": 12.0, "refused_total": 0.0, "queue_batches": 2.0, "tick_seconds": 0.01}


def samples(written: bytes) -> dict[str, list[Any]]:
    """Samples by name, as the reference parser of OpenMetrics reads them."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    read: Any = text_string_to_metric_families
    found: dict[str, list[Any]] = {}
    for family in read(written.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def test_runs_ranks_findings_nodes_and_the_collector_have_figures() -> None:
    found = samples(render_metrics([live_run()], [live_finding()], [live_node()], SERVICE))
    assert found["computeflow_step_seconds"][0].value == 1.12
    assert found["computeflow_run_usd_per_hour"][0].value == 640.0
    assert sum(s.value for s in found["computeflow_account_ratio"]) == pytest.approx(1.0)
    assert [s.labels["state"] for s in found["computeflow_run_state"] if s.value] == ["running"]
    assert found["computeflow_rank_late_seconds"][0].labels["rank"] == "3"
    finding = found["computeflow_finding_usd_per_hour"][0]
    assert (finding.labels["rule"], finding.labels["ranks"], finding.value) == (
        "straggler-rank",
        "3",
        128.0,
    )
    assert found["DCGM_FI_DEV_GPU_TEMP"][0].labels["Hostname"] == "node-00"
    assert found["computeflow_collector_batches_total"][0].value == 12
    assert found["computeflow_collector_queue_batches"][0].value == 2


def test_what_is_not_known_has_no_series_and_what_is_closed_neither() -> None:
    run = live_run(mfu=None, tokens_per_second=None, usd_per_gpu_hour=None, step_seconds=None)
    found = samples(render_metrics([run], [live_finding(closed=NOW)], [], {}))
    missing = ("mfu_ratio", "tokens_per_second", "run_usd_per_hour", "step_seconds")
    assert not {f"computeflow_{name}" for name in missing} & found.keys()
    assert not any(name.startswith("computeflow_finding") for name in found)


def test_series_are_bounded_and_what_is_left_out_is_counted() -> None:
    rank = live_run().slowest[0]
    many = tuple(
        type(rank)(
            rank=n,
            node="n",
            step=1,
            step_seconds=1.0,
            own_seconds=1.0,
            late_seconds=1.0,
            last_seen=NOW,
        )
        for n in range(100)
    )
    runs = [live_run(run=f"run-{n}", slowest=many) for n in range(MAX_RUNS + 7)]
    found = samples(render_metrics(runs, [], [], {}))
    assert len(found["computeflow_step_seconds"]) == MAX_RUNS
    assert len(found["computeflow_rank_late_seconds"]) == MAX_RUNS * MAX_RANKS_PER_RUN
    left = {s.labels["what"]: s.value for s in found["computeflow_collector_left_out"]}
    assert left["runs"] == 7


def test_hostile_names_break_no_line_and_take_no_metric_of_ours() -> None:
    written = render_metrics(*hostile_values(), SERVICE)
    found = samples(written)
    assert b"\x1b" not in written
    assert "\n" not in found["computeflow_run_info"][0].labels["name"]
    assert found["computeflow_step_seconds"][0].value == 1.12
    assert "ok_reading" in found
    left = {s.labels["what"]: s.value for s in found["computeflow_collector_left_out"]}
    assert left["readings"] == 3


@pytest.mark.parametrize("hostile", [False, True])
def test_promtool_has_nothing_to_say(hostile: bool) -> None:
    values = hostile_values() if hostile else ([live_run()], [live_finding()], [live_node()])
    checked = subprocess.run(
        [needed("promtool"), "check", "metrics"],
        input=render_metrics(*values, SERVICE, text=True),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
