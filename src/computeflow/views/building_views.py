"""Build or rent as tables and a figure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from computeflow.comparison.rents import age_text
from computeflow.economics.ages import STALE_DAYS
from computeflow.ledger import ACCOUNTS
from computeflow.views.figures import OWNERS, Data, Figure, base_layout, value_axis
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.comparison.building.decide import Decision, Swing
    from computeflow.comparison.building.inputs import CostInput
    from computeflow.comparison.building.published import Recomputed
    from computeflow.comparison.building.rules import Rule

Three = tuple[float, float, float]
_NEVER = "never"
_PRICES = {
    "on_demand_usd": "on demand",
    "contract_usd": "on a contract",
    "server_usd_per_gpu": "a machine, per GPU",
}
_SHOWN_MONTHS = (1, 3, 6, 12, 18, 24, 36, 48, 60, 72)


def decisions_table(found: Mapping[str, Decision], today: datetime.date) -> Table:
    """One row for each job."""
    rows = []
    for name, one in found.items():
        low, mid, high = (_month(value) for value in one.break_even)
        rows.append(
            (
                name,
                f"{one.fleet.gpus:,}",
                f"{one.need.days[1]:.0f}",
                _three(one.life.own_usd_per_hour),
                _three(one.life.rent_usd_per_hour),
                f"{mid} ({low} to {high})",
                f"{100 * one.never:.0f} %",
                f"{100 * one.life.build_share:.0f} %",
            )
        )
    return Table(
        title="Build or rent",
        columns=columns(
            "job",
            "GPUs",
            "run d",
            "own $/h",
            "rent $/h",
            "even after months",
            "never",
            "build",
            right="GPUs,run d,own $/h,rent $/h,even after months,never,build",
            wrap="own $/h,rent $/h,even after months",
        ),
        rows=tuple(rows),
        notes=(
            "$/h: per GPU-hour that is used, over the fleet's life; P50 (P10 to P90) over draws of "
            "all inputs. even: months of use after which owning has cost less, sold then. never: "
            "draws in which it does not within 72 months. build: draws in which owning is cheaper "
            "over the fleet's life.",
            *_prices_from(next(iter(found.values())), today),
        ),
    )


def decision_table(one: Decision, today: datetime.date) -> Table:
    need, life, run = one.need, one.life, one.one_run
    low, mid, high = (_month(value) for value in one.break_even)
    share = [("-" if v is None else f"{100 * v:.0f} %") for v in one.busy_even]
    return Table(
        title=f"{need.case.model} on {one.fleet.gpus:,} {need.case.on}: build or rent",
        columns=columns("what", "answer", wrap="answer"),
        rows=(
            (
                "one run",
                f"{need.days[1]:.0f} days ({need.days_range[0]:.0f} to "
                f"{need.days_range[1]:.0f} if the step is as far off as 80 % of predictions), goodput "
                f"{100 * need.goodput:.1f} %",
            ),
            (
                "one run, bought and sold",
                f"{_millions(run.own_usd)} million USD; rented {_millions(run.rent_usd)}",
            ),
            (
                "over the fleet's life",
                f"owned {_millions(life.own_usd)} million USD; rented {_millions(life.rent_usd)}",
            ),
            (
                "a used GPU-hour",
                f"owned {_three(life.own_usd_per_hour)}, rented "
                f"{_three(life.rent_usd_per_hour)} USD",
            ),
            ("owning is cheaper in", f"{100 * life.build_share:.0f} % of draws"),
            (
                "months to break even",
                f"{mid} ({low} to {high}); never within 72 in {100 * one.never:.0f} % of draws",
            ),
            ("hours that must be used", f"{share[1]} ({share[0]} to {share[2]}) against on-demand"),
            (
                "bought",
                f"{one.fleet.machines:,} machines of {one.fleet.node_gpus} GPUs, "
                f"{one.fleet.machines - one.fleet.used_machines:,} of them spare",
            ),
            ("hall", one.fleet.hall),
        ),
        notes=(
            f"P50 (P10 to P90) over {one.draws} draws of all inputs. Assumed of the run: "
            f"{'; '.join(need.assumed)}.",
            *_prices_from(one, today),
        ),
    )


def _prices_from(one: Decision, today: datetime.date) -> tuple[str, ...]:
    """What is paid for machines and for rent, from whom, and how old those prices are."""
    found = []
    for name, label in _PRICES.items():
        row = one.inputs[name]
        age = age_text(row.dates or (row.as_of,), today)
        ends = "" if row.low == row.high else f" ({_plain(row.low)} to {_plain(row.high)})"
        dated = "stated" if row.basis == "stated" else f"{row.source}; {age}"
        found.append(f"{label}: {_plain(row.value)}{ends} USD, {dated}.")
    return (*found, f"old: of more than {STALE_DAYS} days on {today.isoformat()}.")


def swings_table(one: Decision, most: int = 6) -> Table:
    """The inputs that move the answer most."""

    def row(swing: Swing) -> tuple[str, ...]:
        known = swing.input
        ends = f"{_plain(known.low)} to {_plain(known.high)} {known.unit}"
        months = f"{_month(swing.months_low)} / {_month(swing.months_high)}"
        return (
            known.name,
            ends,
            f"{swing.gap_low:+.2f} / {swing.gap_high:+.2f}",
            months,
            known.basis,
        )

    return Table(
        title=f"What moves it most: own less rent is {one.gap:+.2f} USD a used GPU-hour, "
        f"{_even(one.gap_months)}, with all inputs in their middle",
        columns=columns(
            "input",
            "ends",
            "at low / high",
            "even months",
            "basis",
            right="at low / high,even months",
            wrap="ends",
        ),
        rows=tuple(row(swing) for swing in one.swings[:most]),
        notes=(
            "Each input moved alone, all others in their middle. That case is not the median of the "
            f"draws ({one.gap_draws[1]:+.2f} USD, {_even(one.break_even[1])}): inputs reach further to "
            "one side of their middle than to the other, and costs do not follow them in a straight "
            "line.",
        ),
    )


def spending_table(one: Decision) -> Table:
    """What owning is spent on; then what one run's share of it was for."""
    total = sum(values[1] for values in one.spending.values())
    rows = [
        (
            name,
            f"{mid / 1e6:,.2f}",
            f"{low / 1e6:,.2f} to {high / 1e6:,.2f}",
            f"{100 * mid / total:.1f} %",
        )
        for name, (low, mid, high) in one.spending.items()
    ]
    return Table(
        title="What owning is spent on, over the fleet's life (million USD)",
        columns=columns("part", "P50", "P10 to P90", "share", right="P50,P10 to P90,share"),
        rows=tuple(rows),
        notes=("Shares of the sum of medians. resale comes back.",),
    )


