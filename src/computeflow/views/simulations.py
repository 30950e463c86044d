"""Simulated runs as tables and figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from computeflow.units import DAY_SECONDS, HOUR_SECONDS, format_seconds, format_share
from computeflow.views.figures import GREY, OWNERS, Data, Figure, base_layout, value_axis
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.simulation.curves import IntervalCurve, Point, SparesCurve
    from computeflow.simulation.sensitivity import Sensitivity
    from computeflow.simulation.simulate import Simulation, Spread
    from computeflow.simulation.timeline import Timeline

_STRIP = 60
_COLOURS = {
    "run": OWNERS["useful"],
    "restart": "#0072B2",
    "lost": "#56B4E9",
    "idle": "#E69F00",
    "checkpoint": OWNERS["design"],
    "startup": GREY,
}


def simulation_table(found: Simulation, usd_per_gpu_hour: float | None = None) -> Table:
    run, seconds = found.run, found.seconds
    by_time = run.work_seconds is None
    gpus = f"{run.gpus:,} GPUs"
    if spares := run.policy.spares.nodes:
        gpus += f" and {spares} spare {'node' if spares == 1 else 'nodes'}"
    rows = [
        (
            "length" if by_time else "finished after",
            format_seconds(seconds.p50) if by_time else _range(seconds),
        ),
        ("goodput", _shares(found.goodput)),
        ("ETTR", _shares(found.ettr)),
        ("interruptions", f"{_counts(found.interruptions)}; {_causes(found)}"),
        ("MTBI", "none" if found.mtbi_seconds is None else format_seconds(found.mtbi_seconds)),
        ("planned stops", _counts(found.planned_stops)),
        ("no spare there", f"{_counts(found.spare_waits)} times"),
        ("saves", f"every {format_seconds(found.interval_seconds)} of work"),
        (
            "by formula",
            f"ETTR {format_share(found.closed.meta_ettr)} (Meta), "
            f"{format_share(found.closed.exact_ettr)} (exact for constant rates)",
        ),
        (
            "a recovery",
            f"{format_seconds(found.closed.recovery_seconds)}: "
            + ", ".join(
                f"{name} {format_seconds(part)}"
                for name, part in found.closed.phases.items()
                if part
            ),
        ),
    ]
    if usd_per_gpu_hour is not None:
        rows.insert(1, ("cost", _cost(found, usd_per_gpu_hour)))
    if run.work_seconds is not None and run.work_seconds_range is not None:
        low, high = (seconds.p50 * end / run.work_seconds for end in run.work_seconds_range)
        rows.insert(
            1,
            (
                "step's own range",
                f"{format_seconds(low)} to {format_seconds(high)}, if "
                "the predicted step is as far off as those of 80 % of runs",
            ),
        )
    if found.finished < 1:
        rows.insert(
            1, ("not finished", format_share(1 - found.finished) + " of replicas, given up")
        )
    return Table(
        title=f"{run.label}: {gpus}, {found.replicas:,} replicas, seed {found.seed}",
        columns=columns("what", "simulated", wrap="simulated"),
        rows=tuple(rows),
        notes=("Ranges hold 80 % of replicas (P10 to P90), around the median.",),
    )


def _range(spread: Spread) -> str:
    return (
        f"{format_seconds(spread.p50)} ({format_seconds(spread.p10)} to "
        f"{format_seconds(spread.p90)})"
    )


def _shares(spread: Spread) -> str:
    low, high = format_share(spread.p10), format_share(spread.p90)
    return f"{format_share(spread.p50)} ({low} to {high})"


def _counts(spread: Spread) -> str:
    return f"{spread.p50:,.0f} ({spread.p10:,.0f} to {spread.p90:,.0f})"


def _causes(found: Simulation) -> str:
    most = sorted(found.by_cause.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count:,.1f}" for name, count in most[:5] if count >= 0.05) or "none"


def _cost(found: Simulation, usd_per_gpu_hour: float) -> str:
    usd = found.usd(usd_per_gpu_hour)
    low, middle, high = (f"${value:,.0f}" for value in (usd.p10, usd.p50, usd.p90))
    return f"{middle} ({low} to {high}) at ${usd_per_gpu_hour:g} per GPU-hour"


def interval_table(curve: IntervalCurve, *, by_time: bool = False) -> Table:
    """Days of the run; where it goes by time, days of steps that it does in it."""
    share = "goodput" if by_time else "ETTR"
    what = "Days of steps done, at full speed" if by_time else "Days"
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
            f"{what}, of {curve.replicas:,} replicas. The curve is flat around its best: half or "
            "twice the interval costs little.",
            *_given_up(curve.points),
        ),
    )


def _given_up(points: Sequence[Point]) -> tuple[str, ...]:
    """What is in the means of settings with which not every replica finished."""
    most = max(1 - point.finished for point in points)
    if not most:
        return ()
    return (
        f"Up to {format_share(most)} of the replicas of a setting are given up; they count until "
        "then, as in the run's own mean.",
    )


def _ends(point: Point, by_time: bool) -> tuple[float, float, float]:
    """Mean, P10 and P90 of what the setting changes."""
    if by_time:
        return point.work_seconds, point.work_p10, point.work_p90
    return point.seconds, point.p10, point.p90


def spares_table(curve: SparesCurve, *, by_time: bool = False) -> Table:
    end, worth = ("P10", "goodput") if by_time else ("P90", "million GPU-hours")
    rows = []
    for p in curve.points:
        mean, low, high = _ends(p, by_time)
        paid = format_share(p.goodput) if by_time else f"{p.gpu_seconds / HOUR_SECONDS / 1e6:,.3f}"
        late = low if by_time else high
        rows.append((f"{p.at:.0f}", _days(mean), _days(late), f"{p.waits:,.1f}", paid))
    of = f"of {curve.replicas:,} replicas"
    note = f"Days, {of}. GPU-hours include those of the spares."
    if by_time:
        note = f"Days of steps done, at full speed, {of}. Goodput counts the spares' GPU-hours."
    return Table(
        title=f"Spare nodes: no faster with more than {curve.fastest}, fewest GPU-hours with "
        f"{curve.cheapest}, one there for 99 % of failures by rule with {curve.pool}",
        columns=columns(
            "spares",
            "mean",
            end,
            "no spare there",
            worth,
            right=f"spares,mean,{end},no spare there,{worth}",
        ),
        rows=tuple(rows),
        notes=(note, *_given_up(curve.points)),
    )


def sensitivity_table(found: Sequence[Sensitivity], *, by_time: bool) -> Table:
    """Goodput where the run goes by time, days where it goes by work."""
    rows = []
    for one in found:
        ends = (
            [format_share(one.goodput_low), format_share(one.goodput_high)]
            if by_time
            else [_days(one.seconds_low), _days(one.seconds_high)]
        )
        rows.append((one.name, one.basis, *map(_number, (one.low, one.value, one.high)), *ends))
    base = ""
    if found:
        base = format_share(found[0].goodput) if by_time else f"{_days(found[0].seconds)} days"
    return Table(
        title=f"What it rests on: {'goodput' if by_time else 'mean time'} {base}, and with each "
        "input at its ends",
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


def timeline_table(found: Sequence[Timeline]) -> Table:
    """How much of each slice of time the job ran, in tenths."""
    seconds = max(one.stretches[-1].end for one in found)
    return Table(
        title=f"The run in {_STRIP} slices of {format_seconds(seconds / _STRIP)}: tenths of each in "
        "which steps ran (9: all or nearly)",
        columns=columns("replica at", "0 ... end"),
        rows=tuple((f"P{one.percentile}", _strip(one, seconds)) for one in found),
    )


def _strip(one: Timeline, seconds: float) -> str:
    width = seconds / _STRIP
    ran = [0.0] * _STRIP
    for stretch in one.stretches:
        if stretch.account != "run":
            continue
        for place in range(
            int(stretch.start / width), min(int(stretch.end / width), _STRIP - 1) + 1
        ):
            low, high = place * width, (place + 1) * width
            ran[place] += max(0.0, min(stretch.end, high) - max(stretch.start, low))
    end = one.stretches[-1].end
    last = min(math.ceil(end / width), _STRIP)
    return "".join(str(min(int(10 * part / width), 9)) for part in ran[:last])


def timeline_figure(found: Sequence[Timeline]) -> Figure:
    """Progress of the replicas at their percentiles; flat where the job is down, falling where work
    is lost.
    """
    dashes = ("dot", "solid", "dash")
    traces: list[Data] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"P{one.percentile}",
            "x": [at / DAY_SECONDS for at, _ in one.progress],
            "y": [work / DAY_SECONDS for _, work in one.progress],
            "line": {"width": 2, "color": OWNERS["useful"], "dash": dashes[n % 3]},
            "hovertemplate": "day %{x:.2f}: %{y:.2f} days of steps<extra></extra>",
        }
        for n, one in enumerate(found)
    ]
    middle = found[len(found) // 2]
    for account, colour in _COLOURS.items():
        parts = [s for s in middle.stretches if s.account == account]
        if parts and account != "run":
            traces.append(_bars(account, colour, [(s.start, s.end) for s in parts]))
    layout = base_layout(1, 360)
    layout["xaxis"] = value_axis("days") | {"rangemode": "tozero"}
    layout["yaxis"] |= {
        "title": {"text": "days of steps that stand"},
        "showgrid": True,
        "gridcolor": "#E6E6E6",
        "rangemode": "tozero",
    }
    return Figure(
        title="Progress of simulated runs, and where the median one is down (days)",
        data=tuple(traces),
        layout=layout,
        summary=_timeline_summary(middle),
        numbers=_stretch_table(middle),
    )


def _bars(account: str, colour: str, spans: Sequence[tuple[float, float]]) -> Data:
    """Along the axis, so that every stop of the median replica can be seen."""
    x: list[float | None] = []
    for start, end in spans:
        x += [start / DAY_SECONDS, end / DAY_SECONDS, None]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": account,
        "x": x,
        "y": [None if v is None else 0.0 for v in x],
        "line": {"width": 12, "color": colour},
        "hoverinfo": "skip",
    }


def _timeline_summary(one: Timeline) -> str:
    end = one.stretches[-1].end
    down = sum(s.end - s.start for s in one.stretches if s.account != "run")
    return (
        f"The median replica is down for {format_seconds(down)} of {format_seconds(end)}; what it "
        "repeats after failures is seen where its line falls."
    )


def _stretch_table(one: Timeline) -> Table:
    total: dict[str, tuple[int, float, float]] = {}
    for s in one.stretches:
        count, seconds, longest = total.get(s.account, (0, 0.0, 0.0))
        total[s.account] = (count + 1, seconds + s.end - s.start, max(longest, s.end - s.start))
    return Table(
        title=f"The median replica (number {one.replica})",
        columns=columns("what", "times", "hours", "longest h", right="times,hours,longest h"),
        rows=tuple(
            (name, str(count), f"{seconds / HOUR_SECONDS:,.1f}", f"{longest / HOUR_SECONDS:,.2f}")
            for name, (count, seconds, longest) in total.items()
        ),
    )


def interval_figure(curve: IntervalCurve, *, by_time: bool = False) -> Figure:
    best = f"{curve.best_seconds:,.4g} seconds between saves"
    most = "the most work" if by_time else "the shortest time"
    return _curve_figure(
        curve.points,
        what="seconds between saves",
        at=curve.best_seconds,
        chosen=most,
        said=f"{best}: {most}",
        log=True,
        by_time=by_time,
    )


def spares_figure(curve: SparesCurve, *, by_time: bool = False) -> Figure:
    """Marked by what is paid for, spares included: more spares than that can still be faster."""
    count = f"{curve.cheapest} spare {'node' if curve.cheapest == 1 else 'nodes'}"
    fewest = "the most work a GPU-hour" if by_time else "the fewest GPU-hours"
    return _curve_figure(
        curve.points,
        what="spare nodes",
        at=curve.cheapest,
        chosen=fewest,
        log=False,
        said=f"{count}: {fewest}",
        by_time=by_time,
        then=f" More than {curve.fastest} {'do no more' if by_time else 'are no faster'}.",
    )


def _curve_figure(
    points: Sequence[Point],
    *,
    what: str,
    at: float,
    chosen: str,
    said: str,
    log: bool,
    by_time: bool,
    then: str = "",
) -> Figure:
    """Mean with P10 to P90 over a setting, of time or of the work done in it; the chosen one, at
    `at`, is marked.
    """
    axis = "days of steps done" if by_time else "days"
    days = [tuple(value / DAY_SECONDS for value in _ends(p, by_time)) for p in points]
    trace: Data = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "mean, P10 to P90",
        "x": [p.at for p in points],
        "y": [mean for mean, _, _ in days],
        "line": {"width": 2, "color": OWNERS["useful"]},
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
    shown = [one for p, one in zip(points, days, strict=True) if p.seconds < 1.5 * least]
    layout = base_layout(1, 300)
    layout["xaxis"] = value_axis(what) | ({"type": "log"} if log else {})
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
    near = min(zip(points, days, strict=True), key=lambda pair: abs(pair[0].at - at))[1][0]
    hidden = len(points) - len(shown)
    where = "below" if by_time else "above"
    note = f" {hidden} settings take more than half as long again and lie {where}."
    return Figure(
        title=f"{'Work' if by_time else 'Time'} of the run over {what} ({axis})",
        data=(trace, mark),
        layout=layout,
        summary=f"{said}, {near:,.2f} {axis}.{then}{note if hidden else ''}",
        numbers=Table(
            title=f"{axis.capitalize()} over {what}",
            columns=columns(what, axis, "P10", "P90", right=f"{what},{axis},P10,P90"),
            rows=tuple(
                (f"{p.at:,.4g}", *(f"{value:,.2f}" for value in one))
                for p, one in zip(points, days, strict=True)
            ),
        ),
    )


def _days(seconds: float) -> str:
    return f"{seconds / DAY_SECONDS:,.2f}"


def _number(value: float) -> str:
    return f"{value:,.7g}" if value == round(value, 4) else f"{value:,.4g}"
