"""Published runs and two sites as tables, figures and documentation pages.

A page is Markdown, with bar charts that Mermaid draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from computeflow.files import languages
from computeflow.units import format_share, format_usd
from computeflow.views.figures import ACCENT, Data, Figure, base_layout, value_axis
from computeflow.views.prose import wrap_prose
from computeflow.views.tables import Table, columns, footnote

if TYPE_CHECKING:
    from computeflow.simulation.fault_trace import SecondHalfCheck
    from computeflow.simulation.run_validation import RunCheck
    from computeflow.simulation.two_sites import AccountDifference, SiteComparison, SiteResult

Three = tuple[float, float, float]
_MIN_DAYS = 0.05
"""Lines that differ by fewer days are added up into one."""


def to_markdown(table: Table) -> str:
    head = _row([c.header for c in table.columns])
    rule = "|" + "|".join("---:" if c.align == "right" else "---" for c in table.columns) + "|"
    notes = [f"\n{footnote(table.notes)}"] if table.notes else []
    return "\n".join([f"**{table.title}**\n", head, rule, *map(_row, table.rows), *notes])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(languages.to_markdown, cells))} |"


def runs_headline(runs: Sequence[RunCheck], trace: Sequence[SecondHalfCheck]) -> str:
    agree = sum(run.agrees for run in runs)
    judged = [row.agrees for row in trace if row.agrees is not None]
    return (
        f"{agree} of {len(runs)} published figures lie inside the simulated range; so do "
        f"{sum(judged)} of {len(judged)} predicted figures of a fault trace."
    )


def runs_table(runs: Sequence[RunCheck]) -> Table:
    return Table(
        title="Published runs, simulated from what is published of them",
        columns=columns(
            "run",
            "figure",
            "said",
            "alone",
            "middle",
            "range",
            "agrees",
            "assumed",
            right="said,alone,middle,range,assumed",
            wrap="run",
        ),
        rows=tuple(
            (
                run.name,
                _FIGURES[run.figure],
                ("> " if run.relation == "more than" else "") + _figure(run.published, run.figure),
                _figure(run.from_published, run.figure),
                _figure(run.simulated, run.figure),
                f"{_figure(run.low, run.figure)} to {_figure(run.high, run.figure)}",
                "yes" if run.agrees else "NO",
                "-" if run.assumed_share is None else f"{100 * run.assumed_share:.0f} %",
            )
            for run in runs
        ),
        notes=(
            "said: by the source. alone: from published inputs alone, all others costing nothing. "
            "middle: with the others in their middle. range: P10 over everything all inputs may be, "
            "to P90 over the published ones alone; of MTBI, P10 to P90 over repeats. assumed: the "
            "part of the simulated loss that rests on inputs nobody published.",
        ),
    )


_FIGURES = {"ettr": "ETTR", "goodput": "goodput", "mtbi_hours": "MTBI h"}


def _figure(value: float, figure: str) -> str:
    return f"{value:.2f}" if figure == "mtbi_hours" else f"{value:.3f}"


def trace_table(figures: Sequence[SecondHalfCheck], source: str) -> Table:
    def ends(row: SecondHalfCheck) -> str:
        return "-" if row.low is None or row.high is None else f"{row.low:,.1f} to {row.high:,.1f}"

    verdict = {True: "yes", False: "NO", None: "-"}
    return Table(
        title="A fault trace: fitted on its first half, its second predicted",
        columns=columns(
            "figure of the second half",
            "predicted",
            "range",
            "measured",
            "agrees",
            right="predicted,range,measured",
        ),
        rows=tuple(
            (
                row.figure,
                f"{row.predicted:,.1f}",
                ends(row),
                f"{row.measured:,.1f}",
                verdict[row.agrees],
            )
            for row in figures
        ),
        notes=(
            f"{source}. Ranges hold 80 %, from how unevenly faults come in weeks of the first "
            "half.",
        ),
    )


def inputs_table(run: RunCheck) -> Table:
    by_time = run.figure == "ettr"
    rows = []
    for row in run.inputs:
        ends = (row.ettr_low, row.ettr_high)
        if not by_time:
            ends = (
                run.simulated * row.seconds / row.seconds_low,
                run.simulated * row.seconds / row.seconds_high,
            )
        low, value, high = (f"{x:,.7g}" for x in (row.low, row.value, row.high))
        rows.append(
            (row.name, row.basis, low, value, high, *(f"{x:.3f}" for x in ends), row.source)
        )
    return Table(
        title=f"{run.name}: what each input does to {_FIGURES[run.figure]} {run.simulated:.3f}",
        columns=columns(
            "input",
            "basis",
            "low",
            "taken",
            "high",
            "at low",
            "at high",
            "source",
            right="low,taken,high,at low,at high",
            wrap="input,source",
        ),
        rows=tuple(rows),
        notes=tuple(filter(None, (run.note, f"Source: {run.source}."))),
    )


def runs_page(runs: Sequence[RunCheck], trace: Sequence[SecondHalfCheck], source: str) -> str:
    parts = [
        "# Published runs, simulated",
        "This page compares simulated runs with what their authors published. Use it to see how far "
        "to trust [`simulate`](simulate.md). Written by `computeflow validate --runs --page "
        "docs/validate-runs.md`.",
        to_markdown(runs_table(runs)),
        to_markdown(trace_table(trace, source)),
        "## What each result rests on",
        "Every assumed input, and published ones that move the figure by a tenth of a point or more, "
        "each moved alone to its ends.",
        *(to_markdown(inputs_table(run)) for run in runs if run.inputs),
        "## The others",
        *(f"**{run.name}.** {run.note} Source: {run.source}." for run in runs if not run.inputs),
    ]
    return wrap_prose("\n\n".join(parts) + "\n")


def sites_headline(found: SiteComparison) -> str:
    total, (first, second) = found.total, found.results
    slower, cheaper = (second, first) if total.difference >= 0 else (first, second)
    days = sorted(abs(value) for value in (total.low, total.high))
    return (
        f"The {slower.name} site takes {abs(total.difference):,.1f} days longer for the whole job than "
        f"the {cheaper.name} one"
        + (f" (P10 to P90: {days[0]:,.1f} to {days[1]:,.1f})" if total.low * total.high > 0 else "")
        + f"; at the {second.name} one it costs {format_usd(abs(total.usd))} "
        f"{'more' if total.usd >= 0 else 'less'}."
    )


def sites_table(found: SiteComparison) -> Table:
    one, other = found.results

    def row(name: str, values: Sequence[Three], unit: str, scale: float = 1.0) -> tuple[str, ...]:
        return (name, *(_three(v, unit, scale) for v in values))

    both: list[SiteResult] = [one, other]
    return Table(
        title=f"The same job at two sites: {_job(found)}",
        columns=columns("quantity", one.name, other.name, wrap=f"{one.name},{other.name}"),
        rows=(
            ("the site", one.doc, other.doc),
            row("days to target throughput", [r.bringup_days for r in both], ""),
            row("days of the run", [r.run_days for r in both], ""),
            row("total days", [r.total_days for r in both], ""),
            ("total $", *(_usd_range(r.usd[1], r.usd[0], r.usd[2]) for r in both)),
            row("ETTR, %", [r.ettr for r in both], "", 0.01),
            row("goodput, %", [r.goodput for r in both], "", 0.01),
            row("spare nodes", [r.spares for r in both], ""),
            ("step, s", *(f"{r.step_seconds:.2f}" for r in both)),
            ("MFU of a step", *(format_share(r.mfu) for r in both)),
        ),
        notes=(
            f"Median (P10 to P90) over {found.draws} draws of all inputs. $ at "
            f"{found.sites.price.low:.2f} to {found.sites.price.high:.2f} per GPU-h, the same at "
            "both.",
        ),
    )


def _job(found: SiteComparison) -> str:
    story = found.sites.story
    return f"{story.model} on {story.gpus:,} {story.accelerator}, {story.tokens / 1e12:g}T tokens"


def _three(values: Three, unit: str, scale: float = 1.0) -> str:
    low, middle, high = (f"{value / scale:,.1f}" for value in values)
    return f"{middle}{unit} ({low} to {high})"


def _usd_range(middle: float, low: float, high: float) -> str:
    return f"{format_usd(middle)} ({format_usd(low)} to {format_usd(high)})"


def _usd_unit(usd: float) -> tuple[str, float, int]:
    """The unit for all lines of a sum, so that they add up: name, dollars, decimals.

    Three digits of the sum, or more where it is small.
    """
    name, dollars = next(
        ((name, dollars) for name, dollars in (("M$", 1e6), ("k$", 1e3)) if abs(usd) >= dollars),
        ("$", 1.0),
    )
    whole = len(f"{abs(usd) / dollars:.0f}")
    return name, dollars, 0 if dollars == 1 else max(0, 3 - whole)


def lines_table(found: SiteComparison) -> Table:
    first, second = (result.name for result in found.results)
    unit = _usd_unit(found.total.usd)
    rows = [_line_row(line, unit) for line in (*_shown(found), found.total)]
    more = f"{unit[0]} +"
    return Table(
        title=f"Where the {second} site differs from the {first} one, account by account",
        columns=columns(
            "account",
            "first",
            "second",
            "days +",
            "P10 to P90",
            more,
            "P10 to P90",
            right=f"first,second,days +,P10 to P90,{more}",
        ),
        rows=tuple(rows),
        notes=(
            f"Days of {found.sites.story.gpus:,} GPUs: GPU-days divided by the job's size, spares "
            "included. Means over all draws, so the lines add up to the total; the ranges do not.",
        ),
        strong=frozenset({len(rows) - 1}),
    )


def _shown(found: SiteComparison) -> list[AccountDifference]:
    """Lines that differ, and the others as one line, so that the table adds up."""
    from dataclasses import replace

    large = [line for line in found.lines if abs(line.difference) >= _MIN_DAYS]
    small = [line for line in found.lines if abs(line.difference) < _MIN_DAYS]
    if not small:
        return large
    rest = replace(
        small[0],
        account="all others",
        days=(sum(line.days[0] for line in small), sum(line.days[1] for line in small)),
        difference=sum(line.difference for line in small),
        low=sum(line.low for line in small),
        high=sum(line.high for line in small),
        usd=sum(line.usd for line in small),
        usd_low=sum(line.usd_low for line in small),
        usd_high=sum(line.usd_high for line in small),
    )
    return [*large, rest]


def _line_row(line: AccountDifference, unit: tuple[str, float, int]) -> tuple[str, ...]:
    _, dollars, decimals = unit
    usd, low, high = (
        f"{value / dollars:+,.{decimals}f}" for value in (line.usd, line.usd_low, line.usd_high)
    )
    return (
        line.account,
        *(f"{value:,.1f}" for value in line.days),
        f"{line.difference:+,.1f}",
        f"{line.low:+,.1f} to {line.high:+,.1f}",
        usd,
        f"{low} to {high}",
    )


def difference_figure(found: SiteComparison) -> Figure:
    """A bar for every account that differs, with its range."""
    lines = _shown(found)
    names = [line.account for line in lines]
    trace: Data = {
        "type": "bar",
        "orientation": "h",
        "name": "days more, P10 to P90",
        "y": names,
        "x": [line.difference for line in lines],
        "marker": {"color": ACCENT},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [line.high - line.difference for line in lines],
            "arrayminus": [line.difference - line.low for line in lines],
        },
        "hovertemplate": "%{y}: %{x:+,.2f} days<extra></extra>",
    }
    layout = base_layout(len(lines), 30)
    layout["xaxis"] = value_axis("days more")
    layout["yaxis"] |= {"categoryorder": "array", "categoryarray": names[::-1]}
    return Figure(
        title=f"What the {found.results[1].name} site takes longer, by account (days)",
        data=(trace,),
        layout=layout,
        summary=_summary(found),
        numbers=lines_table(found),
    )


def _summary(found: SiteComparison) -> str:
    one, other = found.results
    total = found.total
    largest = ", ".join(f"{line.account} {line.difference:+.1f}" for line in _shown(found)[:3])
    low, middle, high = (100 * value for value in found.premium)
    return (
        f"The {other.name} site takes {total.difference:,.1f} days of the whole job more "
        f"({total.low:,.1f} to {total.high:,.1f}) and costs "
        f"{_usd_range(total.usd, total.usd_low, total.usd_high)} more. Largest: {largest}. A GPU-hour "
        f"at the {one.name} site may cost {middle:.0f} % more ({low:.0f} to {high:.0f}) before both "
        "cost the same."
    )


def site_inputs_table(found: SiteComparison) -> Table:
    first, second = (found.inputs[result.name] for result in found.results)
    rows = []
    for name in dict.fromkeys([*first, *second]):
        cells = []
        for side in (first, second):
            row = side.get(name)
            values = "" if row is None else f"{row.value:g} ({row.low:g} to {row.high:g})"
            cells.append("packaged" if row is None else f"{values}, {row.basis}: {row.source}")
        rows.append((name, *cells))
    names = [result.name for result in found.results]
    return Table(
        title="Assumptions and sources: the inputs of each site",
        columns=columns("input", *names, wrap=",".join(("input", *names))),
        rows=tuple(rows),
    )


def sites_page(found: SiteComparison) -> str:
    lines = _shown(found)
    one, other = found.results
    layout = found.prediction.layout
    left = 100 - 100 * (found.assumed_share or 0.0)
    job, summary, network, price = map(
        languages.to_markdown,
        (_job(found), _summary(found), _network(found), found.sites.price.source),
    )
    parts = [
        "# Two sites, one job",
        "This page compares the same job at two sites, in days and dollars, account by account. Use it "
        "to see what a better site is worth; `--sites FILE` takes sites of your own. Written by "
        "`computeflow compare-sites --page docs/compare-sites.md`. Neither site is a real one. Their "
        "differences are listed at the end, each figure with its source or the word assumed.",
        f"{job}, tp {layout.tp}, pp {layout.pp}, vp {layout.vp}, cp {layout.cp}, the same "
        f"layout at both. {summary}",
        "If every listed input that is not published for both sites were equal at both, "
        f"{left:.0f} % of the difference in days would remain; the rest is assumed. The tier, the "
        "network and when a node is not taken back are what the sites are said to be, and stay. That "
        "the lower rate of failures comes from the site is an assumption, too: published fleets differ "
        "that much, and do not say why.",
        to_markdown(sites_table(found)),
        _mermaid(
            "Days of the whole job",
            [r.name for r in (one, other)],
            [r.total_days[1] for r in (one, other)],
            "days, median",
        ),
        to_markdown(lines_table(found)),
        _mermaid(
            f"What the {other.name} site takes longer",
            [line.account for line in lines],
            [line.difference for line in lines],
            "days more, mean",
        ),
        f"`bring-up` is the time from handover to {100 * found.sites.story.target:.0f} % of the "
        "expected throughput, in which nothing is trained. The step's time is predicted, with the "
        f"same layout and a network between nodes that is {network}; its own range (80 % of "
        "runs) is not drawn, because it moves both sites alike.",
        to_markdown(site_inputs_table(found)),
        f"Price: {price}.",
    ]
    return wrap_prose("\n\n".join(parts) + "\n")


def _network(found: SiteComparison) -> str:
    one, other = (f"{site.oversubscription:g} to 1 at the {site.name}" for site in found.sites.site)
    return f"oversubscribed {one} and {other} site"


def _mermaid(title: str, names: Sequence[str], values: Sequence[float], unit: str) -> str:
    title, *names = (languages.text_line(text).replace('"', "'") for text in (title, *names))
    quoted = ", ".join(f'"{name}"' for name in names)
    numbers = ", ".join(f"{value:.2f}" for value in values)
    low = min(0.0, *values)
    return (
        f'```mermaid\nxychart-beta horizontal\n  title "{title}"\n  x-axis [{quoted}]\n'
        f'  y-axis "{unit}" {low:.0f} --> {1.1 * max(values):.0f}\n  bar [{numbers}]\n```'
    )
