"""The report of an audit: its figures carry the ledger's numbers, and it reads on any screen."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.diagnosis.diagnosis import Diagnosis, Expected, SkippedRule
from computeflow.errors import InputError
from computeflow.ledger import ACCOUNTS, ClaimedSeconds, Evidence, Finding, Remedy, describe, gaps
from computeflow.telemetry.kineto.kineto_reader import read_trace
from computeflow.telemetry.trace_audit import audit
from computeflow.telemetry.traces.job_ledgers import RankLedger, TracedJob
from computeflow.telemetry.traces.rank_measurements import TraceOptions
from computeflow.telemetry.traces.step_timelines import MAX_SEGMENTS, StepTimeline, step_timeline
from computeflow.units import format_seconds, format_share
from computeflow.views import Figure, Table
from computeflow.views.audit_figures import audit_parts, head_table
from computeflow.views.cards import Cards, evidence_text, finding_cards, ranks_text
from computeflow.views.flows import flow_figure
from computeflow.views.heatmaps import MAX_RANKS, ranks_figure
from computeflow.views.html_report import Part, report_html
from computeflow.views.timelines import timeline_figure
from kineto_maker import Maker, data_parallel_job
from test_figures import Page, in_a_browser

FACTS = load_catalog()
TRACES = Path(__file__).parent / "data" / "h200_traces"
INDEX: dict[str, Any] = json.loads((TRACES / "index.json").read_text())
HOSTILE = (
    '</script><img src=x onerror="window.ran=1"><a href="javascript:ran=1">$figures</a><b>&amp;</b>'
)
NOTHING = Diagnosis(findings=(), abstained=())
ABSTAINED = (SkippedRule(rule="clock-throttle", missing="readings of the device's clock"),)


@cache
def own(name: str) -> TracedJob:
    return audit([TRACES / f"{name}.json.gz"], FACTS, cache=False)


@cache
def own_timeline(name: str) -> StepTimeline:
    return step_timeline(read_trace(TRACES / f"{name}.json.gz"), TraceOptions())


def finding(account: str, seconds: float, text: str = "") -> Finding:
    return Finding(
        rule="input-stall",
        title=f"The device waits {text}",
        account=account,
        claims=(ClaimedSeconds(account=account, gpu_seconds=seconds),),
        confidence=0.97,
        ranks=(0, 1, 2, 7),
        evidence=(
            Evidence(
                what=f"idle {text}", where=f"rank 0 {text}", value=0.105, unit="s", expected=0.0
            ),
            Evidence(what="no workers", where=text),
        ),
        remedy=Remedy(
            change=f"Read ahead {text}",
            command=f"DataLoader(num_workers=8) {text}",
            gain_low=0.5 * seconds,
            gain_gpu_seconds=0.8 * seconds,
            gain_high=seconds,
            risk="memory",
        ),
    )


def faulty(text: str = "") -> tuple[TracedJob, Diagnosis]:
    """A recording with a slow loader against one without; the finding is written by hand."""
    found = own("slow-loader-0.03")
    usual = own("healthy-base").job.ledger
    measured = found.job.ledger
    ledger = usual.scale(measured.booked("compute.model") / usual.booked("compute.model"))
    return found, Diagnosis(
        findings=(finding("input", 0.2, text), finding("host", 0.003, text)),
        abstained=(*ABSTAINED, SkippedRule(rule="hang", missing=text)),
        expected=Expected(ledger=ledger, source=f"healthy-base {text}", assumed=("same batch",)),
        gaps=tuple(gaps(measured, ledger)),
        combined_gain=0.19,
        notes=(text,),
    )


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[TracedJob, StepTimeline]:
    """Sixty-four ranks, one slow, one with more work."""
    files = data_parallel_job(tmp_path_factory.mktemp("job"), 64, slow={17: 1.4}, longer={5: 1.1})
    return audit(files, FACTS, cache=False), step_timeline(read_trace(files[0]), TraceOptions())


Cases = dict[str, list[Part]]


@pytest.fixture(scope="module")
def cases(job: tuple[TracedJob, StepTimeline]) -> Cases:
    found, timeline = job
    waits = found.job.ledger.booked("straggler")
    slow = Diagnosis(findings=(finding("straggler", waits),), abstained=(), combined_gain=waits)
    healthy = Diagnosis(findings=(), abstained=ABSTAINED, expected_reason="no plan was given")
    return {
        "healthy": audit_parts(
            own("healthy-base"), healthy, own_timeline("healthy-base"), price=None
        ),
        "faulty": audit_parts(*faulty(), own_timeline("slow-loader-0.03"), price=2.5),
        "64 ranks": audit_parts(found, slow, timeline, price=2.5),
    }


def titles(parts: list[Part]) -> list[str]:
    return [part.title for part in parts]


def cells(table: Table) -> dict[str, tuple[str, ...]]:
    """Rows by their first cell that is not empty."""
    return {next(filter(None, row)): row for row in table.rows}


def test_the_parts_come_in_the_order_of_the_questions(cases: Cases) -> None:
    starts = [
        "What was audited",
        "2 findings",
        "From contracted GPU time",
        "Where the time of",
        "Measured against expected",
        "Step 2 of rank 0",
        "Unavailable accounts",
        "Skipped rules: missing signal",
        "The expectation",
        "Left out and noted",
    ]
    found = titles(cases["faulty"])
    assert [t for t, start in zip(found, starts, strict=True) if not t.startswith(start)] == []
    assert "Accounts of every rank (share of a rank's window)" in titles(cases["64 ranks"])


def test_the_head_says_what_was_audited_and_what_it_costs() -> None:
    found, diagnosis = faulty()
    rows = {row[0]: row[1] for row in head_table(found, diagnosis, 2.5).rows}
    ledger = found.job.ledger
    assert ledger.mfu is not None and ledger.mfu_palm is not None
    assert rows["window"].startswith("steps 1 to 2, ")
    assert "h200-sxm" in rows["device"]
    assert rows["MFU"] == describe.mfu_text(ledger).removeprefix("MFU ")
    assert rows["useful"].startswith(format_share(ledger.mfu))
    assert rows["step"].startswith("150 ms") and "expected 52" in rows["step"]
    assert f"${2.5 * (1 - ledger.mfu):.2f} of it" in rows["cost"]
    assert "cost" not in {row[0] for row in head_table(found, diagnosis, None).rows}


@pytest.mark.parametrize("name", ["healthy-base", "slow-loader-0.03", "checkpoint-stall-2"])
def test_a_flow_splits_the_whole_by_owner_and_account_as_the_ledger_does(name: str) -> None:
    ledger = own(name).job.ledger
    figure = flow_figure(ledger)
    link, labels = figure.data[0]["link"], figure.data[0]["node"]["label"]
    _, size = describe.time_unit(ledger.gpu_seconds)
    drawn = {
        labels[at].split()[0]: size * value
        for at, value in zip(link["target"], link["value"], strict=True)
    }
    for account, seconds in ledger.accounts.items():
        assert drawn.get(account, 0.0) == pytest.approx(seconds)
        assert cells(figure.numbers)[account][2] == f"{seconds / size:,.1f}"
        assert cells(figure.numbers)[account][3] == format_share(seconds / ledger.gpu_seconds)
    first = [
        value for source, value in zip(link["source"], link["value"], strict=True) if not source
    ]
    assert size * math.fsum(first) == pytest.approx(ledger.gpu_seconds)
    for owner in {ACCOUNTS[account].owner for account in drawn if account in ACCOUNTS}:
        mine = [s for name, s in ledger.accounts.items() if ACCOUNTS[name].owner == owner]
        assert drawn[owner] == pytest.approx(math.fsum(mine))


def test_nodes_of_a_flow_keep_their_order_and_do_not_overlap() -> None:
    ledger = own("launch-bound").job.ledger
    figure = flow_figure(ledger)
    node = figure.data[0]["node"]
    height = figure.layout["height"] - figure.layout["margin"]["t"] - figure.layout["margin"]["b"]
    columns = {
        x: [y for at, y in zip(node["x"], node["y"], strict=True) if at == x] for x in node["x"]
    }
    for places in columns.values():
        assert places == sorted(places)
        assert all(height * (b - a) >= node["pad"] - 1e-6 for a, b in pairwise(places))


def test_without_flops_the_flow_says_that_the_useful_part_is_not_known(tmp_path: Path) -> None:
    maker = Maker()
    maker.kernel("gemm", 100.0)
    maker.step(1, 1000.0)
    found = audit([maker.write(tmp_path)], FACTS, cache=False)
    assert "is not known" in flow_figure(found.job.ledger).summary
    rows = cells(head_table(found, NOTHING, 2.0))
    assert rows["useful"][1].startswith("unknown: needs ")


def test_the_waterfall_sets_the_expectation_beside_what_was_measured(cases: Cases) -> None:
    figure = next(part for part in cases["faulty"] if part.title.startswith("Where the time"))
    assert isinstance(figure, Figure)
    found, diagnosis = faulty()
    assert diagnosis.expected is not None
    for axis, ledger in (("x", found.job.ledger), ("x2", diagnosis.expected.ledger)):
        _, size = describe.time_unit(found.job.ledger.gpu_seconds)
        mine = [trace for trace in figure.data if trace["xaxis"] == axis]
        bars = {n: size * x for t in mine for n, x in zip(t["y"], t["customdata"], strict=True)}
        assert bars == pytest.approx(ledger.accounts)


def test_the_waterfall_and_the_step_of_a_plan_are_of_the_measured_work() -> None:
    found, diagnosis = faulty()
    expected, measured = diagnosis.expected, found.job.ledger
    assert expected is not None
    plan = replace(
        expected, ledger=expected.ledger.scale(0.5)
    )  # of one step, and two were measured
    one_step = replace(diagnosis, expected=plan)
    assert plan.at_equal_work(measured).accounts == pytest.approx(expected.ledger.accounts)
    wanted, drawn = (audit_parts(found, each, None, price=None) for each in (diagnosis, one_step))
    for title in ("Where the time", "What was audited"):
        one, other = (_part(parts, title) for parts in (wanted, drawn))
        assert (other.summary if isinstance(other, Figure) else other) == (
            one.summary if isinstance(one, Figure) else one
        )


def _part(parts: list[Part], title: str) -> Any:
    return next(part for part in parts if part.title.startswith(title))


def test_a_heat_map_has_every_rank_and_the_ledgers_shares(
    job: tuple[TracedJob, StepTimeline],
) -> None:
    ranks = job[0].job.ranks
    figure = ranks_figure(ranks)
    cell, rows = figure.data[0], cells(figure.numbers)
    assert cell["y"] == [str(number) for number in range(64)]
    for place, rank in enumerate(ranks):
        for column, account in enumerate(cell["x"]):
            share = rank.ledger.accounts.get(account, 0.0) / rank.ledger.gpu_seconds
            assert cell["z"][place][column] ** 2 == pytest.approx(share, abs=2e-4)
            assert rows[str(rank.rank)][1 + column] == format_share(share)
    assert "rank 17 lies farthest from the median" in figure.summary


def test_of_a_thousand_ranks_those_farthest_from_the_median_are_shown(
    job: tuple[TracedJob, StepTimeline],
) -> None:
    usual, slow = job[0].job.ranks[0], job[0].job.ranks[17]
    ranks: list[RankLedger] = [
        replace(slow if number == 700 else usual, rank=number) for number in range(1024)
    ]
    figure = ranks_figure(ranks)
    assert figure.data[0]["y"][0] == "700"
    assert len(figure.data[0]["y"]) == MAX_RANKS
    assert "960 ranks nearest to the median are left out" in figure.numbers.notes[0]
    assert len(json.dumps(figure.data)) < 100_000


def test_one_rank_has_no_heat_map(cases: Cases) -> None:
    assert not [title for title in titles(cases["faulty"]) if title.startswith("Accounts of")]


@pytest.mark.parametrize("name", INDEX)
def test_a_timeline_is_the_median_step_to_the_nanosecond_in_few_segments(name: str) -> None:
    rank, timeline = own(name).ranks[0], own_timeline(name)
    assert timeline.step is not None
    place = rank.steps.index(timeline.step)
    assert timeline.step_seconds == sorted(rank.step_seconds)[len(rank.steps) // 2]
    booked = {n: values[place] for n, values in rank.by_step.items() if values[place]}
    assert timeline.accounts == pytest.approx(booked, abs=1e-12)
    assert len(timeline.segments) <= MAX_SEGMENTS
    for account, seconds in timeline.accounts.items():
        mine = [s for s in timeline.segments if s.account == account]
        assert math.fsum(s.seconds for s in mine) == pytest.approx(seconds, abs=1e-12)
        assert all(a.end_seconds <= b.start_seconds for a, b in pairwise(mine))
        assert all(s.seconds <= s.end_seconds - s.start_seconds + 1e-12 for s in mine)


def test_a_timeline_names_long_kernels_and_why_the_host_was_late() -> None:
    segments = own_timeline("host-sync-8").segments
    compute = [s for s in segments if s.account == "compute" and s.pieces == 1]
    longest = max(compute, key=lambda s: s.seconds)
    assert longest.name and longest.name_seconds == longest.seconds
    assert "sync" in {s.name for s in segments if s.account == "host"}


def test_the_timeline_figure_has_its_accounts_and_its_table_their_seconds() -> None:
    timeline = own_timeline("slow-loader-0.03")
    figure = timeline_figure(timeline)
    assert sum(len(trace["x"]) for trace in figure.data) == len(timeline.segments)
    rows = {row[0].removeprefix("idle: "): row for row in figure.numbers.rows}
    for account, seconds in timeline.accounts.items():
        assert rows[account][1] == f"{1e3 * seconds:,.3f}"
        assert rows[account][2] == format_share(seconds / timeline.step_seconds)
    assert rows["total"][1] == f"{1e3 * timeline.step_seconds:,.3f}"
    assert f" took {format_seconds(timeline.step_seconds)} as recorded: " in figure.summary


def test_without_marked_steps_the_timeline_is_the_whole_recording(tmp_path: Path) -> None:
    maker = Maker()
    maker.kernel("gemm", 100.0)
    timeline = step_timeline(read_trace(maker.write(tmp_path)), TraceOptions())
    assert timeline.step is None
    assert timeline_figure(timeline).title == "The recording of rank 0 along time (ms)"


def test_a_trace_in_which_nothing_ran_has_no_timeline(tmp_path: Path) -> None:
    maker = Maker()
    maker.span("cuda_runtime", "cudaLaunchKernel", 0.0, 1.0)
    with pytest.raises(InputError, match="nothing ran"):
        step_timeline(read_trace(maker.write(tmp_path)), TraceOptions())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 400.0), st.floats(0.0, 300.0)), min_size=1, max_size=900))
def test_segments_fill_their_accounts_whatever_runs(
    tmp_path_factory: pytest.TempPathFactory, work: list[tuple[float, float]]
) -> None:
    maker = Maker()
    for length, pause in work:
        maker.kernel("gemm", length)
        maker.host += pause
    timeline = step_timeline(
        read_trace(maker.write(tmp_path_factory.mktemp("one"))), TraceOptions()
    )
    assert len(timeline.segments) <= MAX_SEGMENTS
    assert math.fsum(timeline.accounts.values()) == pytest.approx(timeline.step_seconds)
    drawn = math.fsum(segment.seconds for segment in timeline.segments)
    assert drawn == pytest.approx(timeline.step_seconds)


def test_cards_say_what_a_finding_costs_its_proof_and_its_remedy() -> None:
    found, diagnosis = faulty()
    ledger = found.job.ledger
    part = finding_cards(diagnosis, ledger, 2.5)
    card = part.cards[0]
    facts = dict(card.facts)
    assert facts["costs"] == "200.0 GPU-ms"
    assert facts["of the window"] == format_share(0.2 / ledger.gpu_seconds)
    assert facts["$/h"] == f"{0.2 / ledger.wall_seconds * 2.5:.2f}"
    assert facts["ranks"] == "0 to 2, 7"
    assert card.evidence[0] == "idle  (rank 0 ): 105 ms, expected 0"
    assert card.command.startswith("DataLoader(num_workers=8)")
    assert "(100.0 GPU-ms to 200.0 GPU-ms)" in card.gain
    assert "All remedies together would give back 190.0 GPU-ms" in part.summary


def test_no_findings_is_a_sentence_that_counts_the_rules_that_could_not_look() -> None:
    ledger = own("healthy-base").job.ledger
    part = finding_cards(replace(NOTHING, abstained=ABSTAINED), ledger, None)
    assert part == Cards(title="No findings", cards=(), summary=part.summary)
    assert "1 was skipped" in part.summary


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), ""),
        ((3,), "3"),
        ((7, 1, 0, 2), "0 to 2, 7"),
        (range(1024), "0 to 1023"),
        (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_ranks_are_written_as_stretches(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.105, "s", "105 ms"),
        (1.4e9, "Hz", "1.4 GHz"),
        (0.31, "share of launches", "31.0 % of launches"),
        (1.4, "", "1.4"),
        (83.0, "°C", "83 °C"),
    ],
)
def test_evidence_is_written_with_its_unit(value: float, unit: str, text: str) -> None:
    assert evidence_text(Evidence(what="x", where="", value=value, unit=unit)) == f"x: {text}"


def test_what_is_not_known_is_listed_and_long_lists_say_what_they_leave_out() -> None:
    found = replace(own("healthy-base"), left_out=tuple(f"file {n}" for n in range(100)))
    tables = {p.title: p for p in audit_parts(found, NOTHING, None, price=None)}
    unavailable, left = tables["Unavailable accounts"], tables["Left out and noted"]
    assert isinstance(unavailable, Table) and isinstance(left, Table)
    assert set(unavailable.rows) == set(found.job.ledger.unavailable.items())
    assert len(left.rows) == 64
    assert "more" in left.notes[0]


def test_a_report_of_64_ranks_is_under_3_megabytes_and_has_its_words(cases: Cases) -> None:
    for name, parts in cases.items():
        text = report_html(name, parts)
        assert len(text.encode()) < 3_000_000
        page = Page(text)
        assert page.open == [] and page.links == []
        assert [title for title in titles(parts) if title not in page.text] == []


def hostile(folder: Path) -> list[Part]:
    maker = Maker(groups={"0": (HOSTILE, [0])})
    maker.product(4096, 4096, 4096, 400.0)
    maker.kernel(HOSTILE, 900.0)
    maker.collective(HOSTILE, "0", 3000.0)
    maker.step(1, 1000.0)
    file = maker.write(folder)
    found = audit([file], FACTS, cache=False)
    found = replace(found, notes=(HOSTILE,), left_out=(HOSTILE,))
    return audit_parts(
        found, faulty(HOSTILE)[1], step_timeline(read_trace(file), TraceOptions()), price=1.0
    )


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    page = Page(report_html(HOSTILE, hostile(tmp_path)))
    assert page.open == [] and page.links == []
    assert not {"img", "a", "b"} & set(page.tags)
    assert page.text.count(HOSTILE) >= 10


@pytest.mark.live
def test_chromium_draws_all_64_ranks_without_a_complaint(cases: Cases, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_html("64 ranks", cases["64 ranks"]), encoding="utf-8")
    drawn, console = in_a_browser(file)
    assert console == []
    assert drawn.count('class="plot js-plotly-plot"') == 4


def opened(browser: Any, file: Path, *, width: int = 1280, colours: str = "light") -> Any:
    """A page; its console messages and requests are in `page.said`."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=colours)
    page.set_default_timeout(300_000)  # a bound on a busy machine, not a speed
    page.said = []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("dialog", lambda dialog: page.said.append(dialog.message))
    page.on("request", lambda asked: page.said.append(asked.url))
    page.goto(file.as_uri())
    page.said.remove(file.as_uri())
    return page


