"""One answer: rent or build, where, for how much, and what would change it."""

from __future__ import annotations

import datetime
import json
import math
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import computeflow as cf
from computeflow.answers.decisions import DecideAnswer
from computeflow.catalog import Catalog, find_model, load_catalog
from computeflow.cli import run
from computeflow.comparison.advice import advise, is_networked
from computeflow.comparison.choices import choose, paid, usd_range
from computeflow.comparison.comparisons import compare
from computeflow.comparison.offers import Offering, contract_offerings, offerings
from computeflow.comparison.planner import Planner, usual_job
from computeflow.comparison.providers import load_terms
from computeflow.comparison.request import ComparisonRequest
from computeflow.comparison.results import Result
from computeflow.simulation import simulate_many
from computeflow.units import format_usd
from computeflow.views.choices import choice_headline, options_figure, options_table

TODAY = datetime.date(2026, 11, 15)
DAY = 86400.0
FEW: dict[str, Any] = {"providers": ["crusoe", "nebius"], "devices": ["h100-sxm"]}
COMMAND = ["decide", "llama-3.1-70b", "--tokens", "1T", "--today", "2026-11-15"]
SMALL = ["--providers", "crusoe,nebius", "--devices", "h100-sxm", "--simulations", "10"]
pytestmark = pytest.mark.usefixtures("kept_plans")


@cache
def catalog() -> Catalog:
    return load_catalog()


def ask(days: float = 60.0, budget: float | None = None) -> ComparisonRequest:
    return ComparisonRequest(
        job=usual_job(find_model(catalog(), "llama-3.1-8b")),
        tokens=1e11,
        deadline_seconds=days * DAY,
        budget_usd=budget,
        today=TODAY,
        replicas=5,
        most_gpus=1024,
    )


@cache
def few() -> tuple[Offering, ...]:
    """Two networks, two devices, several products, and a contract."""
    found = offerings(
        catalog(),
        load_terms(),
        providers=["crusoe", "gcp"],
        accelerators=["h100-sxm", "a100-80-sxm"],
        assumed_nic=None,
    )
    one = {(o.provider, o.instance): o for o in found}
    return (*one.values(), *contract_offerings(catalog(), ["h100-sxm"]))


@cache
def planner() -> Planner:
    return Planner(ask().job, catalog())


@cache
def decided() -> DecideAnswer:
    return cf.decide(
        "llama-3.1-70b", tokens="1T", deadline="60d", simulations=10, today=TODAY, **FEW
    )


def simulated(option: Result, on: str) -> dict[str, Any]:
    """`simulate` on the same plan, through the command line's own function."""
    layout, job, ran = option.plan.layout, option.plan.prediction.job, option.simulation.run
    names = ("tp", "pp", "vp", "cp", "ep", "micro_batch", "recompute", "sharding", "replicas")
    assert option.best is not None
    answer = cf.simulate(
        job.model.name,
        on=on,
        global_batch=job.global_batch,
        seq_len=job.seq_len,
        **{name: getattr(layout, name) for name in names},
        tokens=option.tokens,
        spares=ran.policy.spares.nodes,
        set={"repair_seconds": "1800s", "repair_spread": 1.0},
        simulations=option.simulation.replicas,
        seed=option.simulation.seed,
        price=option.best.usd_per_device_hour,
    )
    return answer.to_dict()


