"""The predictor closes, is monotone, refuses what it cannot do; its error does not grow."""

from __future__ import annotations

import json
import os
import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.catalog.parameters import count_parameters
from computeflow.cli import run
from computeflow.cluster import Cluster, LinkTier, find_cluster
from computeflow.cluster.collectives import neighbour_speed, ring_speed
from computeflow.errors import InputError
from computeflow.prediction import STACKS, find_stack, load_parameters, predict
from computeflow.prediction.communication import links
from computeflow.prediction.memory import memory
from computeflow.prediction.published_runs import PACKAGED, read_cases
from computeflow.prediction.step import account_step
from computeflow.prediction.step_inputs import StepInputs, of_job, stack_rows
from computeflow.prediction.validation import validate
from computeflow.prediction.validation.leave_out import leave_out
from computeflow.workload import Job, Layout, Layouts, refusals

FACTS = load_catalog()
PARAMETERS = load_parameters()
MODEL = FACTS.models["llama-3.1-70b"]
JOB = Job(model=MODEL, global_batch=1024, seq_len=8192)
CLUSTER = find_cluster("h100-sxm:512", FACTS)
OVERHEADS = [
    name
    for name in PARAMETERS.names
    if name.startswith(("host_", "link_hop", "network_hop", "jitter", "logit", "optimizer"))
    and name != "host_link"
]