def settle(page: Any, parts: list[Part]) -> None:
    """Wait for the last figure: figures are drawn in order."""
    last = sum(isinstance(part, Figure) for part in parts) - 1
    page.wait_for_selector(f"#figure-{last} .main-svg", state="attached")


HOVERED = """() => {
  const place = [...document.querySelectorAll('.plot.js-plotly-plot')].at(-1);
  Plotly.Fx.hover(place, [{ curveNumber: 0, pointNumber: 1 }]);  // the second kernel
  return place.querySelector('.hovertext').textContent;
}"""
OUTSIDE = """[...document.querySelectorAll('.main-svg text')].filter(text => {
  const box = text.getBoundingClientRect(), plot = text.closest('.plot').getBoundingClientRect();
  return box.width && (box.left < plot.left - 2 || box.right > plot.right + 2);
}).map(text => text.textContent)"""
UNLIKE_THE_PAGE = """[...document.querySelectorAll('.main-svg text')].filter(text =>
  getComputedStyle(text).fill != getComputedStyle(document.body).color).map(text => text.textContent)"""


@pytest.mark.live
@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["healthy", "faulty", "64 ranks"])
def test_a_report_reads_on_any_screen(
    name: str, width: int, colours: str, cases: Cases, browser: Any, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_html(name, cases[name]), encoding="utf-8")
    page = opened(browser, file, width=width, colours=colours)
    settle(page, cases[name])
    assert page.said == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate(UNLIKE_THE_PAGE) == []
    assert not page.locator("#undrawn").is_visible()
    page.close()


