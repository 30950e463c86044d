"""Measured figures replace generic ones, and only those; a site's rows give its factor."""

from __future__ import annotations

import copy
import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.cluster import find_cluster
from computeflow.cluster.collectives import ring_speed
from computeflow.errors import InputError
from computeflow.prediction import find_stack, load_parameters, predict
from computeflow.prediction.calibration.calibrate import calibrate, predicted_seconds
from computeflow.prediction.calibration.file import SCHEMA, load_calibration, read_calibration
from computeflow.prediction.calibration.measured_hardware import USUAL_LAUNCH_SECONDS, Calibration
from computeflow.prediction.calibration.ramps import fit_ramps
from computeflow.prediction.calibration.site import Prior, disagree, estimate
from computeflow.prediction.communication import links
from computeflow.prediction.evidence.seen_runs import range_kind
from computeflow.prediction.kernels import head_dim_rate, rates
from computeflow.prediction.published_runs import PACKAGED, MeasuredRun, read_cases
from computeflow.prediction.step import account_step, scale_step
from computeflow.prediction.step_inputs import StepInputs, of_job
from computeflow.prediction.validation import validate
from computeflow.prediction.validation.few_shot import few_shot
from computeflow.workload import Job, Layout, Layouts

FACTS = load_catalog()
PARAMETERS = load_parameters()
H200 = Path(__file__).parents[1] / "benchmarks" / "data" / "h200"
TEXT = (H200 / "calibration.json").read_text()
PROBE = json.loads(TEXT)
DEVICE = FACTS.accelerators["h200-sxm"]
JOB = Job(model=FACTS.models["llama-3.1-8b"], global_batch=64, seq_len=4096)
LAB = find_stack("lab")
CASES = read_cases(PACKAGED.read_text(), FACTS)[0]


def read(**changes: Any) -> Calibration:
    return read_calibration(json.dumps({**PROBE, **changes}), "probe.json", FACTS)


def batch(gpus: int = 64, job: Job = JOB) -> StepInputs:
    cluster = find_cluster(f"h200-sxm:{gpus}", FACTS)
    return of_job(job, cluster, Layouts.of([Layout(gpus=gpus)]), LAB)


def test_the_probes_own_file_gives_the_rates_that_it_measured() -> None:
    found = load_calibration(H200 / "calibration.json", FACTS)
    assert found.accelerators == ("h200-sxm",)
    assert found.matmul is not None
    assert found.matmul.flops == pytest.approx(685e12, rel=0.02)
    assert found.other_flops["fp8"] == pytest.approx(1.24e15, rel=0.02)
    assert [row.head_dim for row in found.attention] == [64, 128]
    got = rates(*found.apply(batch(), PARAMETERS, DEVICE))
    alone = PARAMETERS["in_step"]
    assert got.matmul[0] == pytest.approx(alone * found.matmul.flops)
    assert got.attention_forward[0] == pytest.approx(alone * found.attention[1].forward_flops)
    assert got.attention_backward[0] == pytest.approx(alone * found.attention[1].backward_flops)
    assert got.memory[0] == pytest.approx(PROBE["memory_bytes_per_second"]["copy"])
    assert got.clock[0] == pytest.approx(PROBE["sustained"]["mean_sm_hertz"] / 1.83e9)


def test_fp8_and_narrow_heads_have_their_own_rates() -> None:
    found = read()
    narrow = Job(model=FACTS.models["llama-3.2-1b"], global_batch=64, seq_len=4096, precision="fp8")
    got = rates(*found.apply(batch(job=narrow), PARAMETERS, DEVICE))
    assert got.linear[0] == pytest.approx(PARAMETERS["in_step"] * found.other_flops["fp8"])
    forward = PARAMETERS["in_step"] * found.attention[0].forward_flops
    assert got.attention_forward[0] * head_dim_rate(np.full(1, 64.0))[0] == pytest.approx(forward)


