"""Timeouts that contradict each other are named before the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from computeflow.cli import run
from computeflow.planning.timeouts import (
    DEFAULTS,
    NAMES,
    ORDERS,
    contradictions,
    script_timeouts,
    slurm_seconds,
)

FIXTURES = Path(__file__).parent / "data" / "exports"


def pairs(**timeouts: float) -> list[tuple[str, str]]:
    named = {name.replace("_", "-"): seconds for name, seconds in timeouts.items()}
    return [(each.order.inner, each.order.outer) for each in contradictions(named)]


def test_the_ladder_that_torchft_needs_holds_and_any_rung_that_is_too_high_is_named() -> None:
    """pytorch/torchtitan#2899: 120 s < 200 s < 300 s."""
    assert pairs(replica_collective=120, collective=200, first_collective=300) == []
    assert pairs(replica_collective=250, collective=200, first_collective=300) == [
        ("replica-collective", "collective")
    ]
    assert pairs(replica_collective=120, collective=400, first_collective=300) == [
        ("collective", "first-collective")
    ]


def test_what_is_not_stated_counts_with_its_default_where_the_other_is_stated() -> None:
    assert DEFAULTS["collective"] == 600
    assert pairs() == []
    assert pairs(step=700) == [("step", "collective")]
    assert pairs(first_collective=300) == [("collective", "first-collective")]
    assert pairs(dump=60_000) == [("dump", "heartbeat")]
    assert pairs(job=300) == []
    assert pairs(job=300, collective=600) == [("collective", "job")]


def test_time_to_save_after_a_signal_must_be_there() -> None:
    assert pairs(shutdown=270) == [("shutdown", "kill-wait")]
    assert pairs(shutdown=270, notice=300) == []
    assert pairs(shutdown=270, notice=120) == [("shutdown", "notice")]
    assert pairs(notice=7200, job=3600) == [("notice", "job")]


def test_a_requeued_job_may_get_the_dead_node_again_where_ranks_give_up_first() -> None:
    assert pairs(collective=120) == []
    assert pairs(collective=120, requeue=0) == [("node-silence", "collective")]


def test_every_order_has_words_and_names_both_numbers() -> None:
    for order in ORDERS:
        assert {order.inner, order.outer} <= NAMES.keys()
        stated = {order.inner: 100.0, order.outer: 50.0}
        if order.needs:
            stated.setdefault(order.needs, 0.0)
        named = [each for each in contradictions(stated) if each.order == order]
        assert "100 s" in named[0].what and "50 s" in named[0].what


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800.0),
        ("10:30", 630.0),
        ("1:00:00", 3600.0),
        ("2-0", 172_800.0),
        ("1-12:30", 131_400.0),
        ("1-00:00:30", 86_430.0),
        ("0", None),
        ("a", None),
        ("1:2:3:4", None),
        ("x-1", None),
    ],
)
def test_limits_as_slurm_writes_them(text: str, seconds: float | None) -> None:
    assert slurm_seconds(text) == seconds


def test_a_script_states_them_in_its_lines_and_its_environment() -> None:
    text = "#!/bin/bash\n#SBATCH --time=02:00:00 --requeue\n#SBATCH --signal=B:USR1@120\n"
    variables = {
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "30",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "60000",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "$GRACE",
    }
    assert script_timeouts(text, variables) == {
        "heartbeat": 30.0,
        "dump": 60.0,
        "job": 7200.0,
        "notice": 120.0,
        "requeue": 0.0,
    }
    assert script_timeouts("#SBATCH --signal=TERM", {}) == {"notice": 60.0}


def test_check_names_what_a_launch_script_gets_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (FIXTURES / "megatron_llama3_8b.sh").read_text()
    first, rest = text.split("\n", 1)
    file = tmp_path / "train.sh"
    file.write_text(
        f"{first}\n#SBATCH --time=12:00:00\nexport TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=10\n{rest}"
    )
    assert run(["check", str(file), "--on", "h100-sxm:8", "-o", "json"]) == 3
    remarks = json.loads(capsys.readouterr().out)["remarks"]
    said = [remark["what"] for remark in remarks if remark["rule"] == "timeout-order"]
    assert said == [
        "the time to write down a hang (15 s) is not shorter than the heart beat of NCCL's watchdog "
        "(10 s): the rank is killed while it writes down what hung"
    ]


def test_check_names_what_a_configuration_gets_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (FIXTURES / "torchtitan_deepseek_16b.toml").read_text()
    file = tmp_path / "train.toml"
    file.write_text(f"{text}\n[comm]\ntrain_timeout_seconds = 400\ninit_timeout_seconds = 300\n")
    assert run(["check", str(file), "--on", "h100-sxm:64", "-o", "json"]) == 3
    remarks = json.loads(capsys.readouterr().out)["remarks"]
    said = [remark["what"] for remark in remarks if remark["rule"] == "timeout-order"]
    assert len(said) == 1
    assert "(6.67 min) is not shorter than the timeout of collectives during start-up" in said[0]
