"""The decision to build or rent as tables and a figure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from computeflow.comparison.rents import age_text
from computeflow.economics.ages import STALE_DAYS
from computeflow.ledger import ACCOUNTS
from computeflow.views.figures import ACCENT, SECOND, Data, Figure, base_layout, value_axis
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.comparison.build_or_rent.break_even import Decision, Swing
    from computeflow.comparison.build_or_rent.build_rules import BuildRule
    from computeflow.comparison.build_or_rent.cost_inputs import CostInput
    from computeflow.comparison.build_or_rent.published_figures import RecomputedFigure

Three = tuple[float, float, float]
_NEVER = "never"
_PRICES = {
    "on_demand_usd": "on-demand GPU-h",
    "contract_usd": "contract GPU-h",
    "server_usd_per_gpu": "machine, per GPU",
}
_SHOWN_MONTHS = (1, 3, 6, 12, 18, 24, 36, 48, 60, 72)


def decision_headline(decision: Decision) -> str:
    """Own or rent, over the fleet's life and for one run."""
    life, run = decision.life, decision.one_run
    own, rent = (usd[1] / 1e6 for usd in (life.own_usd, life.rent_usd))
    share = life.build_share
    way, share = ("Own", share) if share >= 0.5 else ("Rent", 1 - share)
    months = decision.break_even[1]
    even = "does not break even" if months is None else f"breaks even after {months:.0f} months"
    difference = f"{100 * abs(1 - own / rent):.0f} % {'less' if own < rent else 'more'}"
    single = "own" if run.build_share >= 0.5 else "rent"
    return (
        f"{way}, cheaper in {100 * share:.0f} % of {decision.draws} draws: over the fleet's life "
        f"owning costs ${own:,.3g}M, {difference} than renting (${rent:,.3g}M, medians), and {even}. "
        f"For one run alone, {single}."
    )


def decisions_headline(decisions: Mapping[str, Decision]) -> str:
    shares = ", ".join(
        f"{name} in {100 * decision.life.build_share:.0f} % of draws"
        for name, decision in decisions.items()
    )
    return f"Owning is cheaper than renting over the fleet's life for {shares}."


def decisions_table(decisions: Mapping[str, Decision]) -> Table:
    """The decision for each job in one row."""
    rows = []
    for name, decision in decisions.items():
        low, mid, high = (_month(value) for value in decision.break_even)
        rows.append(
            (
                name,
                f"{decision.fleet.gpus:,}",
                f"{decision.need.days[1]:.0f}",
                _three(decision.life.own_usd_per_hour),
                _three(decision.life.rent_usd_per_hour),
                f"{mid} ({low} to {high})",
                f"{100 * decision.never:.0f} %",
                f"{100 * decision.life.build_share:.0f} %",
            )
        )
    return Table(
        title="Build or rent, by job",
        columns=columns(
            "job",
            "GPUs",
            "run d",
            "own $/h",
            "rent $/h",
            "months to break even",
            "never",
            "own",
            right="GPUs,run d,own $/h,rent $/h,months to break even,never,own",
            wrap="own $/h,rent $/h,months to break even",
        ),
        rows=tuple(rows),
        notes=(
            "$/h: per used GPU-h, over the fleet's life; P50 (P10 to P90) over draws of all inputs. "
            "Months to break even: months of use after which owning, with the machines sold then, has "
            "cost less. Never: draws in which it does not within 72 months. Own: draws in which owning "
            "is cheaper over the fleet's life.",
        ),
    )


def decision_table(decision: Decision) -> Table:
    need, life, run = decision.need, decision.life, decision.one_run
    low, mid, high = (_month(value) for value in decision.break_even)
    share = [("-" if v is None else f"{100 * v:.0f} %") for v in decision.busy_even]
    return Table(
        title=f"{need.case.model} on {decision.fleet.gpus:,} {need.case.on}: build or rent",
        columns=columns("quantity", "P50 (P10 to P90)", wrap="P50 (P10 to P90)"),
        rows=(
            (
                "one run",
                f"{need.days[1]:.0f} days (predicted range {need.days_range[0]:.0f} to "
                f"{need.days_range[1]:.0f}), goodput {100 * need.goodput:.1f} %",
            ),
            (
                "one run, million $",
                f"bought and sold {_millions(run.own_usd)}; rented {_millions(run.rent_usd)}",
            ),
            (
                "fleet's life, million $",
                f"owned {_millions(life.own_usd)}; rented {_millions(life.rent_usd)}",
            ),
            (
                "$ per used GPU-h",
                f"owned {_three(life.own_usd_per_hour)}; rented {_three(life.rent_usd_per_hour)}",
            ),
            ("owning is cheaper in", f"{100 * life.build_share:.0f} % of draws"),
            (
                "months to break even",
                f"{mid} ({low} to {high}); never within 72 in {100 * decision.never:.0f} % of draws",
            ),
            ("use needed to pay off", f"{share[1]} ({share[0]} to {share[2]}) of all hours"),
            (
                "purchase",
                f"{decision.fleet.machines:,} machines of {decision.fleet.node_gpus} GPUs, "
                f"{decision.fleet.machines - decision.fleet.used_machines:,} of them spare",
            ),
            ("hall", decision.fleet.hall),
        ),
        notes=(
            f"Over {decision.draws} draws of all inputs. Use needed to pay off is against on-demand "
            "prices.",
        ),
    )