def waste_table(one: Decision, least: float = 0.005) -> Table:
    """Dollars of one run by account; small ones together."""
    total = sum(one.waste.values())
    large = {name: usd for name, usd in one.waste.items() if usd >= least * total}
    rows: list[tuple[str, ...]] = [
        (name, ACCOUNTS[name].owner, f"{usd / 1e6:,.2f}", f"{100 * usd / total:.1f} %")
        for name, usd in sorted(large.items(), key=lambda item: -item[1])
    ]
    rest = total - sum(large.values())
    rows.append(("all others", "-", f"{rest / 1e6:,.2f}", f"{100 * rest / total:.1f} %"))
    return Table(
        title="Where the dollars of one run go (million USD)",
        columns=columns("account", "owner", "M$", "share", right="M$,share"),
        rows=tuple(rows),
        notes=("Simulated GPU-hours by account, at the median cost of an owned GPU-hour.",),
    )


def ways_table(one: Decision) -> Table:
    return Table(
        title="Now, later or not at all: the same work over the fleet's life",
        columns=columns(
            "way", "how", "million USD", "cheapest", right="million USD,cheapest", wrap="how"
        ),
        rows=tuple(
            (way.name, way.doc, _millions(way.usd), f"{100 * way.cheapest:.0f} %")
            for way in one.ways
        ),
        notes=(
            "cheapest: share of draws. What a generation brings is not known before it comes: the "
            "step to a newer accelerator that is already sold stands for it, at its price and with "
            "predicted speeds. Who can buy that one today need not wait for it.",
        ),
    )


def rules_table(found: Sequence[Rule]) -> Table:
    return Table(
        title="The usual rules, held against the model",
        columns=columns("rule", "outcome", "why", wrap="rule,outcome,why"),
        rows=tuple((rule.text, rule.outcome, rule.why) for rule in found),
        notes=("comes out: in 80 % of draws or more. does not: in 20 % or less.",),
    )


def published_table(found: Sequence[Recomputed]) -> Table:
    rows = []
    for one in found:
        row = one.published
        ends = [row.low] if row.low == row.high else [row.low, row.high]
        rows.append(
            (
                row.name,
                " to ".join(_figure(v, row.unit) for v in ends),
                f"{_figure(one.middle, row.unit)} ({_figure(one.low, row.unit)} to "
                f"{_figure(one.high, row.unit)})",
                f"{100 * one.off:+.0f} %",
                "yes" if one.agrees else "NO",
            )
        )
    return Table(
        title="Published costs of owning, computed again",
        columns=columns(
            "figure",
            "published",
            "ours",
            "off",
            "meet",
            right="published,ours,off",
            wrap="figure,ours",
        ),
        rows=tuple(rows),
        notes=(
            "With the source's inputs where it states them; the range is over what it leaves open. "
            "meet: the two ranges do. off: middle against middle.",
        ),
    )