@st.composite
def batches(draw: st.DrawFn) -> StepInputs:
    """Any possible layout of some job on some cluster under some stack."""
    name = draw(
        st.sampled_from(
            [
                "llama-3.1-8b",
                "llama-3.1-70b",
                "gpt3-175b",
                "gpt2-xl",
                "deepseek-v3",
                "gpt-oss-120b",
                "qwen3-30b-a3b",
                "nemotron-3-nano",
                "llama-4-maverick",
            ]
        )
    )
    device = draw(st.sampled_from(["a100-80-sxm", "h100-sxm", "b200-sxm", "mi300x", "gb200"]))
    gpus = draw(st.sampled_from([1, 8, 64, 512]))
    experts = any(block.experts for block in FACTS.models[name].blocks)
    job = Job(
        model=FACTS.models[name],
        global_batch=draw(st.sampled_from([8, 512, 1536])),
        seq_len=draw(st.sampled_from([512, 2048, 32768])),
        precision=draw(st.sampled_from(["bf16", "fp8"])) if device != "a100-80-sxm" else "bf16",
        training=draw(st.sampled_from(["full", "lora", "qlora"])),
        expert_spread=draw(st.sampled_from([0.0, 0.3])) if experts else 0.0,
    )
    pp, cp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    schedules = ["1f1b", "zero-bubble", "zbv", "dualpipe"]
    layout = Layout(
        gpus=gpus,
        tp=draw(st.sampled_from([1, 2, 4, 8])),
        pp=pp,
        vp=draw(st.sampled_from([1, 2])),
        cp=cp,
        micro_batch=draw(st.sampled_from([1, 2, 4])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        sharding=draw(st.sampled_from(["ddp", "zero1", "fsdp", "hsdp"])),
        ep=draw(st.sampled_from([1, 2, 8])),
        schedule=draw(st.sampled_from(schedules if pp > 1 else schedules[:1])),
        offload=draw(st.sampled_from(["none", "optimizer", "parameters", "activations", "nvme"])),
        context=draw(st.sampled_from(["ring", "all-to-all"])) if cp > 1 else "ring",
    )
    layouts = Layouts.of([layout])
    for change in (
        {"ep": 1},
        {"schedule": "1f1b"},
        {"offload": "none", "context": "ring"},
        {"tp": 1, "pp": 1, "vp": 1, "cp": 1, "micro_batch": 1, "gpus": 8},
    ):
        if refusals(job, layouts):
            layout = replace(layout, **change)
            layouts = Layouts.of([layout])
    stack = find_stack(draw(st.sampled_from(sorted(STACKS))))
    return of_job(job, find_cluster(f"{device}:{gpus}", FACTS), layouts, stack)


@given(batches())
def test_the_accounts_of_a_step_sum_to_it_and_none_is_negative(batch: StepInputs) -> None:
    step = account_step(batch, PARAMETERS)
    total = sum(step.accounts.values())
    assert np.allclose(total, step.seconds, rtol=1e-9)
    assert all((seconds >= 0).all() for seconds in step.accounts.values()), step.accounts


@given(
    batches(),
    st.sampled_from(
        ["tier_bytes_per_second", "hbm_bytes_per_second", "matmul_ceiling", "attention_peak"]
    ),
)
def test_less_bandwidth_or_rate_is_never_faster(batch: StepInputs, what: str) -> None:
    worse = replace(batch, **{what: 0.7 * getattr(batch, what)})
    before, after = (account_step(b, PARAMETERS).seconds for b in (batch, worse))
    assert (after >= before * (1 - 1e-12)).all()


@given(batches(), st.sampled_from(OVERHEADS))
def test_more_overhead_is_never_faster(batch: StepInputs, name: str) -> None:
    values = PARAMETERS.values.copy()
    values[PARAMETERS.names.index(name)] *= 1.5
    slower = account_step(batch, PARAMETERS.with_values(values)).seconds
    assert (slower >= account_step(batch, PARAMETERS).seconds * (1 - 1e-12)).all()


@given(batches())
def test_memory_grows_with_the_micro_batch_and_shrinks_with_recomputation(
    batch: StepInputs,
) -> None:
    held = memory(batch).bytes
    larger = memory(replace(batch, micro_batch=2 * batch.micro_batch)).bytes
    again = memory(
        replace(batch, recompute_full=np.ones(len(batch)), recompute_selective=np.zeros(len(batch)))
    ).bytes
    assert (larger >= held).all()
    assert (again <= held * (1 + 1e-12)).all()


def test_one_layout_or_many_is_the_same_arithmetic() -> None:
    layouts = [Layout(gpus=512, tp=tp, pp=pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4)]
    stack = find_stack("megatron")
    together = account_step(of_job(JOB, CLUSTER, Layouts.of(layouts), stack), PARAMETERS).seconds
    alone = [
        account_step(of_job(JOB, CLUSTER, Layouts.of([x]), stack), PARAMETERS).seconds[0]
        for x in layouts
    ]
    assert together.tolist() == alone
    rows = [of_job(JOB, CLUSTER, Layouts.of([x]), stack) for x in layouts]
    assert account_step(stack_rows(rows), PARAMETERS).seconds.tolist() == alone


def test_at_least_200_000_layouts_are_evaluated_in_a_cpu_second() -> None:
    layouts = Layouts.of([Layout(gpus=512, tp=4, pp=4)] * 20_000)
    best = 0.0
    for _ in range(3):
        began = time.process_time()
        account_step(of_job(JOB, CLUSTER, layouts, find_stack("megatron")), PARAMETERS)
        best = max(best, len(layouts) / (time.process_time() - began))
    assert best > 200_000


def test_a_prediction_is_a_balanced_ledger_with_a_range() -> None:
    found = predict(JOB, CLUSTER, Layout(gpus=512, tp=4, pp=4, vp=5))
    assert found.ledger.basis == "predicted"
    assert found.ledger.mfu is not None
    assert found.ledger.mfu_palm is not None
    assert 0.3 < found.ledger.mfu < found.ledger.mfu_palm < 0.7
    low, high = found.step_seconds_range
    assert low < found.step_seconds < high
    assert any("stack" in line for line in found.assumed)
    assert found.watts_per_gpu is not None
    assert 0.18 * 700 < found.watts_per_gpu < 700


def test_a_stated_stack_narrows_the_range() -> None:
    layout = Layout(gpus=512, tp=4, pp=4, vp=5)
    wide = predict(JOB, CLUSTER, layout).step_seconds_range
    narrow = predict(JOB, CLUSTER, layout, find_stack("megatron")).step_seconds_range
    assert wide[0] <= narrow[0] < narrow[1] < wide[1]


def test_hardware_that_nobody_measured_and_an_assumed_network_widen_the_range() -> None:
    layout = Layout(gpus=512, tp=4, pp=4, vp=5)
    stack = find_stack("megatron")
    known = replace(CLUSTER, assumed=())
    bare = replace(CLUSTER.accelerator, name="x1", matmul_flops={})
    ranges = [
        np.array(found.step_seconds_range) / found.step_seconds
        for found in (
            predict(JOB, cluster, layout, stack)
            for cluster in (known, CLUSTER, replace(known, accelerator=bare))
        )
    ]
    widths = [high / low for low, high in ranges]
    assert widths[0] < min(widths[1:])


def test_one_gpu_has_watts_near_its_limit() -> None:
    job = Job(model=FACTS.models["llama-3.2-1b"], global_batch=8, seq_len=4096)
    found = predict(job, find_cluster("h200-sxm:1", FACTS), Layout(gpus=1, micro_batch=4))
    assert found.watts_per_gpu == pytest.approx(690, abs=15)


def test_a_waiting_gpu_draws_less_and_not_nothing() -> None:
    busy = predict(JOB, CLUSTER, Layout(gpus=512, tp=8, pp=2))
    waiting = predict(JOB, CLUSTER, Layout(gpus=512, tp=8, pp=16))  # four micro-batches: a bubble
    assert busy.watts_per_gpu is not None
    assert waiting.watts_per_gpu is not None
    assert 0.18 * 700 < waiting.watts_per_gpu < busy.watts_per_gpu
    unknown = replace(CLUSTER, accelerator=replace(CLUSTER.accelerator, tdp_watts=None))
    found = predict(JOB, unknown, Layout(gpus=512, tp=8, pp=2))
    assert found.watts_per_gpu is None
    assert found.tokens_per_joule is None
    assert "power limit" in found.ledger.unavailable["joules"]


def test_tensor_parallelism_over_two_nodes_uses_all_their_nics() -> None:
    """A ring of 16 leaves each node of 8 through eight NICs, not through one."""
    batch = of_job(JOB, CLUSTER, Layouts.of([Layout(gpus=512, tp=16)]), find_stack("megatron"))
    speed = ring_speed(links(batch, PARAMETERS), batch.tp, np.ones(1))
    assert speed[0] == pytest.approx(8 * 50e9 * PARAMETERS["nic_efficiency"])


def test_an_oversubscribed_spine_slows_what_crosses_it_and_nothing_else(tmp_path: Path) -> None:
    def with_pods(lines: str) -> Cluster:
        path = tmp_path / "pods.toml"
        path.write_text(f'accelerator = "h100-sxm"\ngpus = 512\n{lines}')
        return find_cluster(str(path), FACTS)

    flat, narrow = with_pods(""), with_pods("pod = 64\noversubscription = 128\n")
    assert [tier.devices for tier in narrow.tiers] == [8, 64, 512]
    crossing = Layout(gpus=512, sharding="fsdp", recompute="full")
    inside = Layout(gpus=512, sharding="hsdp", replicas=8, recompute="full")  # shards in a pod
    lost = [
        predict(JOB, narrow, x).step_seconds / predict(JOB, flat, x).step_seconds
        for x in (crossing, inside)
    ]
    assert lost[0] > 1.5
    assert 1 < lost[1] < lost[0]  # only the sum over the eight pods crosses
    # a ring leaves a pod once for all its members, so it does not feel 8:1; neighbours' pairs do
    mild = with_pods("pod = 64\noversubscription = 8\n")
    assert predict(JOB, mild, crossing).step_seconds == predict(JOB, flat, crossing).step_seconds
    piped = Layout(gpus=512, tp=8, pp=4)
    assert predict(JOB, mild, piped).step_seconds > predict(JOB, flat, piped).step_seconds
    with pytest.raises(InputError, match="1 \\(none\\) or more"):
        with_pods("oversubscription = 0.5\n")
    with pytest.raises(InputError, match="grow from the inside out"):
        with_pods(
            "tiers = [{devices = 8, bytes_per_second = 1e9}, {devices = 4, "
            "bytes_per_second = 1e9}]\n"
        )


def test_a_job_inside_one_pod_does_not_feel_the_spine(tmp_path: Path) -> None:
    path = tmp_path / "pod.toml"
    times = []
    for narrow in (1, 8):
        path.write_text(
            f'accelerator = "h100-sxm"\ngpus = 64\npod = 128\noversubscription = {narrow}\n'
        )
        job = replace(JOB, global_batch=64)
        times.append(predict(job, find_cluster(str(path), FACTS), Layout(gpus=64)).step_seconds)
    assert times[0] == times[1]
    path.write_text('accelerator = "h100-sxm"\ngpus = 64\npod = 12\n')
    with pytest.raises(InputError, match="whole domains"):
        find_cluster(str(path), FACTS)


def test_the_slowest_hop_of_a_pipeline_decides() -> None:
    """Stages of four devices: the second hop leaves the node, whatever the first does."""
    job, cluster = replace(JOB, global_batch=64), find_cluster("h100-sxm:16", FACTS)
    stack = find_stack("megatron")
    inside = of_job(job, cluster, Layouts.of([Layout(gpus=16, tp=4, pp=4)]), stack)
    assert neighbour_speed(links(inside, PARAMETERS), inside.pp, np.full(1, 4.0))[0] < 50e9
    two = of_job(job, cluster, Layouts.of([Layout(gpus=16, tp=4, pp=2, cp=2)]), stack)
    assert neighbour_speed(links(two, PARAMETERS), np.full(1, 2.0), np.full(1, 4.0))[0] > 300e9


def test_fully_sharded_weights_move_more_than_a_split_optimizer_does() -> None:
    """Over a slow network: all weights twice and gradients once, embedding and head included."""
    slow = replace(CLUSTER, tiers=(CLUSTER.tiers[0], LinkTier(devices=512, bytes_per_second=1e8)))
    job = Job(model=FACTS.models["llama-3.2-1b"], global_batch=512, seq_len=512)
    fsdp, zero1 = (
        predict(job, slow, Layout(gpus=512, sharding=name)).step_seconds
        for name in ("fsdp", "zero1")
    )
    assert fsdp > zero1


def test_zero2_spreads_gradients_and_sends_them_after_every_micro_batch() -> None:
    job = replace(JOB, global_batch=4096)
    one, two = (
        predict(job, CLUSTER, Layout(gpus=512, tp=8, pp=2, sharding=name), find_stack("torchtitan"))
        for name in ("zero1", "zero2")
    )
    assert two.memory_by_owner["gradients"] < 0.1 * one.memory_by_owner["gradients"]
    assert two.step_seconds >= one.step_seconds


def test_full_precision_sends_twice_the_bytes() -> None:
    layout = Layout(gpus=512, tp=8, pp=2)
    half, full = (predict(replace(JOB, precision=p), CLUSTER, layout) for p in ("bf16", "fp32"))
    assert full.ledger.accounts["comm.tp"] > 1.7 * half.ledger.accounts["comm.tp"]


def test_optimizers_cost_what_they_move_and_compute() -> None:
    job = Job(model=FACTS.models["llama-3.1-8b"], global_batch=1, seq_len=4096)
    one = find_cluster("h200-sxm:1", FACTS)
    adam, eight, muon = (
        predict(replace(job, optimizer=name), one, Layout(gpus=1, sharding="ddp")).ledger.accounts[
            "optimizer"
        ]
        for name in ("adamw", "adam8bit", "muon")
    )
    assert eight < adam < muon


def test_what_no_run_tests_has_a_wider_range() -> None:
    stack = find_stack("megatron")
    layout = Layout(gpus=512, tp=4, pp=4)
    plain = predict(JOB, CLUSTER, layout, stack).step_seconds_range
    for job, cut in (
        (replace(JOB, training="lora"), layout),
        (JOB, replace(layout, offload="optimizer")),
        (JOB, replace(layout, schedule="zero-bubble")),
    ):
        found = predict(job, CLUSTER, cut, stack)
        low, high = found.step_seconds_range
        assert high / low > plain[1] / plain[0]


def test_offload_must_fit_into_the_host() -> None:
    job = Job(model=FACTS.models["llama-3.1-405b"], global_batch=16, seq_len=8192)
    layout = Layout(gpus=16, tp=4, sharding="fsdp", recompute="full", offload="parameters")
    cluster = find_cluster("h100-sxm:16", FACTS)
    found = predict(job, cluster, layout)
    assert found.memory_by_stage[0].host_bytes > (cluster.host_memory_bytes or 0)
    assert not found.fits
    assert predict(job, replace(cluster, host_memory_bytes=1e12), layout).fits


def test_slow_storage_starves_the_step_and_checkpoints_block_it() -> None:
    disk = replace(
        FACTS.storage[FACTS.storage.names[0]],
        read_bytes_per_second=1e9,
        write_bytes_per_second=1e9,
        per="system",
    )
    cluster = replace(CLUSTER, storage=disk)
    layout = Layout(gpus=512, tp=8, pp=2)
    plain = predict(JOB, cluster, layout)
    assert "input" not in plain.ledger.accounts  # 33 MB of tokens hide behind the step
    images = predict(replace(JOB, bytes_per_token=1e5), cluster, layout)
    assert images.step_seconds == pytest.approx(JOB.step_tokens * 1e5 / 1e9)
    saving = predict(replace(JOB, checkpoint_steps=10), cluster, layout)
    size = 14 * count_parameters(MODEL).total
    assert saving.step_seconds - plain.step_seconds == pytest.approx(size / 1e9 / 10)
    assert not any("cost nothing" in line for line in saving.assumed)


def test_full_precision_is_not_predicted_as_bf16() -> None:
    job = Job(model=FACTS.models["llama-3.2-1b"], global_batch=8, seq_len=2048)
    one = find_cluster("h200-sxm:1", FACTS)
    times = [
        predict(replace(job, precision=name), one, Layout(gpus=1, micro_batch=2)).step_seconds
        for name in ("bf16", "tf32", "fp32")
    ]
    assert 2 * times[0] < times[1] < times[2]


def test_what_does_not_fit_is_an_answer() -> None:
    found = predict(JOB, CLUSTER, Layout(gpus=512))
    assert not found.fits
    assert found.memory_bytes == pytest.approx(sum(found.memory_by_owner.values()))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["llama-3.1-70b", "--on", "a100-80-sxm:512", "--precision", "fp8"], "precision of a100"),
        (["llama-3.1-70b", "--on", "h100-sxm"], "write accelerator:count"),
        (["llama-3.1-70b", "--on", "h100-smx:8"], "nearest: h100-sxm"),
        (["llama-3.1-70b", "--on", "groq-lpu:8"], "not a training target"),
        (["llama-3.1-70b", "--on", "rtx-4090:512"], "nic_bytes_per_second"),
        (["llama-3.1-70b", "--on", "h100-sxm:512", "--tp", "3"], "impossible layout"),
        (["llama-3.1-70b", "--on", "absent.toml"], "No such file"),
        (["llama-3.1-70b", "--on", "h100-sxm:" + "9" * 30], "between 1 and"),
        (["llama-3.1-70b", "--on", "h100-sxm:512", "--pp", "9" * 30], "between 1 and"),
        (["llama-3.1-70b", "--on", "h100-sxm:512", "--stack", "megatrn"], "nearest: megatron"),
        (["llama-3.1-70b", "--on", "h100-sxm:512", "--stack", "nope"], "choose one of megatron, "),
        (["llama-3.1-70b", "--on", "a100-80-sxm:512", "--precision", "fp8"], "unknown precision"),
    ],
)
def test_what_cannot_be_predicted_is_one_line_and_exit_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["predict", *arguments, "--global-batch", "1024", "--seq-len", "8192"])
    message = capsys.readouterr().err
    assert (code, message.count("\n")) == (2, 1)
    assert words in message