def verdict_table(decisions: Mapping[str, Decision]) -> Table:
    """What to do over the fleet's life, and by how much."""
    rows = []
    for name, decision in decisions.items():
        life, owns = decision.life, decision.owns
        share = life.build_share if owns else 1 - life.build_share
        saved = abs(life.rent_usd[1] - life.own_usd[1]) / 1e6
        turn = f"{100 * abs(decision.margin):.0f} % {'lower' if decision.margin < 0 else 'higher'}"
        rows.append(
            (
                name,
                "own" if owns else "rent",
                f"{100 * share:.0f} %",
                f"{saved:,.3g}",
                turn,
                "own" if decision.one_run.build_share >= 0.5 else "rent",
            )
        )
    return Table(
        title="Verdict over the fleet's life, with its margin",
        columns=columns(
            "job",
            "verdict",
            "of draws",
            "million $ between",
            "equal if rents are",
            "one run alone",
            right="of draws,million $ between",
            wrap="job",
        ),
        rows=tuple(rows),
        notes=("Between the medians of owning and of renting.",),
    )


def sources_table(decision: Decision, today: datetime.date, *, run: bool = True) -> Table:
    """Prices of machines and of rent with their sources and ages; with the run's assumptions."""
    rows = []
    for name, label in _PRICES.items():
        row = decision.inputs[name]
        age = age_text(row.dates or (row.as_of,), today)
        ends = "" if row.low == row.high else f" ({_plain(row.low)} to {_plain(row.high)})"
        dated = "stated" if row.basis == "stated" else f"{row.source}; {age}"
        rows.append((label, f"${_plain(row.value)}{ends}", dated))
    if run:
        rows.append(("the run", "-", "; ".join(decision.need.assumed)))
    return Table(
        title="Assumptions and sources",
        columns=columns("input", "value", "source", wrap="value,source"),
        rows=tuple(rows),
        notes=(f"Old: of more than {STALE_DAYS} days on {today.isoformat()}.",),
    )


def swings_table(decision: Decision, most: int = 6) -> Table:
    """The inputs that change the answer most."""

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
        title="Sensitivity: with all inputs in their middle, own less rent is "
        f"{decision.gap:+.2f} $ per used GPU-h, {_even(decision.gap_months)}",
        columns=columns(
            "input",
            "ends",
            "at low / high",
            "break-even months",
            "basis",
            right="at low / high,break-even months",
            wrap="ends",
        ),
        rows=tuple(row(swing) for swing in decision.swings[:most]),
        notes=(
            "Each input is varied alone, all others in their middle. That case is not the median of "
            f"the draws ({decision.gap_draws[1]:+.2f} $, {_even(decision.break_even[1])}): the ranges "
            "are not symmetric, and costs are not linear in the inputs.",
        ),
    )


def spending_table(decision: Decision) -> Table:
    """The costs of owning over the fleet's life, by part."""
    total = sum(values[1] for values in decision.spending.values())
    rows = [
        (
            name,
            f"{mid / 1e6:,.2f}",
            f"{low / 1e6:,.2f} to {high / 1e6:,.2f}",
            f"{100 * mid / total:.1f} %",
        )
        for name, (low, mid, high) in decision.spending.items()
    ]
    return Table(
        title="Cost of owning over the fleet's life (million $)",
        columns=columns("part", "P50", "P10 to P90", "share", right="P50,P10 to P90,share"),
        rows=tuple(rows),
        notes=("Shares of the sum of medians. Resale is income.",),
    )