@pytest.mark.parametrize("precision", ["tf32", "fp32"])
def test_full_precision_is_taken_as_measured_or_in_relation_to_bf16(precision: str) -> None:
    b = batch(job=replace(JOB, precision=precision))
    found = read()
    got = rates(*found.apply(b, PARAMETERS, DEVICE)).matmul[0]
    assert got == pytest.approx(PARAMETERS["in_step"] * found.other_flops[precision])
    assert any(line.startswith(f"{precision} matmul") for line in found.calibrated(b, DEVICE))
    bf16, full = (
        rates(*replace(found, other_flops={}).apply(x, PARAMETERS, DEVICE)).matmul[0]
        for x in (batch(), b)
    )
    assert full / bf16 == pytest.approx(DEVICE.peak_flops(precision) / DEVICE.peak_flops("bf16"))


def test_the_fitted_ramps_explain_the_measured_matmuls() -> None:
    found = read().matmul
    assert found is not None
    errors = []
    for row in PROBE["gemm"]:
        if row["precision"] == "bf16":
            order = {"forward": "mnk", "input": "mkn", "weight": "nkm"}[row["part"]]
            m, n, k = (row[name] for name in order)
            rate = found.flops / (1 + found.depth_half / k) / (1 + found.output_half / (m * n))
            errors.append(abs(rate / row["flops"] - 1))
    assert np.mean(errors) < 0.03


@given(st.floats(50, 400), st.floats(5e4, 1e6), st.floats(1e13, 2e15))
def test_a_fit_finds_the_ramps_that_made_a_table(depth: float, output: float, top: float) -> None:
    inner, area = np.meshgrid([256.0, 1024.0, 4096.0, 16384.0], [1e5, 1e6, 1e7, 1e8])
    sizes = np.array([inner.ravel(), area.ravel()])
    made = top / (1 + depth / sizes[0]) / (1 + output / sizes[1])
    found, halves = fit_ramps(made, sizes, np.array([150.0, 0.25e6]))
    assert found == pytest.approx(top, rel=0.02)
    assert halves == pytest.approx([depth, output], rel=0.1)


def test_only_what_was_measured_is_replaced() -> None:
    b = batch()
    found = read_calibration(
        json.dumps({name: PROBE[name] for name in ("schema", "provenance", "launch_seconds")}),
        "probe.json",
        FACTS,
    )
    after, values = found.apply(b, PARAMETERS, DEVICE)
    assert after is b
    moved = [n for n in PARAMETERS.names if values[n] != PARAMETERS[n]]
    assert moved == ["host_forward"]
    assert values["host_forward"] == pytest.approx(
        PARAMETERS["host_forward"] * PROBE["launch_seconds"] / USUAL_LAUNCH_SECONDS
    )
    assert found.calibrated(b, DEVICE) == ("probe of NVIDIA H200, 2026-11-15", "launch 9.9 us")


def test_a_device_that_slows_down_in_the_soak_is_taken_at_its_settled_rate() -> None:
    cold, hot = read().matmul, read(sustained={"flops": 0.8 * 656.6e12}).matmul
    assert cold is not None
    assert hot is not None
    assert hot.flops == pytest.approx(0.8 * cold.flops, rel=0.01)


def fitted(ranks: int, bus: float, alpha: float = 0.0) -> dict[str, Any]:
    """A fitted collective of this bus bandwidth and latency."""
    return {
        "operation": "reduce-scatter",
        "ranks": ranks,
        "alpha_seconds": alpha,
        "bytes_per_second": bus * ranks / (ranks - 1),
    }


def test_collectives_set_the_tier_that_they_cross() -> None:
    b = batch(512)
    inside, outside = np.full(1, 8.0), np.full(1, 64.0)
    seconds = 8.4e-6 + 56 * 4.5e-6 + 7 * 20e-6  # 64 ranks of a ring, seven hops between nodes
    found = read(collectives=[fitted(8, 300e9), fitted(64, 200e9, alpha=seconds)])
    after, values = found.apply(b, PARAMETERS, DEVICE)
    assert ring_speed(links(after, values), inside, np.ones(1)) == pytest.approx(300e9)
    assert ring_speed(links(after, values), outside, np.ones(1)) == pytest.approx(200e9)
    assert values["network_hop"] == pytest.approx(20e-6)
    assert values["link_hop"] == PARAMETERS["link_hop"]
    alone, same = found.apply(batch(8), PARAMETERS, DEVICE)
    assert ring_speed(links(alone, same), inside, np.ones(1)) == pytest.approx(300e9)