def test_the_answer_agrees_with_simulate_to_the_digit(capsys: pytest.CaptureFixture[str]) -> None:
    answer = decided()
    best, command = answer.choice.options[0], answer.command
    assert command is not None
    program, *words = shlex.split(command)
    assert program == "computeflow" and run([*words, "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["seconds"]["p50"], said["seconds"]["p90"]) == best.seconds
    assert said["usd"]["mean"] == pytest.approx(paid(best), rel=1e-12)


def test_a_comparison_agrees_with_simulate_on_another_network(tmp_path: Path) -> None:
    compared = compare(ask(20.0), few(), catalog(), planner=planner())
    slow = next(r for r in compared.results if r.offering.instance == "a3-highgpu-8g")
    cost = slow.cost("on-demand")
    assert cost is not None and cost.run is not None
    option = replace(slow, costs=(cost,), run=cost.run)
    file = tmp_path / "cluster.toml"
    file.write_text(
        f'accelerator = "h100-sxm"\ngpus = {option.gpus}\ndomain = 8\n'
        f"nic_bytes_per_second = {slow.offering.shape.nic_bytes_per_second}\n"
    )
    said = simulated(option, str(file))
    assert (said["seconds"]["p50"], said["seconds"]["p90"]) == option.seconds
    assert said["usd"]["mean"] == pytest.approx(cost.usd, rel=1e-12)


def test_decide_and_compare_recommend_the_same_offer() -> None:
    compared = compare(ask(20.0), few(), catalog(), planner=planner())
    advice = advise(compared, "production")
    chosen = choose(ask(20.0), few(), catalog(), planner=planner()).options[0]
    assert advice.result is not None and advice.cost is not None
    assert chosen.offering.name == advice.result.offering.name
    assert paid(chosen) == advice.cost.usd


@cache
def cost_of(days: float, budget: float | None) -> float:
    """Dollars of the answer, infinite where there is none."""
    choice = choose(ask(days, budget), few(), catalog(), planner=planner(), explain=False)
    return math.inf if choice.usd is None else choice.usd


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    days=st.floats(0.5, 400),
    later=st.floats(1.0, 4.0),
    budget=st.floats(3e3, 1e5),
    more=st.floats(1.0, 4.0),
)
def test_a_looser_deadline_or_a_larger_budget_never_gives_a_worse_answer(
    days: float, later: float, budget: float, more: float
) -> None:
    assert cost_of(days * later, None) <= cost_of(days, None)
    assert cost_of(days, budget * more) <= cost_of(days, budget)
    assert cost_of(days * later, budget * more) <= cost_of(days, budget)


def test_the_answer_comes_first_with_product_days_dollars_range_and_evidence() -> None:
    answer = decided()
    best = answer.choice.options[0]
    low, high = usd_range(best)
    assert low < paid(best) < high and answer.choice.usd_range == (low, high)
    assert answer.headline.startswith(f"Rent: {best.offering.name}, {best.gpus:,} h100-sxm, on-")
    assert "It rests on 7 measured runs of megatron on h100-sxm." in answer.headline
    titles = [table.title for table in answer.tables()]
    assert titles[:3] == [
        "Ways to run it",
        "Largest risks of renting it, each alone",
        "What would change the answer",
    ]
    assert len(answer.tables()[1].rows) == 3


def test_flips_are_where_they_are_said_to_be() -> None:
    choice = decided().choice
    first, flips = choice.options[0], {flip.what: flip for flip in choice.flips}
    price, deadline = flips["price"], flips["deadline"]
    assert price.then is not None and price.at is not None and first.best is not None
    assert paid(first) * price.at / price.now == pytest.approx(paid(price.then))
    assert deadline.at == first.best.p90_seconds
    assert deadline.then is not None and deadline.then.seconds[1] < first.seconds[1]
    assert set(flips) == {"price", "deadline", "failure rate"}
    dollars = [risk.usd for risk in choice.risks]
    assert dollars == sorted(dollars, reverse=True) and dollars[-1] > 0


def test_a_failure_rate_that_makes_the_run_late_is_found() -> None:
    """A deadline just above the run's P90 is missed at a little more than the assumed rate."""
    request = ask(20.0)
    (offer, *_) = few()
    roomy = choose(request, [offer], catalog(), planner=planner()).options[0]
    tight = replace(request, deadline_seconds=1.002 * roomy.seconds[1])
    choice = choose(tight, [offer], catalog(), planner=planner())
    (flip,) = (flip for flip in choice.flips if flip.what == "failure rate")
    assert flip.at is not None and flip.at > flip.now


def test_a_year_of_contract_is_paid_whole() -> None:
    choice = choose(ask(20.0), few(), catalog(), planner=planner(), explain=False)
    (contract,) = (o for o in choice.options if o.offering.provider == "contract")
    assert contract.best is not None
    hours = 365.25 * 24 * contract.simulation.run.allocated_gpus
    assert paid(contract) == pytest.approx(hours * contract.best.usd_per_device_hour, rel=1e-3)


def test_spot_is_shown_as_compare_has_it_and_is_not_the_answer() -> None:
    choice = choose(ask(20.0), few(), catalog(), planner=planner())
    assert choice.spot is not None and choice.spot.result.best is not None
    assert all(option.best and option.best.term != "spot" for option in choice.options)
    compared = compare(ask(20.0), few(), catalog(), planner=planner())
    spot = [
        cost
        for result in compared.meeting
        for cost in result.costs
        if cost.term == "spot"
        and cost.meets
        and not cost.doubtful
        and is_networked(result.offering)
    ]
    assert paid(choice.spot.result) == min(cost.usd for cost in spot)
    (row,) = (row for row in options_table(choice, 3).rows if row[0] == "spot")
    assert choice.spot.result.offering.name in row[1]
    assert any("can be preempted" in note for note in options_table(choice, 3).notes)


def test_spot_pays_up_to_the_preemptions_that_are_said() -> None:
    """A deadline a little after the run's own P90 is missed when machines are taken back more often."""
    roomy = choose(ask(20.0), few(), catalog(), planner=planner())
    assert roomy.spot is not None
    days = 1.05 * roomy.spot.result.seconds[1] / DAY
    spot = choose(ask(days), few(), catalog(), planner=planner()).spot
    assert spot is not None and spot.pays_to is not None
    assert spot.pays_to > spot.preemptions_per_node_day
    run = spot.result.simulation.run
    conditions = replace(run.conditions, preemptions_per_node_day=spot.pays_to)
    (late,) = simulate_many([replace(run, conditions=conditions)], replicas=5, seed=0)
    assert late.seconds.p90 > days * DAY


def test_where_regions_cost_the_same_compare_and_decide_name_one_of_them() -> None:
    offer = next(o for o in few() if o.provider == "crusoe" and o.accelerator == "h100-sxm")
    regions = [replace(offer, region=region) for region in ("west", "east", "north")]
    spot = [price for price in offer.prices if price.term == "spot"]
    steady = [price for price in offer.prices if price.term != "spot"]
    assert spot and steady
    regions[0] = replace(regions[0], prices=(*steady, *spot))
    regions[1:] = [replace(region, prices=(*steady,)) for region in regions[1:]]
    choice = choose(ask(60.0), regions, catalog(), planner=planner(), explain=False)
    compared = compare(ask(60.0), regions, catalog(), planner=planner())
    advised = advise(compared, "production").result
    assert compared.results[0].offering.region == "west" and choice.rented is not None
    assert advised is not None and advised.offering == replace(
        offer, region="east", prices=(*steady,)
    )
    assert choice.rented.offering == advised.offering
    assert "the same in 2 other regions" in choice_headline(choice)


def test_every_bar_of_the_figure_has_its_own_name_and_its_cost() -> None:
    choice = decided().choice
    figure = options_figure(choice, 3)
    bars, values = figure.data
    assert len(set(bars["y"])) == len(bars["y"]) == len(values["text"])
    assert values["text"][0].strip() == format_usd(choice.usd)
    assert "the line on it its range" in figure.summary


def unproven_first(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """As if no run of the device had been measured."""
    from computeflow.prediction.evidence.rests_on import RunEvidence

    monkeypatch.setattr(RunEvidence, "proven", property(lambda self: self.device != device))


def test_a_device_without_a_measured_run_is_shown_marked_and_not_recommended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = choose(ask(20.0), few(), catalog(), planner=planner(), explain=False)
    device = first.options[0].offering.accelerator
    unproven_first(monkeypatch, device)
    left = choose(ask(20.0), few(), catalog(), planner=planner(), explain=False)
    assert device not in {option.offering.accelerator for option in left.options}
    assert left.unproven and {o.offering.accelerator for o in left.unproven} == {device}
    asked = choose(ask(20.0), few(), catalog(), planner=planner(), unproven=True, explain=False)
    assert paid(asked.options[0]) == paid(first.options[0])
    compared = compare(ask(20.0), few(), catalog(), planner=planner())
    advised = advise(compared, "production").result
    assert advised is not None and advised.offering.accelerator != device
    from computeflow.views.comparisons import runs_table

    (caution,) = (
        note
        for note in runs_table(compared, compared.results).notes
        if note.endswith("of which no run was measured")
    )
    marked = re.findall(r"\d+", caution)
    for number, result in enumerate(compared.results, start=1):
        assert (str(number) in marked) == (result.offering.accelerator == device)


def test_nothing_in_budget_ends_with_3_and_names_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*COMMAND, *SMALL, "--budget", "1000"]) == 3
    said = capsys.readouterr().out
    assert said.startswith("No non-preemptible capacity runs the job within 60 d and $1,000.")
    assert "Nearest:\nnebius" in said


def test_decide_prints_json_and_writes_its_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "decision.html"
    assert run([*COMMAND, *SMALL, "-o", "json", "--html", str(page)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "computeflow.decision/1" and data["way"] == "rent"
    assert data["options"][0]["evidence"]["same_device_and_stack"] == 7
    assert data["usd_range"][0] < data["usd"] < data["usd_range"][1]
    assert "What would change the answer" in page.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--countries", "atlantis"], "atlantis"),
        (["--providers", "nope"], "nope"),
        (["--deadline", "0d"], "deadline"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*COMMAND, *words]) == 2
    assert said in capsys.readouterr().err
