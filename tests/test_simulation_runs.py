"""Published runs, the fault trace, bring-up and two sites: results and their inputs."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.errors import InputError
from computeflow.simulation import failure_models, inputs
from computeflow.simulation.bringup import BringUp, bring_up, tuning_rounds
from computeflow.simulation.fault_trace import DAYS, NODES, predict_second_half, stepfun_faults
from computeflow.simulation.run_validation import RunCheck, published_runs, validate_runs
from computeflow.simulation.site_scenarios import load_sites, tier_conditions
from computeflow.simulation.two_sites import SiteComparison, compare_sites, equal_where_assumed
from computeflow.units import format_usd
from computeflow.views.prose import wrap_prose
from computeflow.views.run_pages import lines_table, runs_page, sites_page


@cache
def validated() -> dict[str, RunCheck]:
    return {one.name: one for one in validate_runs(replicas=100)}


@cache
def compared() -> SiteComparison:
    return compare_sites(load_sites(), load_catalog(), draws=24, replicas=10)


def test_llama_3_reaches_90_percent_from_published_inputs_alone() -> None:
    one = validated()["llama-3-405b"]
    assert one.agrees
    assert one.from_published > 0.9 > one.simulated


def test_byterobust_lies_in_the_range_of_its_inputs() -> None:
    assert validated()["byterobust"].agrees


def test_most_of_what_opt_lost_rests_on_assumptions_and_that_is_said() -> None:
    one = validated()["opt-175b"]
    assert one.agrees
    assert one.assumed_share is not None
    assert one.assumed_share > 0.5


def test_a_constant_rate_of_nodes_gives_16384_gpus_and_misses_1024() -> None:
    assert validated()["rsc-16384"].simulated == pytest.approx(1.8, rel=0.02)
    assert validated()["rsc-1024"].simulated > 3 * 7.9
    assert not validated()["rsc-1024"].agrees


def test_the_rate_of_small_jobs_predicts_jobs_of_1024_gpus_within_a_fifth() -> None:
    assert validated()["rsc-1024-jobs"].simulated == pytest.approx(7.9, rel=0.2)


@pytest.mark.parametrize("name", ["llama-3-405b", "byterobust", "opt-175b"])
def test_every_assumed_input_that_matters_is_listed_with_its_sensitivity(name: str) -> None:
    case = next(one for one in published_runs() if one.name == name)
    listed = {row.name for row in validated()[name].inputs}
    assumed = {n for n, row in case.rows().items() if row.basis == "assumed" and row.low < row.high}
    assert "warm_seconds" in assumed
    assert listed & assumed
    assert all(row.source for row in validated()[name].inputs)


def test_the_page_of_published_runs_says_what_misses() -> None:
    page = runs_page(list(validated().values()), predict_second_half(), "the trace")
    assert "| rsc-1024 | MTBI h | 7.90 |" in page
    assert "NO" in page


@pytest.mark.shared
def test_the_packaged_fault_trace_is_the_published_one(data_folder: Path) -> None:
    with (data_folder / "cluster" / "stepfun_infinitehbd_faults.csv").open() as file:
        rows = list(csv.DictReader(file))
    starts = Counter(
        round(float(r["event_time_days"]), 4) for r in rows if r["event"] == "fault_start"
    )
    assert Counter(one.start_days for one in stepfun_faults()) == starts
    ends = sum(float(r["event_time_days"]) for r in rows if r["event"] == "fault_end")
    assert sum(one.end_days for one in stepfun_faults()) == pytest.approx(ends)


def test_the_second_half_of_the_trace_is_predicted_from_the_first_alone() -> None:
    known = stepfun_faults()
    first = [one for one in known if one.start_days < 174]
    moved = [replace(one, end_days=one.end_days + 1) for one in known if one.start_days >= 175]
    before = predict_second_half()
    after = predict_second_half([*first, *moved])
    assert before[0].predicted == pytest.approx(after[0].predicted, rel=0.02)
    assert before[0].agrees
    assert before[3].agrees is False  # repairs of the second half were faster, and nothing told so


GOOD = BringUp(
    defective=0.1,
    recall=0.8,
    burn_in_days=2,
    response_days=1,
    bad_again=0.1,
    gap=0.3,
    closed=0.5,
    round_days=3,
)


def mean_days(site: BringUp) -> float:
    found = bring_up(site, nodes=512, spares=4, target=0.95, replicas=400)
    return float(found.days_to_target_throughput.mean())


def test_bring_up_takes_rounds_of_repair_and_of_tuning_whichever_are_longer() -> None:
    assert tuning_rounds(GOOD, 0.95) == 3  # 0.3, 0.15, 0.075, 0.0375
    assert mean_days(replace(GOOD, response_days=0, burn_in_days=0)) == pytest.approx(9)
    assert mean_days(replace(GOOD, gap=0.0, defective=0.0)) == pytest.approx(2)


@given(st.floats(0, 0.3), st.floats(0, 10), st.floats(0, 0.9))
def test_worse_handover_slower_support_and_bad_spares_never_help(
    more: float, later: float, again: float
) -> None:
    worse = replace(GOOD, defective=GOOD.defective + more, response_days=1 + later)
    assert mean_days(worse) >= mean_days(GOOD) - 0.3  # other nodes are drawn
    tuned_late = replace(GOOD, round_days=GOOD.round_days + later)
    assert mean_days(tuned_late) >= mean_days(GOOD)


def test_bring_up_that_never_ends_is_refused() -> None:
    with pytest.raises(InputError, match="never"):
        replace(GOOD, recall=0)
    with pytest.raises(InputError, match="target"):
        tuning_rounds(GOOD, 1.0)


def test_a_tier_spreads_its_downtime_over_its_outages() -> None:
    for tier in load_catalog().tiers:
        found = tier_conditions(tier)
        down = found["outages_per_year"] * found["outage_seconds"]
        assert down == pytest.approx(tier.downtime_seconds_per_year)


def test_the_lines_of_two_sites_add_up_to_their_difference() -> None:
    found = compared()
    assert sum(line.difference for line in found.lines) == pytest.approx(found.total.difference)
    assert sum(line.usd for line in found.lines) == pytest.approx(found.total.usd)
    one, other = found.results
    assert one.finished == pytest.approx(1)
    assert other.finished == pytest.approx(1)


def test_the_conventional_site_is_later_in_days_to_target_and_in_all() -> None:
    one, other = compared().results
    assert one.bringup_days[1] < other.bringup_days[1]
    assert one.total_days[2] < other.total_days[0]
    assert one.step_seconds < other.step_seconds


def test_only_what_is_published_for_both_sites_differs_between_sites_made_alike() -> None:
    sites = load_sites()
    first, alike = equal_where_assumed(sites)
    second = sites.site[1]
    differ = {name for name in alike.conditions if alike.conditions[name] != first.conditions[name]}
    assert differ == {
        "load_seconds",
        "stall_seconds",
        "swap_seconds",
        "throttle",
        "timeout_seconds",
    }
    assert all(alike.conditions[name] == second.conditions[name] for name in differ)
    assert alike.bringup == first.bringup
    assert alike.failures == second.failures


def test_most_of_the_difference_of_the_sites_rests_on_assumptions() -> None:
    share = compared().assumed_share
    assert share is not None
    assert 0.65 < share < 0.75


def test_nodes_are_those_of_the_cluster_not_always_of_eight() -> None:
    sites = load_sites()
    story = replace(
        sites.story,
        accelerator="gb200",
        gpus=1152,
        tokens=2e11,
        model="llama-3.1-70b",
        global_batch=1152,
    )
    trays = compare_sites(replace(sites, story=story), load_catalog(), draws=8, replicas=5)
    spares = trays.results[1].spares[1]
    hundreds = replace(story, accelerator="h100-sxm")
    nodes = compare_sites(replace(sites, story=hundreds), load_catalog(), draws=8, replicas=5)
    assert spares > 1.3 * nodes.results[1].spares[1]  # 288 trays of 4 fail more than 144 nodes of 8


def test_equal_sites_do_not_differ() -> None:
    sites = load_sites()
    same = replace(sites, site=(sites.site[0], replace(sites.site[0], name="twin")))
    found = compare_sites(same, load_catalog(), draws=8, replicas=5)
    assert np.allclose([line.difference for line in found.lines], 0)


def test_the_page_of_two_sites_has_figures_and_says_what_is_assumed() -> None:
    page = sites_page(compared())
    assert page.count("```mermaid") == 2
    text = " ".join(page.split())
    assert "% of the difference in days would remain; the rest is assumed" in text


def test_wrapped_prose_keeps_its_words_and_no_line_becomes_markup() -> None:
    text = f"{'word ' * 19}- 5 # none 1. of | these > is + markup {'word ' * 30}end"
    page = wrap_prose(f"# Title\n\n{text}\n\n| {text} |\n")
    title, _, *prose, _, table, _ = page.split("\n")
    assert (title, table) == ("# Title", f"| {text} |")
    assert " ".join(prose) == text
    assert all(len(line) <= 100 and line[0].isalpha() for line in prose)


def test_dollars_of_a_small_job_have_digits_and_add_up() -> None:
    sites = load_sites()
    story = replace(sites.story, model="qwen3-8b", gpus=64, tokens=2e11, global_batch=256)
    found = compare_sites(replace(sites, story=story), load_catalog(), draws=8, replicas=5)
    assert format_usd(found.total.usd) in sites_page(found)
    assert 1e3 < found.total.usd < 1e6
    table = lines_table(found)
    assert "k$ +" in [column.header for column in table.columns]
    *lines, total = (float(row[5].replace(",", "")) for row in table.rows)
    assert sum(lines) == pytest.approx(total, abs=0.05 * (len(lines) + 1))
    assert total == pytest.approx(found.total.usd / 1e3, abs=0.5)


def test_a_file_of_sites_that_is_wrong_ends_in_one_line() -> None:
    with pytest.raises(InputError, match="not TOML"):
        load_sites("[")
    with pytest.raises(InputError, match="story"):
        load_sites("site = []")
    with pytest.raises(InputError, match="a file for `compare --sites`"):
        load_sites('[[site]]\nname = "our-hall"\naccelerator = "h100-sxm"\nusd_per_gpu_hour = 1.9')


def test_the_docs_list_every_failure_model_and_condition_as_it_is() -> None:
    page = (Path(__file__).parents[1] / "docs" / "simulate.md").read_text()
    for model in failure_models().values():
        assert f"| `{model.name}` | {1000 * model.per_node_day:.2f} | {model.source} |" in page
    for row in inputs().values():
        ends = f"{row.low:,.7g} to {row.high:,.7g}"
        assert f"| `{row.name}` | {row.value:,.7g} | {ends} | {row.basis} | {row.doc} |" in page


def test_the_docs_name_as_many_results_that_miss_as_the_page_has() -> None:
    docs = Path(__file__).parents[1] / "docs"
    assert (docs / "validate-runs.md").read_text().count("| NO |") == 3
    assert "Three results do not agree" in (docs / "simulate.md").read_text()


def test_the_rate_of_the_trace_is_its_faults_over_its_node_days() -> None:
    rate = len(stepfun_faults()) / (NODES * DAYS)
    assert failure_models()["stepfun"].per_node_day == pytest.approx(rate, abs=5e-6)


def test_repair_times_taken_are_those_of_the_trace() -> None:
    days = [one.days for one in stepfun_faults()]
    median = 24 * float(np.median(days))
    spread = (2 * np.log(np.mean(days) / np.median(days))) ** 0.5
    assert inputs()["repair_seconds"].value / 3600 == pytest.approx(median, rel=0.05)
    assert inputs()["repair_spread"].value == pytest.approx(spread, rel=0.05)
