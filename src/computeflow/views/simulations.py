"""Simulated runs as tables and figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from computeflow.simulation.curves import TIE
from computeflow.units import DAY_SECONDS, HOUR_SECONDS, format_seconds, format_share, format_usd
from computeflow.views.as_it_runs import between
from computeflow.views.axes import log_axis
from computeflow.views.figures import ACCENT, GREY, OWNERS, Data, Figure, base_layout, value_axis
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.simulation.curves import CurvePoint, IntervalCurve, SparesCurve
    from computeflow.simulation.run_timeline import RunTimeline
    from computeflow.simulation.sensitivity import InputEffect
    from computeflow.simulation.simulate import Simulation, Spread

_STRIP = 60
_STRIP_SHARE = 0.08
"""Height of the strip of stops, over that of the lines: a mark of 10 pixels and its room."""
_NAMES = {10: "a fast run (P10)", 50: "the median run (P50)", 90: "a slow run (P90)"}
_TIE = format_share(TIE)
_MARKS = {"checkpoint": "save before a planned stop"}
"""What the stops of an account are, where its name says something else."""
_COLOURS = {
    "restart": "#0072B2",
    "lost": "#56B4E9",
    "idle": "#E69F00",
    "checkpoint": OWNERS["design"],
    "startup": GREY,
}


def simulation_headline(simulation: Simulation, usd_per_gpu_hour: float | None = None) -> str:
    run, seconds, goodput = simulation.run, simulation.seconds, simulation.goodput
    low, high = map(format_share, (goodput.p10, goodput.p90))
    share = f"goodput {format_share(goodput.p50)}{_of_all(simulation)}"
    count = f"{simulation.replicas:,} simulations"
    if run.work_seconds is None:
        text = (
            f"In {format_seconds(seconds.p50)}: {share} (P10 to P90: {low} to {high} over {count})"
        )
    else:
        ends = f"{format_seconds(seconds.p10)} to {format_seconds(seconds.p90)}"
        text = f"Finished after {format_seconds(seconds.p50)} (P10 to P90: {ends} over {count})"
    if usd_per_gpu_hour is not None:
        text += f", {format_usd(simulation.usd(usd_per_gpu_hour).p50)}"
    if run.work_seconds is not None:
        text += f", {share}"
    if simulation.finished < 1:
        text += f"; {format_share(1 - simulation.finished)} of them never finish"
    return f"{text}. {_RANDOM_ONLY}"


def _of_all(simulation: Simulation) -> str:
    """Whose time goodput is a share of, where spares stand by that do no steps."""
    run = simulation.run
    return f" of {run.allocated_gpus:,} devices, spares included" if run.policy.spares.nodes else ""


_RANDOM_ONLY = "This range reflects random failures only; `--sensitivity` varies the inputs."


def simulation_table(simulation: Simulation, usd_per_gpu_hour: float | None = None) -> Table:
    run, seconds = simulation.run, simulation.seconds
    by_time = run.work_seconds is None
    gpus = f"{run.gpus:,} GPUs"
    if spares := run.policy.spares.nodes:
        gpus += f" and {spares} spare {'node' if spares == 1 else 'nodes'}"
    rows = [
        (
            "length" if by_time else "finished after",
            format_seconds(seconds.p50) if by_time else _range(seconds),
        ),
        ("goodput", f"{_shares(simulation.goodput)}{_of_all(simulation)}"),
        ("ETTR", _shares(simulation.ettr)),
        ("interruptions", f"{_counts(simulation.interruptions)}; on average {_causes(simulation)}"),
        (
            "MTBI, the mean",
            "none" if simulation.mtbi_seconds is None else format_seconds(simulation.mtbi_seconds),
        ),
        ("planned stops", _counts(simulation.planned_stops)),
        ("waits for a spare", _counts(simulation.spare_waits)),
        ("checkpoints", f"every {format_seconds(simulation.interval_seconds)} of work"),
        (
            "closed form",
            f"ETTR {format_share(simulation.closed.meta_ettr)} (Meta), "
            f"{format_share(simulation.closed.exact_ettr)} (exact for constant rates)",
        ),
        (
            "one recovery",
            f"{format_seconds(simulation.closed.recovery_seconds)}: "
            + ", ".join(
                f"{name} {format_seconds(part)}"
                for name, part in simulation.closed.phases.items()
                if part
            ),
        ),
    ]
    if usd_per_gpu_hour is not None:
        rows.insert(1, ("cost", _cost(simulation, usd_per_gpu_hour)))
    if (ends := step_range_seconds(simulation)) is not None:
        low, high = ends
        rows.insert(
            1,
            (
                "predicted range",
                f"{format_seconds(low)} to {format_seconds(high)}, with the step at the ends of its "
                "predicted range (80 % of published runs fell inside)",
            ),
        )
    if simulation.finished < 1:
        rows.insert(
            1, ("not finished", format_share(1 - simulation.finished) + " of simulations, given up")
        )
    return Table(
        title=f"{run.label}: {gpus}, {simulation.replicas:,} simulations, seed {simulation.seed}",
        columns=columns("quantity", "median (P10 to P90)", wrap="median (P10 to P90)"),
        rows=tuple(rows),
    )


def step_range_seconds(simulation: Simulation) -> tuple[float, float] | None:
    """The median run with the step at the ends of its predicted range; None where neither is known."""
    run, middle = simulation.run, simulation.seconds.p50
    if run.work_seconds is None or run.work_seconds_range is None:
        return None
    low, high = run.work_seconds_range
    return middle * low / run.work_seconds, middle * high / run.work_seconds


def step_range_sentence(simulation: Simulation) -> str:
    """What failures do not vary; "" where it is not known."""
    ends = step_range_seconds(simulation)
    if ends is None:
        return ""
    return f"With the step at the ends of its predicted range: {between(*ends)}."


def _range(spread: Spread) -> str:
    return (
        f"{format_seconds(spread.p50)} ({format_seconds(spread.p10)} to "
        f"{format_seconds(spread.p90)})"
    )


def _shares(spread: Spread) -> str:
    low, high = format_share(spread.p10), format_share(spread.p90)
    return f"{format_share(spread.p50)} ({low} to {high})"


def _counts(spread: Spread) -> str:
    """The median of an even number of simulations may lie between two counts."""
    middle = f"{spread.p50:,.1f}".removesuffix(".0")
    return f"{middle} ({spread.p10:,.0f} to {spread.p90:,.0f})"


def _causes(simulation: Simulation) -> str:
    most = sorted(simulation.by_cause.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count:,.1f}" for name, count in most[:5] if count >= 0.05) or "none"


def _cost(simulation: Simulation, usd_per_gpu_hour: float) -> str:
    usd = simulation.usd(usd_per_gpu_hour)
    low, middle, high = map(format_usd, (usd.p10, usd.p50, usd.p90))
    return f"{middle} ({low} to {high}) at ${usd_per_gpu_hour:g} per GPU-h"


def interval_table(curve: IntervalCurve, *, by_time: bool = False) -> Table:
    """Days of the run; for a run of fixed length, days of steps done in it."""
    share = "goodput" if by_time else "ETTR"
    unit = "Days of steps done, at full speed" if by_time else "Days"
    return Table(
        title=f"Checkpoint interval: best {format_seconds(curve.best_seconds)}, Young "
        f"{format_seconds(curve.young_seconds)}, Daly {format_seconds(curve.daly_seconds)}",
        columns=columns(
            "interval", "mean", "P10", "P90", share, right=f"interval,mean,P10,P90,{share}"
        ),
        rows=tuple(
            (
                format_seconds(p.at),
                *map(_days, _ends(p, by_time)),
                format_share(p.goodput if by_time else p.ettr),
            )
            for p in curve.points
        ),
        notes=(
            f"{unit}, over {curve.replicas:,} simulations. The curve is flat around its best: half or "
            f"twice the interval costs little.{_given_up(curve.points)}",
        ),
    )


def _given_up(points: Sequence[CurvePoint]) -> str:
    """A sentence on the simulations that do not finish, which the means include."""
    most = max(1 - point.finished for point in points)
    if not most:
        return ""
    return (
        f" Up to {format_share(most)} of the simulations of a setting are given up; they count until "
        "then, as in the run's own mean."
    )


def _ends(point: CurvePoint, by_time: bool) -> tuple[float, float, float]:
    """Mean, P10 and P90 of the work done in a run of fixed length, else of the time."""
    if by_time:
        return point.work_seconds, point.work_p10, point.work_p90
    return point.seconds, point.p10, point.p90


def spares_table(curve: SparesCurve, *, by_time: bool = False) -> Table:
    end, worth = ("P10", "goodput") if by_time else ("P90", "million GPU-h")
    rows = []
    for p in curve.points:
        mean, low, high = _ends(p, by_time)
        paid = format_share(p.goodput) if by_time else f"{p.gpu_seconds / HOUR_SECONDS / 1e6:,.3f}"
        late = low if by_time else high
        rows.append((f"{p.at:.0f}", _days(mean), _days(late), f"{p.waits:,.1f}", paid))
    over = f"over {curve.replicas:,} simulations"
    note = f"Days, {over}. GPU-h include those of the spares."
    if by_time:
        note = f"Days of steps done, at full speed, {over}. Goodput counts the spares' GPU-h."
    return Table(
        title=f"Spare nodes: at most {_TIE} faster with more than {curve.fastest}, fewest GPU-h with "
        f"{curve.cheapest}, a spare for 99 % of failures with {curve.pool}",
        columns=columns(
            "spares",
            "mean",
            end,
            "waits for a spare",
            worth,
            right=f"spares,mean,{end},waits for a spare,{worth}",
        ),
        rows=tuple(rows),
        notes=(note + _given_up(curve.points),),
    )


def sensitivity_table(swings: Sequence[InputEffect], *, by_time: bool) -> Table:
    """Goodput of a run of fixed length, days of one that ends with its work."""
    rows = []
    for row in swings:
        ends = (
            [format_share(row.goodput_low), format_share(row.goodput_high)]
            if by_time
            else [_days(row.seconds_low), _days(row.seconds_high)]
        )
        rows.append((row.name, row.basis, *map(_number, (row.low, row.value, row.high)), *ends))
    base = ""
    if swings:
        base = format_share(swings[0].goodput) if by_time else f"{_days(swings[0].seconds)} days"
    return Table(
        title=f"Sensitivity: {'goodput' if by_time else 'mean time'} {base}, and with each input at "
        "its ends",
        columns=columns(
            "input",
            "basis",
            "low",
            "taken",
            "high",
            "at low",
            "at high",
            right="low,taken,high,at low,at high",
            wrap="input",
        ),
        rows=tuple(rows),
    )


def timeline_table(timelines: Sequence[RunTimeline]) -> Table:
    """The share of each slice of time in which the job ran, in tenths."""
    seconds = max(timeline.stretches[-1].end for timeline in timelines)
    return Table(
        title=f"The run in {_STRIP} slices of {format_seconds(seconds / _STRIP)}: tenths of each in "
        "which steps ran (9: all or nearly)",
        columns=columns("simulation at", "0 ... end"),
        rows=tuple(
            (f"P{timeline.percentile}", _strip(timeline, seconds)) for timeline in timelines
        ),
    )


def _strip(timeline: RunTimeline, seconds: float) -> str:
    width = seconds / _STRIP
    ran = [0.0] * _STRIP
    for stretch in timeline.stretches:
        if stretch.account != "run":
            continue
        for index in range(
            int(stretch.start / width), min(int(stretch.end / width), _STRIP - 1) + 1
        ):
            low, high = index * width, (index + 1) * width
            ran[index] += max(0.0, min(stretch.end, high) - max(stretch.start, low))
    end = timeline.stretches[-1].end
    last = min(math.ceil(end / width), _STRIP)
    return "".join(str(min(int(10 * part / width), 9)) for part in ran[:last])


def timeline_figure(timelines: Sequence[RunTimeline]) -> Figure:
    """Time that is no kept step, added up, of simulations at their percentiles; it rises where the job
    is down, and at once where work is lost.
    """
    dashes = ("dot", "solid", "dash")
    traces: list[Data] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": _NAMES.get(timeline.percentile, f"P{timeline.percentile}"),
            "x": [at / DAY_SECONDS for at, _ in timeline.progress],
            "y": [(at - work) / HOUR_SECONDS for at, work in timeline.progress],
            "line": {"width": 2, "color": ACCENT, "dash": dashes[n % 3]},
            "hovertemplate": "day %{x:.2f}: %{y:,.2f} hours lost<extra></extra>",
        }
        for n, timeline in enumerate(timelines)
    ]
    middle = timelines[len(timelines) // 2]
    most = max(at - work for timeline in timelines for at, work in timeline.progress) / HOUR_SECONDS
    for account, colour in _COLOURS.items():
        parts = [s for s in middle.stretches if s.account == account]
        if parts:
            spans = [(s.start, s.end) for s in parts]
            traces += _stops(account, colour, spans, -_STRIP_SHARE / 2 * most)
    layout = base_layout(1, 360)
    layout["xaxis"] = value_axis("days") | {"rangemode": "tozero"}
    layout["yaxis"] |= {
        "title": {"text": "hours lost so far"},
        "showgrid": True,
        "gridcolor": "#E6E6E6",
        "range": [-_STRIP_SHARE * most, 1.05 * most],
    }
    return Figure(
        title="Time lost over the run (hours)",
        data=tuple(traces),
        layout=layout,
        summary=_timeline_summary(middle),
        numbers=_stretch_table(middle),
    )


def _stops(
    account: str, colour: str, spans: Sequence[tuple[float, float]], height: float
) -> list[Data]:
    """Marks at the stops of the median simulation, which has a strip of its own under the lines; a
    stop that is wider than a mark is drawn as long as it was.
    """
    x: list[float | None] = []
    for start, end in spans:
        x += [start / DAY_SECONDS, end / DAY_SECONDS, None]
    y = [None if at is None else height for at in x]
    same: Data = {"type": "scatter", "x": x, "y": y, "hoverinfo": "skip"}
    marks: Data = {
        "mode": "markers",
        "name": _MARKS.get(account, account),
        "marker": {"symbol": "line-ns", "size": 10, "line": {"width": 2, "color": colour}},
    }
    bars: Data = {"mode": "lines", "showlegend": False, "line": {"width": 10, "color": colour}}
    return [same | marks, same | bars]


def _timeline_summary(timeline: RunTimeline) -> str:
    end = timeline.stretches[-1].end
    down = sum(s.end - s.start for s in timeline.stretches if s.account != "run")
    return (
        f"The median run is down for {format_seconds(down)} of {format_seconds(end)}, at the marks "
        "below the curves; vertical rises are work redone after a failure. P10: one simulated run in "
        "ten ends earlier than this one; P90: nine in ten do."
    )


def _stretch_table(timeline: RunTimeline) -> Table:
    total: dict[str, tuple[int, float, float]] = {}
    for s in timeline.stretches:
        count, seconds, longest = total.get(s.account, (0, 0.0, 0.0))
        total[s.account] = (count + 1, seconds + s.end - s.start, max(longest, s.end - s.start))
    return Table(
        title=f"The median run (simulation {timeline.replica})",
        columns=columns("account", "times", "hours", "longest h", right="times,hours,longest h"),
        rows=tuple(
            (
                _MARKS.get(name, name),
                str(count),
                f"{seconds / HOUR_SECONDS:,.1f}",
                f"{longest / HOUR_SECONDS:,.2f}",
            )
            for name, (count, seconds, longest) in total.items()
        ),
    )


def interval_figure(
    curve: IntervalCurve, simulation: Simulation, *, by_time: bool = False
) -> Figure:
    """The interval of the run itself is marked: the lowest of points as noisy as these says less."""
    every, (low, high) = simulation.interval_seconds, curve.flat_seconds
    spread = simulation.work_seconds if by_time else simulation.seconds
    mean, median = spread.mean / DAY_SECONDS, spread.p50 / DAY_SECONDS
    return _curve_figure(
        curve.points,
        what="seconds between checkpoints",
        by="checkpoint interval",
        at=every,
        chosen="this run's interval",
        said=f"The run saves every {_interval(every)}: {mean:,.2f} {_unit(by_time)} on average, "
        f"{median:,.2f} at the median. Every {between(low, high)} is within {_TIE} of "
        "the best.",
        log=True,
        by_time=by_time,
    )


def _interval(seconds: float) -> str:
    """In seconds too, as the axis has them."""
    text = format_seconds(seconds)
    return text if text.endswith(" s") else f"{text} ({seconds:,.4g} seconds)"


def spares_figure(curve: SparesCurve, *, by_time: bool = False) -> Figure:
    """The fewest GPU-h are marked, spares included: more spares than that can still be faster."""
    count = f"{curve.cheapest} spare {'node' if curve.cheapest == 1 else 'nodes'}"
    fewest = "most work per GPU-h" if by_time else "fewest GPU-h"
    more = f"do at most {_TIE} more work" if by_time else f"are at most {_TIE} faster"
    mean = next(_ends(p, by_time)[0] for p in curve.points if p.at == curve.cheapest)
    return _curve_figure(
        curve.points,
        what="spare nodes",
        by="number of spare nodes",
        at=curve.cheapest,
        chosen=fewest,
        log=False,
        said=f"{fewest[0].upper()}{fewest[1:]}: {count}, {_days(mean)} {_unit(by_time)} on average. "
        f"More than {curve.fastest} {more}.",
        by_time=by_time,
    )


def _unit(by_time: bool) -> str:
    return "days of steps done" if by_time else "days"


def _curve_figure(
    points: Sequence[CurvePoint],
    *,
    what: str,
    by: str,
    at: float,
    chosen: str,
    said: str,
    log: bool,
    by_time: bool,
) -> Figure:
    """Mean and P10 to P90 of time, or of work done in it, over a setting; the one at `at` is marked."""
    axis = _unit(by_time)
    days = [tuple(value / DAY_SECONDS for value in _ends(p, by_time)) for p in points]
    trace: Data = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "mean, P10 to P90",
        "x": [p.at for p in points],
        "y": [mean for mean, _, _ in days],
        "line": {"width": 2, "color": ACCENT},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "color": GREY,
            "thickness": 1.5,
            "array": [high - mean for mean, _, high in days],
            "arrayminus": [mean - low for mean, low, _ in days],
        },
        "hovertemplate": f"%{{x:,.4g}} {what}: %{{y:,.2f}} {axis}<extra></extra>",
    }
    least = min(p.seconds for p in points)
    shown = [ends for p, ends in zip(points, days, strict=True) if p.seconds < 1.5 * least]
    layout = base_layout(1, 300)
    layout["xaxis"] = value_axis(what) | (log_axis([p.at for p in points]) if log else {})
    layout["yaxis"] |= {
        "title": {"text": axis},
        "showgrid": True,
        "gridcolor": "#E6E6E6",
        "range": [0.98 * min(low for _, low, _ in shown), 1.02 * max(map(max, shown))],
    }
    mark: Data = {
        "type": "scatter",
        "mode": "lines",
        "name": chosen,
        "x": [at, at],
        "hoverinfo": "skip",
        "y": layout["yaxis"]["range"],
        "line": {"dash": "dash", "width": 2, "color": GREY},
    }
    hidden = len(points) - len(shown)
    where = "below" if by_time else "above"
    note = f" {hidden} settings take more than 1.5 times as long and lie {where} the figure."
    return Figure(
        title=f"{'Work done' if by_time else 'Run time'} by {by} ({axis})",
        data=(trace, mark),
        layout=layout,
        summary=said + (note if hidden else ""),
        numbers=Table(
            title=f"{axis.capitalize()} by {by}",
            columns=columns(what, axis, "P10", "P90", right=f"{what},{axis},P10,P90"),
            rows=tuple(
                (f"{p.at:,.4g}", *(f"{value:,.2f}" for value in ends))
                for p, ends in zip(points, days, strict=True)
            ),
        ),
    )


def _days(seconds: float) -> str:
    return f"{seconds / DAY_SECONDS:,.2f}"


def _number(value: float) -> str:
    return f"{value:,.7g}" if value == round(value, 4) else f"{value:,.4g}"