def test_the_json_of_a_prediction_has_the_stable_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        run(
            [
                "predict",
                "llama-3.1-70b",
                "--on",
                "h100-sxm:512",
                "--global-batch",
                "1024",
                "--seq-len",
                "8192",
                "--tp",
                "4",
                "--pp",
                "4",
                "-o",
                "json",
            ]
        )
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert set(data) >= {
        "step_seconds",
        "step_seconds_range",
        "tokens_per_second_per_gpu",
        "mfu",
        "mfu_palm",
        "peak_flops",
        "peak_precision",
        "memory",
        "watts_per_gpu",
        "ledger",
        "layout",
        "assumed",
    }
    assert data["ledger"]["accounts"]["compute.model"] > 0
    assert len(data["memory"]["by_stage"]) == 4
    assert data["memory"]["bytes"] == max(stage["bytes"] for stage in data["memory"]["by_stage"])
    assert data["watts_per_gpu"] > 0


def test_a_cluster_file_replaces_the_catalogs_network(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('accelerator = "h100-sxm"\ngpus = 512\nnic_bytes_per_second = 5e9\n')
    slow = find_cluster(str(path), FACTS)
    layout = Layout(gpus=512, sharding="fsdp", recompute="full")
    assert [tier.bytes_per_second for tier in slow.tiers] == [450e9, 5e9]
    assert predict(JOB, slow, layout).step_seconds > predict(JOB, CLUSTER, layout).step_seconds
    path.write_text('accelerator = "h100-sxm"\ngpus = 512\nnic = 5e9\n')
    with pytest.raises(InputError, match="unknown field 'nic'"):
        find_cluster(str(path), FACTS)


def test_the_error_of_the_formulas_on_published_runs_does_not_grow() -> None:
    """Without evidence from other runs; rows that state their layout."""
    cases, skipped = read_cases(PACKAGED.read_text(), FACTS)
    assert len(cases) / (len(cases) + len(skipped)) > 0.99
    stated = [case for case in cases if not {"micro_batch", "layout"} & set(case.missing)]
    found = leave_out(stated, [], PARAMETERS)
    errors = np.exp(-found.log_ratios) - 1
    kinds = np.array([spread.kind for spread in found.spreads])
    limits = {"dense": 0.093, "long context": 0.06, "low precision": 0.091, "experts": 0.165}
    assert {kind: np.abs(errors[kinds == kind]).mean() < limits[kind] for kind in set(kinds)} == (
        dict.fromkeys(limits, True)
    )
    assert np.abs(errors).mean() < 0.096
    assert np.median(np.abs(errors)) < 0.076
    assert abs(errors.mean()) < 0.03


GOOD = {
    "row_id": "1", "source": "us", "year": "2024", "model_name": "x", "layers": "32",
    "hidden": "4096", "heads": "32", "vocab": "32000", "seq_len": "4096", "gpu": "h100",
    "num_gpus": "8", "gpus_per_node": "8", "inter_node_link": "400 Gb/s per node", "tp": "1",
    "pp": "1", "micro_batch": "1", "global_batch": "8", "framework": "torchtitan",
    "d_step_time_s": "1.0",
}  # fmt: skip


@given(
    st.sampled_from(sorted(GOOD)),
    st.sampled_from(["", "0", "-1", "nan", "inf", "1e400", "soon", "0.5", "9" * 40, "\x00"]),
)
@settings(deadline=None)
def test_a_hostile_row_is_predicted_or_says_why_not(column: str, value: str) -> None:
    row = GOOD | {column: value}
    text = ",".join(row) + "\n" + ",".join(row.values()) + "\n"
    cases, skipped = read_cases(text, FACTS)
    assert len(cases) + len(skipped) == 1
    if cases:
        assert np.isfinite(validate(cases, {}, PARAMETERS).summary.mape)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pipe.csv", "a pipe, not a file"),
        ("folder.csv", "a folder"),
        ("empty.csv", "empty.csv: empty"),
        ("absent.csv", "No such file"),
        ("wide.csv", "field larger than"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_line(
    name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "empty.csv").touch()
    (tmp_path / "wide.csv").write_text("a" * 1_000_000)
    assert run(["validate", "--cases", str(tmp_path / name)]) == 2
    assert words in capsys.readouterr().err


def test_our_own_h200_rows_are_predicted_without_fitting() -> None:
    path = Path(__file__).parents[1] / "benchmarks" / "data" / "h200" / "steps.csv"
    cases, _ = read_cases(path.read_text(), FACTS)
    fused = [case for case in cases if case.stack.attention != "unfused"]
    compiled = [case for case in fused if case.stack.kernels == "compiled"]
    errors = [
        np.abs(np.exp(-leave_out(some, [], PARAMETERS).log_ratios) - 1)
        for some in (compiled, fused)
    ]
    assert errors[0].mean() < 0.05
    assert np.median(errors[1]) < 0.06
    assert validate(compiled, {}, PARAMETERS).summary.mape < 0.06  # what others reached included


def test_every_field_of_a_batch_is_filled() -> None:
    batch = of_job(JOB, CLUSTER, Layouts.of([Layout(gpus=512, tp=4)]), find_stack("megatron"))
    for field in fields(batch):
        if field.name != "kinds":
            assert not np.isnan(getattr(batch, field.name)).any(), field.name
    for kind in batch.kinds:
        for field in fields(kind):
            assert not np.isnan(getattr(kind, field.name)).any(), field.name


def test_a_cluster_must_have_devices_and_a_network() -> None:
    with pytest.raises(InputError, match="0 devices"):
        replace(CLUSTER, gpus=0)
    assert isinstance(CLUSTER, Cluster)