@pytest.mark.live
def test_nothing_hostile_runs_and_hover_shows_names_as_they_are(
    browser: Any, tmp_path: Path
) -> None:
    parts = hostile(tmp_path)
    file = tmp_path / "report.html"
    file.write_text(report_html(HOSTILE, parts), encoding="utf-8")
    page = opened(browser, file)
    settle(page, parts)
    assert "</script><img src=x" in page.evaluate(HOVERED)
    assert page.said == []
    assert page.evaluate("window.ran") is None
    assert page.locator("main img, main a").count() == 0
    page.close()


@pytest.mark.live
def test_a_browser_that_cannot_unpack_says_so_and_keeps_the_tables(
    cases: Cases, browser: Any, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_html("old", cases["faulty"]), encoding="utf-8")
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(file.as_uri())
    assert page.locator("#undrawn").is_visible()
    assert page.locator(".main-svg").count() == 0
    assert page.get_by_role("cell", name="compute.model").first.is_visible()
    page.close()


@pytest.mark.live
def test_on_paper_every_figure_is_whole_at_once(cases: Cases, browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_html("paper", cases["faulty"]), encoding="utf-8")
    page = opened(browser, file, colours="dark")
    settle(page, cases["faulty"])
    right = page.evaluate("""() => {
      dispatchEvent(new Event("beforeprint"));
      const left = document.querySelector("#figure-0").getBoundingClientRect().left;
      const nodes = [...document.querySelectorAll(".node-rect")];
      return Math.max(...nodes.map(node => node.getBoundingClientRect().right)) - left;
    }""")
    assert 640 < right <= 680
    assert page.said == []
    page.close()
