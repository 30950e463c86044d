"""Every claim has a check, every check an answer that its own numbers carry."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import click
import pytest

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.cli.app import COMMANDS, app
from computeflow.comparison.claims import CheckedClaim, Outcome, check_claims, load_claims, mfu_path
from computeflow.comparison.claims.claim import CHECKS, Bench, verdict_of_facts, verdict_of_ranges
from computeflow.comparison.claims.sizing import SIZES, check_size
from computeflow.errors import InputError, UnknownNameError
from computeflow.views.claims import claims_headline, claims_page, path_table

FACTS = load_catalog(())
PAGE = Path(__file__).parents[1] / "docs" / "claims.md"


BENCH = Bench(FACTS)


@cache
def answer(name: str) -> Outcome:
    return CHECKS[name](BENCH)


def test_every_claim_has_a_check_and_every_check_a_claim() -> None:
    assert set(CHECKS) == set(load_claims())


@pytest.mark.parametrize("name", load_claims())
def test_an_answer_has_a_figure_and_a_reason_and_stands_on_the_page(name: str) -> None:
    found, claim = answer(name), load_claims()[name]
    assert found.ours
    assert len(found.why) > 20
    assert found.numbers
    (line,) = [row for row in PAGE.read_text().splitlines() if row.startswith(f"| {name} |")]
    assert f"| {claim.text} | {found.verdict} |" in line
    if found.verdict == "cannot be checked":
        assert "would" in found.why


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("h100-fp16", "wrong base"),
        ("trillium-v5p", "wrong base"),
        ("mi300x-memory", "holds"),
        ("mi350-35x", "does not hold"),
        ("size-7b", "contradicts itself"),
        ("size-1t", "contradicts itself"),
        ("gflops-watt", "wrong unit"),
        ("kw-per-hour", "wrong unit"),
        ("days-utilisation", "contradicts itself"),
        ("allreduce-aware", "contradicts itself"),
        ("mixed-precision", "cannot be checked"),
        ("network-share", "does not hold"),
        ("hardware-share", "does not hold"),
        ("mfu-path", "holds in part"),
        ("tier-4", "holds"),
        ("h200-fp16", "wrong base"),
        ("b100-fp16", "wrong base"),
        ("b200-memory", "holds in part"),
        ("less-traffic", "holds in part"),
        ("two-teams", "holds in part"),
        ("hard-drives", "holds in part"),
        ("generations", "does not hold"),
        ("groq-500", "holds"),
        ("energy-price", "cannot be checked"),
        ("use-kubernetes-ray", "cannot be checked"),
        ("trainium-cheaper", "cannot be checked"),
        ("use-zero3", "does not hold"),
    ],
)
def test_verdicts_are_as_the_public_review_has_them(name: str, verdict: str) -> None:
    assert answer(name).verdict == verdict


@pytest.mark.parametrize(
    ("name", "number", "low", "high"),
    [
        ("h100-fp16", "dense", 989, 989),
        ("b200-fp16", "dense", 2250, 2250),
        ("trillium-v5p", "v5e", 4.6, 4.7),
        ("mi350-35x", "high", 3.8, 4.0),
        ("blackwell-2-3x", "low", 1.8, 2.6),
        ("size-7b", "optimal", 5.0e21, 6.5e21),
        ("size-70b", "optimal", 5.5e23, 7e23),
        ("size-1t", "optimal", 1.0e26, 1.4e26),
        ("deepseek-cost", "hours", 1.8e6, 4.0e6),
        ("allreduce-ms", "ring", 1.02, 1.04),
        ("allreduce-aware", "cap", 2.32, 2.33),
        ("days-utilisation", "spread", 0.44, 0.46),
        ("allreduce-share", "tuned", 0.01, 0.3),
        ("allreduce-share", "naive", 0.6, 0.99),
        ("gflops-watt", "middle", 300, 520),
        ("llama-table-5", "share", 0.353, 0.354),
        ("ft-hsdp", "minutes", 49, 51),
        ("spot", "middle", 0.5, 0.65),
        ("zero3-offload", "offload of the optimizer", 2.5, 5),
        ("data-waste", "text", 0, 0.01),
        ("torchtitan-compile", "compiled", 0.38, 0.40),
        ("groq-500", "fp16", 560, 575),
        ("use-infiniband", "least", 0.9, 0.95),
        ("less-traffic", "between random", -1e-9, 1e-9),
        ("less-traffic", "leaves random", 0.4, 0.8),
        ("hard-drives", "images", 2, 8),
        ("hard-drives", "text", 0, 0.01),
        ("two-teams", "remains", 0.2, 0.4),
        ("h100-price", "middle", 3, 4),
    ],
)
def test_our_figures_lie_where_independent_arithmetic_has_them(
    name: str, number: str, low: float, high: float
) -> None:
    assert low <= answer(name).numbers[number] <= high


def test_the_path_of_configurations_gains_most_by_leaving_tensor_parallelism() -> None:
    steps = mfu_path(FACTS)
    assert all(step.fits for step in steps)
    gains = {step.name: step.gain for step in steps[1:-1]}
    assert max(gains, key=lambda name: gains[name] or 0.0) == "tp 8 to tp 1, fsdp over 8"
    assert steps[0].mfu[0] < 0.2383 < steps[0].mfu[2]
    assert (
        steps[-3].mfu[2] < steps[-2].mfu[2] < 0.5020
    )  # other runs of plain PyTorch on B200 do not
    why = answer("mfu-path").why
    assert (
        "50.20 % is outside the range of the recipe and outside the range of the step after" in why
    )
    assert len(path_table(steps).rows) == len(steps)


def test_verdicts_follow_from_the_numbers() -> None:
    assert verdict_of_ranges((2.1, 2.5), (2, 3)) == "holds"
    assert verdict_of_ranges((1.8, 2.5), (2, 3)) == "holds in part"
    assert verdict_of_ranges((1.1, 1.9), (2, 3)) == "does not hold"
    assert [
        verdict_of_facts(*facts) for facts in ((True, True), (True, False), (False, False))
    ] == [
        "holds",
        "holds in part",
        "does not hold",
    ]


def test_a_size_whose_flops_fit_its_gpus_and_time_does_not_contradict_itself() -> None:
    claimed = SIZES["70b"]
    found = check_size(BENCH, claimed)
    fitting = replace(claimed, flops=found.numbers["optimal"])
    assert found.verdict == "contradicts itself"
    assert check_size(BENCH, fitting).verdict == "holds"


def test_a_change_by_scale_is_from_the_smallest_to_the_largest_size() -> None:
    numbers = answer("utilisation-fall").numbers
    assert numbers["change"] == numbers["last"] / numbers["first"] - 1
    assert f"{100 * numbers['change']:+.1f} %" in answer("utilisation-fall").why


def test_the_page_has_the_claims_and_the_verdicts_of_the_command() -> None:
    page = " ".join(PAGE.read_text().split())
    found = [
        CheckedClaim(claim=claim, outcome=answer(name)) for name, claim in load_claims().items()
    ]
    assert claims_headline(found) in page
    for one in found:
        assert f"| {one.claim.text} | {one.outcome.verdict} |" in page
        assert f"`{one.claim.command}` | {one.claim.citation} |" in page


def test_every_source_can_be_found_or_is_said_not_to_be() -> None:
    """Title, publisher, date and place; never "popular documents"."""
    claims = load_claims().values()
    for claim in claims:
        assert "popular" not in claim.citation and "a vendor" not in claim.citation
        assert claim.title or claim.source == "nobody found who signs it"
        if claim.title:
            assert claim.publisher in claim.citation and claim.source in claim.citation
            assert claim.published in claim.citation
    assert sum(bool(claim.title) for claim in claims) > 0.75 * len(claims)
    post = load_claims()["mfu-path"]
    assert post.publisher == "Lambda" and not post.says
    assert "states both percentages, but no hardware" in answer("mfu-path").why


def test_a_document_has_a_title_and_a_publisher() -> None:
    claim = load_claims()["spot"]
    with pytest.raises(InputError, match="a title and a publisher"):
        replace(claim, publisher="")
    with pytest.raises(InputError, match="published"):
        replace(claim, published="last year")


@pytest.mark.parametrize("name", load_claims())
def test_the_command_of_a_claim_exists(name: str) -> None:
    program, *words = shlex.split(load_claims()[name].command)
    assert program == "computeflow" and words[0] in COMMANDS
    context = click.Context(app)
    command = app.get_command(context, words[0])
    assert command is not None
    known = {flag for option in _options(command, words) for flag in option.opts}
    assert {word for word in words if word.startswith("--")} <= known


def _options(command: click.Command, words: list[str]) -> list[click.Parameter]:
    if isinstance(command, click.Group) and words[1] in command.commands:
        return [*command.params, *command.commands[words[1]].params]
    return command.params


def test_names_come_first_and_progress_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    check_claims(FACTS, ["spot", "h100-fp16"], progress=said.append)
    assert said == ["claim 1 of 2: h100-fp16", "claim 2 of 2: spot"]
    assert run(["claims", "spot", "h100-fp16"]) == 0
    shown = capsys.readouterr().out
    assert "\nname " in shown and "\nh100-fp16  " in shown
    assert "computeflow catalog offers --term spot" in shown and "DeployBase, 2025-06-03" in shown


def test_a_page_is_the_same_for_the_same_claims() -> None:
    found = check_claims(FACTS, ["h100-fp16", "spot"])
    assert claims_page(found, []) == claims_page(check_claims(FACTS, ["h100-fp16", "spot"]), [])


def test_one_claim_can_be_asked_for_and_an_unknown_one_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["claims", "spot", "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in data["claims"]] == ["spot"]
    assert run(["claims", "spott"]) == 2
    assert "spot" in capsys.readouterr().err
    with pytest.raises(UnknownNameError):
        check_claims(FACTS, ["nothing-like-it"])


def test_a_page_that_cannot_be_written_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["claims", "--page", str(tmp_path / "none" / "page.md")]) == 2
    assert "Traceback" not in capsys.readouterr().err