def test_a_calibration_of_another_device_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="h200-sxm says nothing about h100-sxm"):
        predict(JOB, find_cluster("h100-sxm:8", FACTS), Layout(gpus=8), calibration=read())
    arguments = [
        "predict",
        "llama-3.1-8b",
        "--on",
        "h100-sxm:8",
        "--global-batch",
        "64",
        "--seq-len",
        "4096",
        "--calibration",
        str(H200 / "calibration.json"),
    ]
    assert run(arguments) == 2
    assert "says nothing about h100-sxm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TEXT[: len(TEXT) // 2], "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "schema 'None' is not"),
        ('{"schema": "computeflow.ledger/1"}', "schema 'computeflow.ledger/1' is not"),
        ('{"schema": "computeflow.probe/1"}', "a probe's report"),
        (json.dumps({"schema": SCHEMA}), "neither a probe's figures nor"),
        (json.dumps({**PROBE, "provenance": {"device": "cpu"}}), "no accelerator of the catalog"),
        (json.dumps({**PROBE, "provenance": {}}), "no accelerator of the catalog"),
        (json.dumps({**PROBE, "gem": []}), "unknown field 'gem'; nearest: gemm"),
        (json.dumps({**PROBE, "gemm": [{"m": 1}]}), "missing required field"),
        (json.dumps({**PROBE, "gemm": [{**PROBE["gemm"][0], "flops": 665.0}]}), "SI units"),
        (json.dumps({**PROBE, "gemm": [{**PROBE["gemm"][0], "flops": 2e15}]}), "above the dense"),
        (json.dumps({**PROBE, "gemm": [{**PROBE["gemm"][0], "part": "sideways"}]}), "'sideways'"),
        (json.dumps({**PROBE, "launch_seconds": -1}), "launch_seconds -1"),
        (json.dumps({**PROBE, "memory_bytes_per_second": {"copy": 4.2}}), "copy 4.2"),
        (json.dumps({**PROBE, "site": {"factor": 1.1}}), "missing required field"),
    ],
)
def test_a_bad_file_is_one_line_and_exit_2(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert run(["validate", "--calibration", str(path)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "bad.json" in message
    assert words in message


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every leaf of nested plain data; only the first two of long lists."""
    if isinstance(value, dict):
        return [p for key, part in value.items() for p in places(part, (*path, key))]
    if isinstance(value, list):
        return [p for key, part in enumerate(value[:2]) for p in places(part, (*path, key))]
    return [path]


@given(
    st.sampled_from(places(PROBE)),
    st.sampled_from([None, "", "x", 0, -1, 1e-300, 1e300, 2**70, [], {}, True, 0.5]),
)
def test_a_hostile_value_is_refused_or_harmless(place: tuple[Any, ...], value: Any) -> None:
    data = copy.deepcopy(PROBE)
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    try:
        found = read_calibration(json.dumps(data), "probe.json", FACTS)
    except InputError:
        return
    step = found.account_step(batch(), PARAMETERS, DEVICE)
    assert np.isfinite(step.seconds).all()
    assert all((seconds >= 0).all() for seconds in step.accounts.values())


@pytest.mark.parametrize("factor", [0.8, 1.3])
@pytest.mark.parametrize("gpus", [1, 8, 512])
def test_the_ledger_closes_with_a_factor(factor: float, gpus: int) -> None:
    plain = account_step(batch(gpus), PARAMETERS)
    scaled = scale_step(plain, factor)
    assert scaled.seconds == pytest.approx(factor * plain.seconds)
    assert sum(scaled.accounts.values()) == pytest.approx(scaled.seconds, rel=1e-9)
    assert scaled.accounts["compute.model"] == plain.accounts["compute.model"]


@given(st.floats(0.05, 20))
def test_any_factor_leaves_every_account_at_zero_or_more(factor: float) -> None:
    plain = account_step(batch(), PARAMETERS)
    scaled = scale_step(plain, factor)
    assert sum(scaled.accounts.values()) == pytest.approx(scaled.seconds, rel=1e-9)
    assert all((seconds >= 0).all() for seconds in scaled.accounts.values())
    assert (scaled.seconds >= plain.accounts["compute.model"] * (1 - 1e-12)).all()


def slowed(cases: list[MeasuredRun], ratios: list[float]) -> list[MeasuredRun]:
    """The cases as if they had been measured at these ratios to their prediction."""
    seconds = predicted_seconds(cases, PARAMETERS).tolist()
    pairs = zip(cases, seconds, ratios, strict=True)
    return [replace(c, measured_seconds=s * r) for c, s, r in pairs]


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=50)
def test_a_site_15_percent_slow_is_recovered_from_three_rows(seed: int) -> None:
    generator = np.random.default_rng(seed)
    noise = np.clip(generator.normal(0, 0.05, 3), -0.1, 0.1)
    site = calibrate(slowed(CASES[:3], (1.15 * np.exp(noise)).tolist()), {}, PARAMETERS)
    assert abs(math.log(site.factor / 1.15)) < 2.6 * site.deviation
    assert not site.disagree
    assert site.range[0] > 0.8


def test_one_outlier_hardly_moves_the_factor_and_is_named() -> None:
    clean = calibrate(slowed(CASES[:4], [1.1] * 4), {}, PARAMETERS)
    dirty = calibrate(slowed(CASES[:5], [1.1] * 4 + [3.0]), {}, PARAMETERS)
    assert dirty.factor == pytest.approx(clean.factor, rel=0.05)
    assert dirty.rows[-1].weight < 0.2 < 0.9 < dirty.rows[0].weight
    assert dirty.disagree
    assert dirty.range[1] > clean.range[1]


def test_one_far_row_is_an_outlier_and_three_are_a_site() -> None:
    assert estimate(np.full(1, 0.6)).mean < 0.15
    assert estimate(np.full(3, 0.6)).mean > 0.5


def test_rows_with_one_factor_seldom_disagree() -> None:
    generator = np.random.default_rng(0)
    sets = [generator.normal(0.2, Prior().within, 5) for _ in range(1000)]
    assert np.mean([disagree(ratios) for ratios in sets]) == pytest.approx(0.01, abs=0.01)
    assert not disagree(np.zeros(1))


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=8))
def test_the_factor_lies_between_the_rows_and_one_and_more_rows_make_it_firmer(
    ratios: list[float],
) -> None:
    found = estimate(np.array(ratios))
    assert min(*ratios, 0.0) - 1e-9 <= found.mean <= max(*ratios, 0.0) + 1e-9
    assert estimate(np.array(ratios * 3)).deviation < found.deviation < Prior().between * 2


def table(tmp_path: Path, rows: list[int], slow: float = 1.0, **columns: str) -> Path:
    """Some of our H200's measured steps, as a user would write them down."""
    lines = list(csv.DictReader((H200 / "steps.csv").open()))
    text = io.StringIO()
    writer = csv.DictWriter(text, lines[0])
    writer.writeheader()
    for number in rows:
        seconds = str(slow * float(lines[number]["d_step_time_s"]))
        writer.writerow({**lines[number], "d_step_time_s": seconds, **columns})
    path = tmp_path / "rows.csv"
    path.write_text(text.getvalue())
    return path


PREDICT = [
    "predict",
    "llama-3.1-8b",
    "--on",
    "h200-sxm:1",
    "--global-batch",
    "8",
    "--seq-len",
    "4096",
    "-o",
    "json",
]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(list(arguments)) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_a_calibrated_prediction_is_slower_narrower_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, to = table(tmp_path, [22, 31, 33], slow=1.3), str(tmp_path / "site.json")
    site = answer(capsys, "calibrate", str(rows), "--to", to, "-o", "json")["site"]
    assert site["factor"] > 1.15
    assert [row["row_id"] for row in site["rows"]] == [
        "own-h200-023",
        "own-h200-032",
        "own-h200-034",
    ]
    before = answer(capsys, *PREDICT, "--stack", "lab")
    after = answer(capsys, *PREDICT, "--stack", "lab", "--calibration", to)
    assert after["step_seconds"] == pytest.approx(site["factor"] * before["step_seconds"])
    booked = sum(after["ledger"]["accounts"].values())
    assert booked == pytest.approx(after["step_seconds"], rel=1e-9)
    low, high = after["step_seconds_range"]
    assert high / low == pytest.approx(site["range"][1] / site["range"][0])
    assert "site factor" in after["calibrated"][-1]
    assert before["calibrated"] == []


def test_a_stack_that_the_rows_do_not_speak_of_keeps_the_generic_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = str(tmp_path / "site.json")
    assert run(["calibrate", str(table(tmp_path, [22, 31, 33])), "--to", to]) == 0
    capsys.readouterr()
    for stack in (["--stack", "megatron"], []):
        before = answer(capsys, *PREDICT, *stack)
        after = answer(capsys, *PREDICT, *stack, "--calibration", to)
        widths = [data["step_seconds_range"][1] / data["step_seconds"] for data in (before, after)]
        assert widths[0] == pytest.approx(widths[1])


def test_calibrating_again_replaces_the_factor_and_keeps_the_probe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, to = str(table(tmp_path, [22, 31, 33], slow=1.3)), str(tmp_path / "site.json")
    probe = str(H200 / "calibration.json")
    once = answer(capsys, "calibrate", rows, "--calibration", probe, "--to", to, "-o", "json")
    twice = answer(capsys, "calibrate", rows, "--calibration", to, "-o", "json")
    assert twice["site"] == once["site"]
    assert once["gemm"] == PROBE["gemm"]
    assert load_calibration(Path(to), FACTS).site is not None


def test_rows_that_cannot_be_used_are_listed_and_none_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = table(tmp_path, [22]).read_text(), table(tmp_path, [23], kind="dpo")
    lines = bad.read_text().splitlines()
    assert run(["calibrate", str(bad)]) == 2
    assert "no row can be used: kind 'dpo': several models" in capsys.readouterr().err
    bad.write_text(good + lines[1] + "\n")
    site = answer(capsys, "calibrate", str(bad), "-o", "json")["site"]
    assert site["skipped"] == {
        "own-h200-024": "kind 'dpo': several models in a step are not predicted"
    }
    assert run(["calibrate", str(bad)]) == 0
    assert "Not used: 1 (kind 'dpo': several models" in capsys.readouterr().out
    elsewhere = str(table(tmp_path, [22], gpu="h100"))
    assert run(["calibrate", elsewhere, "--calibration", str(H200 / "calibration.json")]) == 2
    assert "on h100-sxm, not h200-sxm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.csv"], "No such file"),
        (["rows.csv", "--to", "."], "is a folder"),
        (["rows.csv", "--to", "absent/site.json"], "there is no folder"),
        (["rows.csv", "--calibration", "absent.json"], "No such file"),
    ],
)
def test_files_that_cannot_be_read_or_written_are_one_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path, [22])
    assert run(["calibrate", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert words in message


def test_rows_in_milliseconds_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate", str(table(tmp_path, [22, 31, 33], slow=1000.0))]) == 2
    assert "are the times seconds?" in capsys.readouterr().err


def test_validate_skips_the_rows_of_other_devices() -> None:
    result = validate(CASES, {}, PARAMETERS, read())
    assert len(result.rows) + len(result.skipped) == len(CASES)
    assert "on h100-sxm, not h200-sxm" in result.skipped.values()


def test_our_own_h200_is_predicted_as_well_with_its_calibration_as_without() -> None:
    cases, _ = read_cases((H200 / "steps.csv").read_text(), FACTS)
    fused = [case for case in cases if case.stack.attention != "unfused"]
    compiled = [case for case in fused if case.stack.kernels == "compiled"]
    assert validate(compiled, {}, PARAMETERS, read()).summary.mape < 0.052
    assert validate(fused, {}, PARAMETERS, read()).summary.median_ape < 0.06


def test_three_rows_of_a_source_help_to_predict_its_others() -> None:
    stated = [case for case in CASES if not {"micro_batch", "layout"} & set(case.missing)]
    dense = [case for case in stated if range_kind(case.job) != "experts"]
    by_count = {found.rows: found for found in few_shot(dense, PARAMETERS, draws=100)}
    assert by_count[3].mape < 0.09
    assert by_count[3].mape < by_count[1].mape < by_count[0].mape
    assert 0.75 < by_count[3].in_range < 0.88
    assert by_count[3].width < by_count[0].width
    again = few_shot(dense, PARAMETERS, draws=100)
    assert again == list(by_count.values())


def test_the_probe_writes_what_the_predictor_reads() -> None:
    pytest.importorskip("torch")
    from computeflow.lab.probe import calibration

    assert calibration.SCHEMA == SCHEMA
