"""Figures carry the numbers of what they draw; a report is one page that asks for nothing else."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from computeflow.catalog import find_model, load_catalog
from computeflow.cli import run
from computeflow.cluster import find_cluster
from computeflow.errors import UnavailableError
from computeflow.ledger import Entry, Ledger, Window
from computeflow.planning.plans import Plan
from computeflow.prediction import Prediction, predict
from computeflow.views import (
    Figure,
    Table,
    comparison_figure,
    front_figure,
    ledger_figure,
    memory_figure,
    report_html,
)
from computeflow.views.figures import ACCENT, HATCHED, OWNERS, SECOND
from computeflow.views.plans import FrontRow
from computeflow.views.tables import columns
from computeflow.workload import Job, Layout

HOSTILE = '</script><img src="https://example.org/x" onerror="alert(1)"> $figures & <a href="//b">'
JOB = ["llama-3.1-8b", "--on", "h100-sxm:64", "--global-batch", "256", "--seq-len", "4096"]


@cache
def prediction(**layout: object) -> Prediction:
    facts = load_catalog(())
    job = Job(model=find_model(facts, "llama-3.1-8b"), global_batch=256, seq_len=4096)
    place = find_cluster("h100-sxm:64", facts)
    return predict(job, place, Layout(gpus=64, **layout))  # type: ignore[arg-type]


def plan(**layout: object) -> Plan:
    found = prediction(**layout)
    seconds = found.step_seconds
    return Plan(prediction=found, pessimistic_seconds=seconds, complexity=1, unmeasured=())


def ledger(label: str = "one step", **gpu_seconds: float) -> Ledger:
    entries = [Entry(account=n.replace("_", "."), gpu_seconds=s) for n, s in gpu_seconds.items()]
    return Ledger.closed(
        entries,
        gpus=8,
        wall_seconds=(sum(gpu_seconds.values()) + 2) / 8,
        basis="measured",
        window=Window(label=label),
    )


def front_row(gpus: int, days: float | None, usd: float | None) -> FrontRow:
    return FrontRow(gpus, plan(tp=2), days, usd, None)


def every_figure(label: str = "one step") -> list[Figure]:
    measured = ledger(label, compute_model=40.0, compute=9.0, comm_dp=12.0, straggler=4.0)
    rows = [front_row(64, 20.0, 900.0), front_row(128, 11.0, 990.0), front_row(96, 21.0, 950.0)]
    return [
        ledger_figure(measured),
        ledger_figure(measured, ledger(label, compute_model=40.0, bubble=1.0)),
        comparison_figure([plan(tp=2), plan(tp=2, pp=4)]),
        memory_figure(prediction(tp=2, pp=4)),
        memory_figure(prediction(sharding="zero3", offload="nvme")),
        front_figure(rows, infeasible=[8]),
    ]


def test_a_waterfall_shows_every_account_end_to_end_up_to_the_whole() -> None:
    found = prediction(tp=2, pp=4).ledger
    bars = [
        (base, length, name)
        for trace in ledger_figure(found).data
        for base, length, name in zip(trace["base"], trace["x"], trace["y"], strict=True)
    ]
    assert {name for _, _, name in bars} == set(found.accounts)
    assert math.isclose(math.fsum(length for _, length, _ in bars), found.gpu_seconds)
    bars.sort()
    assert bars[0][0] == 0
    assert bars[0][2] == "compute.model"
    assert all(math.isclose(a + size, b) for (a, size, _), (b, _, _) in pairwise(bars))


def test_two_ledgers_stand_side_by_side_at_one_scale_and_each_owner_is_named_once() -> None:
    first = ledger(compute_model=40.0, comm_dp=12.0)
    second = ledger(compute_model=40.0, bubble=1.0)
    figure = ledger_figure(first, second)
    for axis, one in (("x", first), ("x2", second)):
        sizes = [size for trace in figure.data if trace["xaxis"] == axis for size in trace["x"]]
        assert math.isclose(math.fsum(sizes), one.gpu_seconds)
    assert figure.layout["xaxis"]["range"] == figure.layout["xaxis2"]["range"]
    named = [trace["name"] for trace in figure.data if trace["showlegend"]]
    assert sorted(named) == ["design", "unknown", "useful"]


def test_compared_plans_add_up_to_their_steps_with_their_ranges() -> None:
    plans = [plan(tp=2), plan(tp=2, pp=4)]
    *bars, ranges = comparison_figure(plans).data
    for place, found in enumerate(one.prediction for one in plans):
        shown = {bar["meta"]: bar["x"][place] for bar in bars if bar["x"][place]}
        assert set(shown) == set(found.ledger.accounts)
        assert math.isclose(math.fsum(shown.values()), found.step_seconds)
        low, high = found.step_seconds_range
        assert math.isclose(found.step_seconds - ranges["error_x"]["arrayminus"][place], low)
        assert math.isclose(found.step_seconds + ranges["error_x"]["array"][place], high)


def test_memory_shows_every_stage_its_owners_and_the_limit() -> None:
    found = prediction(tp=2, pp=4)
    figure = memory_figure(found)
    for place, stage in enumerate(found.memory_by_stage):
        held = {bar["name"]: 1e9 * bar["x"][place] for bar in figure.data}
        assert held == pytest.approx({n: stage.by_owner[n] for n in held})
        assert math.isclose(math.fsum(held.values()), stage.bytes)
    assert figure.layout["shapes"][0]["x0"] == found.memory_limit_bytes / 1e9


def test_what_is_held_elsewhere_is_hatched_and_beside_the_device() -> None:
    found = prediction(sharding="zero3", offload="nvme")
    disk = memory_figure(found).data[-1]
    assert disk["marker"]["pattern"]["shape"]
    assert disk["offsetgroup"] == "away"
    assert math.isclose(1e9 * disk["x"][0], found.memory_by_stage[0].disk_bytes)


def test_a_front_joins_only_what_nothing_beats() -> None:
    rows = [front_row(64, 20.0, 900.0), front_row(128, 11.0, 990.0), front_row(96, 21.0, 950.0)]
    figure = front_figure(rows, infeasible=[8])
    assert [trace["text"] for trace in figure.data[:2]] == [["128", "64"], ["96"]]
    assert all("tp 2" in text for text in figure.data[0]["customdata"])
    assert "Nothing fits on 8 devices." in figure.numbers.notes


@pytest.mark.parametrize(
    ("days", "usd", "units"),
    [
        (9.0, 99.0, "(days, USD)"),
        (9.0, None, "(days, GPU-days)"),
        (None, None, "(s a step, GPU-s a step)"),
    ],
)
def test_a_front_without_price_or_tokens_takes_what_is_known(
    days: float | None, usd: float | None, units: str
) -> None:
    figure = front_figure([front_row(64, days, usd)])
    assert figure.title.endswith(units)
    assert figure.layout["xaxis"]["tickvals"]


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_stand_out_on_white_and_on_black() -> None:
    """WCAG 2 asks 3:1 of graphics; the report's dark page is #141414."""
    for colour in {*OWNERS.values(), ACCENT, SECOND}:
        for page in ("#FFFFFF", "#141414"):
            dark, light = sorted([luminance(colour), luminance(page)])
            assert (light + 0.05) / (dark + 0.05) >= 2.99, colour


