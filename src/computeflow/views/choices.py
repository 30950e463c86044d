"""The answer of `decide` on one screen: what to do, what may go wrong, what would change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from computeflow.comparison.choices import paid, usd_range
from computeflow.comparison.offers import CONTRACT
from computeflow.comparison.risks import MAX_FACTOR
from computeflow.units import DAY_SECONDS, format_count, format_seconds, format_si, format_usd
from computeflow.views.comparisons import flags_of, same_price
from computeflow.views.figures import ACCENT, Data, Figure, base_layout, value_axis
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from computeflow.comparison.choices import Choice
    from computeflow.comparison.results import Result
    from computeflow.comparison.risks import FlipPoint
    from computeflow.comparison.spot import SpotOption

_RISKS = 3
_RANGE = (
    "Range: 80 % of published steps and of simulated failures; for building, 80 % of draws of all "
    "inputs"
)


def choice_headline(choice: Choice) -> str:
    """What to do, for how many days and dollars, and on how many measured runs that rests."""
    request = choice.request
    if choice.way is None:
        goal = f"within {format_seconds(request.deadline_seconds)}" + (
            "" if request.budget_usd is None else f" and {format_usd(request.budget_usd)}"
        )
        near = choice.nearest
        nearest = "" if near is None else f" Nearest: {_nearest_words(near)}."
        return f"No non-preemptible capacity runs the job {goal}.{nearest}{_left_out(choice)}"
    low, high = (format_usd(end) for end in choice.usd_range or (0.0, 0.0))
    dollars = f"{format_usd(choice.usd)} ({low} to {high})"
    if choice.way == "build" and choice.build is not None:
        days = choice.build.p90_seconds / DAY_SECONDS
        return (
            f"Build: {choice.build.gpus:,} {choice.build_device}, {days:.0f} days from "
            f"delivery of the machines to the end, {dollars} bought and sold, "
            f"{format_usd(choice.build.cash_usd)} at the start."
        )
    best = choice.options[0]
    low_days, high_days = (seconds / DAY_SECONDS for seconds in best.seconds_range)
    return (
        f"Rent: {_offer_words(best)} ({low_days:.1f} to {high_days:.1f}), {dollars}"
        f"{same_price(choice.comparison, best, best.best)}. It {_evidence(best)}.{_left_out(choice)}"
    )


def _offer_words(option: Result) -> str:
    cost = option.best
    term = "" if cost is None else f", {cost.term}{flags_of(cost)}"
    return (
        f"{option.offering.name}, {option.gpus:,} {option.offering.accelerator}{term}, "
        f"{option.seconds[0] / DAY_SECONDS:.1f} days"
    )


def _nearest_words(option: Result) -> str:
    """With the P90, which is what a deadline is for."""
    return f"{_offer_words(option)} (P90 {option.seconds[1] / DAY_SECONDS:.1f})"


def _evidence(option: Result) -> str:
    line = option.plan.prediction.evidence.line_at(option.gpus)
    return line if line.startswith("rests") else f"is less certain: {line}"


def _left_out(choice: Choice) -> str:
    """Products that would be cheaper, of devices that nobody measured."""
    if not choice.unproven:
        return ""
    names = dict.fromkeys(option.offering.accelerator for option in choice.unproven)
    return (
        f" Cheaper, but without a measured run of the device: {', '.join(names)} "
        f"({format_usd(paid(choice.unproven[0]))}); --unproven allows them."
    )


def choice_tables(choice: Choice, top: int) -> list[Table]:
    tables = [options_table(choice, top)]
    if choice.risks:
        tables.append(risks_table(choice))
    if choice.flips:
        tables.append(flips_table(choice))
    return tables


def options_table(choice: Choice, top: int) -> Table:
    """Products to rent, cheapest first; then the cheapest on spot, on a contract, and built."""
    listed = [o for o in choice.options if o.offering.provider != CONTRACT][:top]
    contracts = [o for o in choice.options if o.offering.provider == CONTRACT][:1]
    spot = [] if choice.spot is None else [choice.spot.result]
    rows = [_option_row(option) for option in [*listed, *spot, *contracts]]
    build = choice.build
    if build is None:
        reason = f"{choice.build_device}: not within deadline and budget"
        rows.append(("build", reason, "-", "-", "-", "-"))
    else:
        low, middle, high = (format_usd(end) for end in build.usd)
        rows.append(
            (
                "build",
                f"{choice.build_device}, bought and sold",
                f"{build.gpus:,}",
                f"{build.p90_seconds / DAY_SECONDS:.1f}",
                middle,
                f"{low} to {high}",
            )
        )
    more = len(choice.options) - len(listed) - len(contracts)
    request = choice.request
    notes = [
        f"{request.job.model.name}, {format_si(request.tokens, '')} tokens, P90 within "
        f"{format_seconds(request.deadline_seconds)}"
        + ("" if request.budget_usd is None else f", {format_usd(request.budget_usd)} at most")
        + f". {_RANGE}"
        + (f". {more:,} more products in -o json" if more > 0 else "")
    ]
    if contracts:
        notes.append("A contract is paid for its whole year")
    notes.append(_spot_note(choice.spot))
    return Table(
        title="Ways to run it",
        columns=columns(
            "way",
            "what",
            "devices",
            "days P90",
            "$",
            "$ range",
            right="devices,days P90,$",
            wrap="what",
        ),
        rows=tuple(rows),
        notes=tuple(notes),
        strong=frozenset({0}) if choice.way else frozenset(),
    )


def _spot_note(spot: SpotOption | None) -> str:
    """Why spot is not the answer."""
    if spot is None:
        return "Spot: no offer with a training network meets the request"
    now = f"{spot.preemptions_per_node_day:.2g}"
    pays = "" if spot.pays_to is None else f"; below {spot.pays_to:.2g} it is cheaper and in time"
    return (
        f"Spot is not recommended: its machines can be preempted, {now} times per machine-day by "
        f"assumption, as no rates are published{pays}; no provider guarantees so many at once"
    )


def _option_row(option: Result) -> tuple[str, ...]:
    low, high = usd_range(option)
    contract = option.offering.provider == CONTRACT
    name = "any provider" if contract else option.offering.name
    term = "for a year" if contract else option.best.term if option.best else "-"
    spot = option.best is not None and option.best.term == "spot"
    return (
        "contract" if contract else "spot" if spot else "rent",
        f"{name}, {option.offering.accelerator}, {term}",
        f"{option.gpus:,}",
        f"{option.seconds[1] / DAY_SECONDS:.1f}",
        format_usd(paid(option)),
        f"{format_usd(low)} to {format_usd(high)}",
    )


def risks_table(choice: Choice) -> Table:
    shown = choice.risks[:_RISKS]
    rest = len(choice.risks) - len(shown)
    return Table(
        title="Largest risks of renting it, each alone",
        columns=columns("risk", "$ more", "if", right="$ more", wrap="if"),
        rows=tuple((risk.name, format_usd(risk.usd), risk.why) for risk in shown),
        notes=(f"{format_count(rest, 'smaller risk')} in -o json.",) if rest > 0 else (),
    )


def flips_table(choice: Choice) -> Table:
    rows = [_flip_row(flip) for flip in choice.flips]
    years = choice.long_use
    if years is not None:
        months = years.break_even[1]
        rows.append(
            (
                "use",
                "this run",
                "not up to 72 months" if months is None else f"{months:.0f} months",
                f"build: {years.fleet.gpus:,} {years.need.case.on}, in half of {years.draws} draws",
            )
        )
    return Table(
        title="What would change the answer",
        columns=columns("what", "now", "from", "then", wrap="from,then"),
        rows=tuple(rows),
    )


def _flip_row(flip: FlipPoint) -> tuple[str, ...]:
    then = "nothing meets the request" if flip.then is None else _then_words(flip.then)
    if flip.what == "price":
        at = "-" if flip.at is None else f"${flip.at:.2f} (+{100 * (flip.at / flip.now - 1):.0f} %)"
        return ("price of a device-h", f"${flip.now:.2f}", at, then)
    if flip.what == "deadline":
        at = "-" if flip.at is None else f"under {flip.at / DAY_SECONDS:.1f} d"
        return ("deadline", format_seconds(flip.now), at, then)
    name = "failures a node-day"
    if flip.at is None:
        return (name, f"{flip.now:.2g}", f"not up to {MAX_FACTOR:.0f} times", "-")
    return (name, f"{flip.now:.2g}", f"{flip.at:.2g} ({flip.at / flip.now:.1f} times)", then)


def _then_words(option: Result) -> str:
    return (
        f"{option.offering.provider}, {option.gpus:,} {option.offering.accelerator}, "
        f"{format_usd(paid(option))}"
    )


def options_figure(choice: Choice, top: int) -> Figure:
    """Dollars of the ways to run it, each with its range: the cheapest product of each provider and
    device, and building.
    """
    first: dict[tuple[str, str], Result] = {}
    for option in choice.options:
        first.setdefault((option.offering.provider, option.offering.accelerator), option)
    bars = {
        f"{provider}, {option.gpus:,} {device}": (paid(option), usd_range(option))
        for (provider, device), option in list(first.items())[:top]
    }
    if choice.build is not None:
        low, middle, high = choice.build.usd
        bars[f"build, {choice.build.gpus:,} {choice.build_device}"] = (middle, (low, high))
    layout = base_layout(len(bars), 44)
    layout["height"] -= layout["margin"]["t"] - 8  # one series needs no legend
    layout["margin"]["t"] = 8
    layout["margin"]["r"] = _VALUE_PIXELS
    most = max((high for _, (_, high) in bars.values()), default=1e6) / 1e6
    layout["xaxis"] = value_axis("million USD") | {"range": [0, most]}
    layout["yaxis"] |= {"type": "category", "autorange": "reversed"}
    request = choice.request
    return Figure(
        title=f"Cost of training {request.job.model.name} on {format_si(request.tokens, '')} tokens "
        "(million USD)",
        data=(_bar_trace(bars), _bar_values(bars)),
        layout=layout,
        summary="A bar is the expected cost, the line on it its range. The cheapest product of each "
        f"provider and device, and building. {_RANGE}.",
        numbers=options_table(choice, top),
    )


_VALUE_PIXELS = 60
"""Room for a price behind the longest range."""


def _bar_trace(bars: Mapping[str, tuple[float, tuple[float, float]]]) -> Data:
    return {
        "type": "bar",
        "orientation": "h",
        "y": [*bars],
        "x": [usd / 1e6 for usd, _ in bars.values()],
        "showlegend": False,
        "marker": {"color": ACCENT},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [(high - usd) / 1e6 for usd, (_, high) in bars.values()],
            "arrayminus": [(usd - low) / 1e6 for usd, (low, _) in bars.values()],
        },
        "hovertemplate": "%{y}: %{x:,.2f} M$<extra></extra>",
    }


def _bar_values(bars: Mapping[str, tuple[float, tuple[float, float]]]) -> Data:
    """The cost in words, behind the range."""
    return {
        "type": "scatter",
        "mode": "text",
        "y": [*bars],
        "x": [high / 1e6 for _, (_, high) in bars.values()],
        "text": [f"  {format_usd(usd)}" for usd, _ in bars.values()],
        "textposition": "middle right",
        "cliponaxis": False,
        "showlegend": False,
        "hoverinfo": "skip",
    }