def waste_table(decision: Decision, least: float = 0.005) -> Table:
    """Dollars of one run by account; small accounts are summed."""
    total = sum(decision.waste.values())
    large = {name: usd for name, usd in decision.waste.items() if usd >= least * total}
    rows: list[tuple[str, ...]] = [
        (name, ACCOUNTS[name].owner, f"{usd / 1e6:,.2f}", f"{100 * usd / total:.1f} %")
        for name, usd in sorted(large.items(), key=lambda item: -item[1])
    ]
    rest = total - sum(large.values())
    rows.append(("all others", "-", f"{rest / 1e6:,.2f}", f"{100 * rest / total:.1f} %"))
    return Table(
        title="Cost of one run by account (million $)",
        columns=columns("account", "owner", "M$", "share", right="M$,share"),
        rows=tuple(rows),
        notes=("Simulated GPU-h by account, at the median cost of an owned GPU-h.",),
    )


def ways_table(decision: Decision) -> Table:
    return Table(
        title="Rent, build now or build later: the same work over the fleet's life",
        columns=columns(
            "way", "how", "million $", "cheapest", right="million $,cheapest", wrap="how"
        ),
        rows=tuple(
            (way.name, way.doc, _millions(way.usd), f"{100 * way.cheapest:.0f} %")
            for way in decision.ways
        ),
        notes=(
            "Cheapest: share of draws. The next generation is unknown; a newer accelerator that is "
            "already sold stands for it, with its price and predicted speed. If you can buy that one "
            "today, there is no need to wait.",
        ),
    )


def rules_table(rules: Sequence[BuildRule]) -> Table:
    return Table(
        title="Common rules of thumb, checked with the model",
        columns=columns("rule", "outcome", "why", wrap="rule,outcome,why"),
        rows=tuple((rule.text, rule.outcome, rule.why) for rule in rules),
        notes=("Comes out: in 80 % of draws or more. Does not: in 20 % or less.",),
    )


def published_table(published: Sequence[RecomputedFigure]) -> Table:
    rows = []
    for recomputed in published:
        row = recomputed.published
        ends = [row.low] if row.low == row.high else [row.low, row.high]
        rows.append(
            (
                row.name,
                " to ".join(_figure(v, row.unit) for v in ends),
                f"{_figure(recomputed.middle, row.unit)} ({_figure(recomputed.low, row.unit)} to "
                f"{_figure(recomputed.high, row.unit)})",
                f"{100 * recomputed.off:+.0f} %",
                "yes" if recomputed.agrees else "NO",
            )
        )
    return Table(
        title="Published costs of owning, recomputed",
        columns=columns(
            "figure",
            "published",
            "ours",
            "off",
            "agrees",
            right="published,ours,off",
            wrap="figure,ours",
        ),
        rows=tuple(rows),
        notes=(
            "With the source's inputs where it states them; the range covers what it leaves open. "
            "Agrees: the two ranges overlap. Off: our middle against the published recomputed.",
        ),
    )


def inputs_table(decision: Decision) -> Table:
    return Table(
        title="All inputs with their ranges and sources",
        columns=columns(
            "input",
            "taken",
            "range",
            "basis",
            "meaning",
            "source",
            right="taken,range",
            wrap="meaning,source",
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
            for row in decision.inputs.values()
        ),
    )


def _dated(row: CostInput) -> str:
    last = row.dates[-1] if row.dates else row.as_of
    return row.as_of if last == row.as_of else f"{row.as_of} to {last}"


def break_even_figure(decision: Decision) -> Figure:
    """Dollars over months of use, owned and rented, with the range of all inputs."""
    curve = decision.curve
    traces: list[Data] = []
    for name, points, colour in (
        ("own", curve.own, ACCENT),
        ("rent", curve.rent, SECOND),
    ):
        traces += _band(name, curve.months, points, colour)
    layout = base_layout(1, 320)
    layout["xaxis"] = value_axis("months of use") | {"range": [0, curve.months[-1]]}
    layout["yaxis"] |= {
        "title": {"text": "million USD, total"},
        "showgrid": True,
        "gridcolor": "#E6E6E6",
        "rangemode": "tozero",
    }
    low, mid, high = (_month(value) for value in decision.break_even)
    return Figure(
        title=f"Owning against renting {decision.fleet.gpus:,} {decision.need.case.on} for "
        f"{decision.need.case.model} (million USD)",
        data=tuple(traces),
        layout=layout,
        summary=f"Months of use until owning breaks even: {mid} ({low} to {high}); in "
        f"{100 * decision.never:.0f} % of draws not within 72. Bands are P10 to P90; where "
        "they overlap, the inputs decide.",
        numbers=_curve_table(decision),
    )


def _band(name: str, months: Sequence[float], points: Sequence[Three], colour: str) -> list[Data]:
    """The median as a line over a band from P10 to P90."""
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


def _curve_table(decision: Decision) -> Table:
    curve = decision.curve
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
    return "no break-even" if months is None else f"break-even after {months:.0f} months"


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