@pytest.mark.parametrize("red, leak", [(0.29275, -0.02234), (0.11238, 0.00401)])
def test_owners_are_told_apart_without_the_green_or_the_red_cones(red: float, leak: float) -> None:
    """Distance in linear RGB after Vienot's (1999) projections; hatching tells the others apart."""

    def seen(colour: str) -> tuple[float, float]:
        r, g, b = ((int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5))
        return red * r + (1 - red) * g, b + leak * (r - g)

    solid = [OWNERS[owner] for owner in OWNERS if owner not in HATCHED]
    assert len(solid) == 4
    for one, other in combinations(solid, 2):
        assert math.dist(seen(one), seen(other)) > 0.1, (one, other)


def test_texts_of_figures_have_no_tags_but_line_breaks() -> None:
    """Plotly makes style attributes of others, which the page's content policy forbids."""
    for figure in every_figure():
        drawn = json.dumps([figure.data, figure.layout])
        assert set(re.findall(r"</?(\w+)", drawn)) <= {"br", "extra"}, figure.title


class Page(HTMLParser):
    """The text outside scripts, the links, and whether every tag that opens is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "data")]
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data


def test_a_report_is_well_formed_asks_for_nothing_and_keeps_hostile_names_as_text() -> None:
    table = Table(title=HOSTILE, columns=columns(HOSTILE), rows=((HOSTILE,),), notes=(HOSTILE,))
    text = report_html(HOSTILE, [table, *every_figure(HOSTILE)])
    page = Page(text)
    assert page.open == []
    assert page.links == []
    assert "img" not in page.tags
    assert page.tags.count("script") == 2
    assert page.text.count(HOSTILE) >= 5
    assert "default-src 'none'" in text


def test_a_report_has_the_numbers_and_the_words_without_its_figures() -> None:
    figures = every_figure()
    text = Page(report_html("t", figures)).text
    for figure in figures:
        assert figure.summary in text
        assert all(cell in text for row in figure.numbers.rows for cell in row)


def test_the_same_parts_make_the_same_bytes() -> None:
    assert report_html("t", every_figure()) == report_html("t", every_figure())


def test_tables_need_no_plotly_and_figures_say_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("computeflow.views.html_report.find_spec", lambda name: None)
    assert len(report_html("t", [every_figure()[0].numbers])) < 10_000
    with pytest.raises(UnavailableError, match=r"pip install 'computeflow\[plot\]'"):
        report_html("t", every_figure())


@pytest.mark.parametrize(
    ("arguments", "titles"),
    [
        (["predict", "--tp", "2"], ["Where the time", "Memory of a device"]),
        (
            ["plan", "--explain"],
            [
                "The plans",
                "Step time of each plan",
                "Where the time",
                "Memory of a device",
                "What would change",
                "layouts",
            ],
        ),
        (["plan", "--gpus", "32:64", "--tokens", "1e12", "--price", "2"], ["Time against cost"]),
    ],
)
def test_commands_write_a_report_and_still_print_their_answer(
    arguments: list[str], titles: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = arguments
    file = tmp_path / "report.html"
    assert run([command, *JOB, *rest, "--html", str(file)]) == 0
    assert "step" in capsys.readouterr().out
    text = Page(file.read_text()).text
    assert [title for title in titles if title not in text] == []


@pytest.mark.parametrize(
    ("where", "why"),
    [(lambda p: p, "is a folder"), (lambda p: p / "no" / "r.html", "there is no folder")],
)
def test_a_wrong_path_is_one_line_before_the_work(
    where: Callable[[Path], Path], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["predict", *JOB, "--html", str(where(tmp_path))]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert why in printed.err


def test_an_answer_without_a_figure_has_a_report_of_its_tables(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert run(["plan", *JOB, "--pool", "a100-80gb-sxm:8", "--html", str(file)]) == 0
    assert "Two pools" in file.read_text()


def in_a_browser(page: Path) -> tuple[str, list[str]]:
    """The page as Chromium draws it, and its console messages."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no Chromium: apt-get install -y chromium")
    flags = (
        "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
        "disable-component-update disable-sync dump-dom enable-logging=stderr virtual-time-budget=4000"
    )
    profile = f"--user-data-dir={page.parent / 'profile'}"
    done = subprocess.run(
        [browser, *(f"--{flag}" for flag in flags.split()), profile, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE:" in line]


@pytest.mark.live
def test_a_browser_draws_every_figure_without_a_complaint(tmp_path: Path) -> None:
    figures = every_figure(HOSTILE)
    page = tmp_path / "report.html"
    page.write_text(report_html(HOSTILE, figures), encoding="utf-8")
    drawn, console = in_a_browser(page)
    assert console == []
    for number in range(len(figures)):
        place = drawn.index(f'id="figure-{number}"')
        assert 'class="main-svg"' in drawn[place : drawn.index("<figcaption>", place)]


@pytest.mark.live
def test_the_browser_complains_about_a_request(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    text = report_html("t", every_figure()[:1])
    page.write_text(text.replace("</main>", '<img src="https://example.org/x.png"></main>'))
    _, console = in_a_browser(page)
    assert len(console) == 1
    assert "Content Security Policy" in console[0]