def inputs_table(one: Decision) -> Table:
    return Table(
        title="What it rests on",
        columns=columns(
            "input",
            "taken",
            "range",
            "basis",
            "what",
            "source",
            right="taken,range",
            wrap="what,source",
        ),
        rows=tuple(
            (
                row.name,
                _plain(row.value),
                f"{_plain(row.low)} to {_plain(row.high)}",
                row.basis,
                f"{row.doc} ({row.unit})",
                f"{row.source} ({_dated(row)})",
            )
            for row in one.inputs.values()
        ),
    )


def _dated(row: CostInput) -> str:
    last = row.dates[-1] if row.dates else row.as_of
    return row.as_of if last == row.as_of else f"{row.as_of} to {last}"


def break_even_figure(one: Decision) -> Figure:
    """Dollars over months of use, owned and rented, with the range of all inputs."""
    curve = one.curve
    traces: list[Data] = []
    for name, points, colour in (
        ("own", curve.own, OWNERS["design"]),
        ("rent", curve.rent, OWNERS["site"]),
    ):
        traces += _band(name, curve.months, points, colour)
    layout = base_layout(1, 320)
    layout["xaxis"] = value_axis("months of use") | {"range": [0, curve.months[-1]]}
    layout["yaxis"] |= {
        "title": {"text": "million USD, all in"},
        "showgrid": True,
        "gridcolor": "#E6E6E6",
        "rangemode": "tozero",
    }
    low, mid, high = (_month(value) for value in one.break_even)
    return Figure(
        title=f"Owning against renting {one.fleet.gpus:,} {one.need.case.on} for "
        f"{one.need.case.model} (million USD)",
        data=tuple(traces),
        layout=layout,
        summary=f"Months of use until owning breaks even: {mid} ({low} to {high}); in "
        f"{100 * one.never:.0f} % of draws not within 72. Bands hold 80 % of draws; where they "
        "overlap, the inputs decide.",
        numbers=_curve_table(one),
    )


def _band(name: str, months: Sequence[float], points: Sequence[Three], colour: str) -> list[Data]:
    """The median as a line, P10 to P90 as a band under it."""
    lows, mids, highs = ([point[n] / 1e6 for point in points] for n in range(3))
    around: Data = {
        "type": "scatter",
        "mode": "lines",
        "name": f"{name}, P10 to P90",
        "fill": "toself",
        "x": [*months, *reversed(months)],
        "y": [*highs, *reversed(lows)],
        "hoverinfo": "skip",
        "line": {"width": 0, "color": colour},
        "fillcolor": _faint(colour),
    }
    line: Data = {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(months),
        "y": mids,
        "line": {"width": 2.5, "color": colour, "dash": "solid" if name == "own" else "dash"},
        "hovertemplate": f"{name}: %{{y:,.1f}} M$ after %{{x:.0f}} months<extra></extra>",
    }
    return [around, line]


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def _curve_table(one: Decision) -> Table:
    curve = one.curve
    rows = [
        (f"{month:.0f}", _millions(own), _millions(rent))
        for month, own, rent in zip(curve.months, curve.own, curve.rent, strict=True)
        if int(month) in _SHOWN_MONTHS
    ]
    return Table(
        title="Million USD by months of use",
        columns=columns("months", "own", "rent", right="months,own,rent"),
        rows=tuple(rows),
    )


def _month(value: float | None) -> str:
    return _NEVER if value is None else f"{value:.0f}"


def _even(months: float | None) -> str:
    return "never even" if months is None else f"even after {months:.0f} months"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _three(values: Three) -> str:
    low, mid, high = values
    return f"{mid:.2f} ({low:.2f} to {high:.2f})"


def _millions(values: Three) -> str:
    low, mid, high = (value / 1e6 for value in values)
    return f"{mid:,.3g} ({low:,.3g} to {high:,.3g})"


def _figure(value: float, unit: str) -> str:
    if unit == "share":
        return f"{100 * value:.0f} %"
    if value >= 1e9:
        return f"{value / 1e9:.3g} G$"
    if value >= 1e6:
        return f"{value / 1e6:.3g} M$"
    return f"{value:,.0f} $" if value >= 100 else f"{value:.2f} $/h"
