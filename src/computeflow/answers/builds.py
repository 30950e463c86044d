"""`build`: owning GPUs compared with renting them, for one job or for the three packaged ones."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import (
    CatalogFiles,
    Quantity,
    given_options,
    open_catalog,
    read_quantity,
    this_day,
)
from computeflow.comparison.build_or_rent import (
    BuildCase,
    Decision,
    Hall,
    decide,
    load_cases,
    need_of,
)
from computeflow.comparison.build_or_rent.build_rules import BuildRule, rules
from computeflow.comparison.build_or_rent.published_figures import RecomputedFigure, check_published
from computeflow.comparison.planner import check_tokens
from computeflow.errors import InputError
from computeflow.simulation.budget import one_budget
from computeflow.views import builds as views
from computeflow.views.tables import Table

if TYPE_CHECKING:
    from computeflow.catalog import Catalog
    from computeflow.views.html_report import Part

Settings = Mapping[str, float | str] | Iterable[tuple[str, float | str]]
"""Inputs by name, or pairs of name and value."""
_DATA = (
    "break_even", "never", "build_by", "busy_even", "one_run", "life", "gap", "gap_months",
    "gap_draws", "spending", "waste", "ways",
)  # fmt: skip


class BuildJob(TypedDict, total=False):
    """The job of the named model; without a model, the packaged jobs are used."""

    on: str
    tokens: Quantity
    global_batch: int
    seq_len: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BuildAnswer(Answer):
    decision: Decision
    today: datetime.date
    inputs: bool
    """Whether tables have every input with its source."""

    @property
    def headline(self) -> str:
        return views.decision_headline(self.decision)

    def _data(self) -> dict[str, Any]:
        return {"schema": "computeflow.build/1", **_decision_data(self.decision)}

    def tables(self) -> list[Table]:
        decision = self.decision
        return [
            views.decision_table(decision),
            views.swings_table(decision),
            views.spending_table(decision),
            views.waste_table(decision),
            views.ways_table(decision),
            *([views.inputs_table(decision)] if self.inputs else []),
            views.sources_table(decision, self.today),
            views.verdict_table({decision.need.case.name: decision}),
        ]

    def parts(self) -> Sequence[Part]:
        first, *rest = replace(self, inputs=True).tables()
        return [first, views.break_even_figure(self.decision), *rest]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BuildsAnswer(Answer):
    """The packaged jobs, with common rules of thumb and published costs checked against them."""

    decisions: Mapping[str, Decision]
    rules: tuple[BuildRule, ...]
    published: tuple[RecomputedFigure, ...]
    today: datetime.date

    @property
    def headline(self) -> str:
        return views.decisions_headline(self.decisions)

    def _data(self) -> dict[str, Any]:
        return {
            "schema": "computeflow.builds/1",
            "jobs": {name: _decision_data(decision) for name, decision in self.decisions.items()},
            "rules": codec.encode(self.rules),
            "published": [
                codec.encode(row) | {"agrees": row.agrees, "off": row.off} for row in self.published
            ],
        }

    def tables(self) -> list[Table]:
        swings = {
            name: views.swings_table(decision, most=3) for name, decision in self.decisions.items()
        }
        return [
            views.decisions_table(self.decisions),
            *(replace(table, title=f"{name}: {table.title}") for name, table in swings.items()),
            views.rules_table(self.rules),
            views.published_table(self.published),
            views.sources_table(next(iter(self.decisions.values())), self.today, run=False),
            views.verdict_table(self.decisions),
        ]

    def parts(self) -> Sequence[Part]:
        first, *rest = self.tables()
        decisions = list(self.decisions.values())
        figures = [views.break_even_figure(decision) for decision in decisions]
        *rest, sources, verdict = rest
        return [first, *figures, *rest, views.inputs_table(decisions[-1]), sources, verdict]

    @property
    def title(self) -> str:
        return "Build or rent: 7B, 70B and 400B"


@checked
@one_budget()
def build(
    model: str | None = None,
    *,
    hall: Hall = "colocation",
    next: str | None = "gb200",
    set: Settings = (),
    draws: int = 400,
    inputs: bool = False,
    seed: int = 0,
    today: datetime.date | None = None,
    catalog: CatalogFiles = (),
    progress: Callable[[str], None] | None = None,
    **job: Unpack[BuildJob],
) -> BuildAnswer | BuildsAnswer:
    """Decide to build or rent: costs of owning and of renting the GPUs, and months to break even."""
    facts = open_catalog(catalog)
    stated = read_settings(set)
    day = this_day(today)

    def decision(case: BuildCase) -> Decision:
        if progress is not None:
            progress(f"{case.name}: plan, run and costs")
        return decide(
            need_of(case, facts, seed=seed),
            facts,
            hall=hall,
            given=stated,
            upgrade=None if next == "none" else next,
            draws=draws,
            seed=seed,
        )

    if model is not None:
        return BuildAnswer(decision=decision(_case(model, job)), today=day, inputs=inputs)
    for name in given_options({**job, "inputs": inputs}):
        raise InputError(f"--{name.replace('_', '-')} needs MODEL")
    return _packaged_jobs(
        {n: decision(c) for n, c in load_cases().items()}, facts, draws, seed, day
    )


def _packaged_jobs(
    decisions: Mapping[str, Decision], facts: Catalog, draws: int, seed: int, day: datetime.date
) -> BuildsAnswer:
    return BuildsAnswer(
        decisions=decisions,
        rules=tuple(rules(decisions)),
        published=tuple(check_published(facts, draws=draws, seed=seed)),
        today=day,
    )


def _case(model: str, job: BuildJob) -> BuildCase:
    on = job.get("on", "h100-sxm:1024")
    name, colon, count = on.rpartition(":")
    if not colon or not count.isdecimal() or int(count) < 1:
        raise InputError(f"--on {on}: write accelerator:count (h100-sxm:1024)")
    tokens = read_quantity(job.get("tokens", "15T"), "tokens")
    check_tokens(tokens)
    return BuildCase(
        name=model,
        model=model,
        on=name,
        gpus=int(count),
        tokens=tokens,
        global_batch=job.get("global_batch", 2048),
        seq_len=job.get("seq_len", 8192),
        source="stated",
        as_of="2026",
    )


def read_settings(settings: Settings) -> dict[str, float]:
    read = {}
    for name, value in dict(settings).items():
        try:
            read[name] = float(value)
        except ValueError:
            raise InputError(f"--set {name}={value}: {value!r} is not a number") from None
    return read


def _decision_data(decision: Decision) -> dict[str, Any]:
    """All fields, except the run's ledger, which is given by its dollars."""
    need = decision.need
    return {
        "case": codec.encode(need.case),
        "days": need.days,
        "days_range": need.days_range,
        "goodput": need.goodput,
        "gpu_hours": need.gpu_hours,
        "fleet": codec.encode(decision.fleet),
        **{name: codec.encode(getattr(decision, name)) for name in _DATA},
        "verdict": "own" if decision.owns else "rent",
        "margin": decision.margin,
        "swings": [
            {
                "input": swing.input.name,
                "gap_low": swing.gap_low,
                "gap_high": swing.gap_high,
                "months_low": swing.months_low,
                "months_high": swing.months_high,
            }
            for swing in decision.swings
        ],
        "curve": codec.encode(decision.curve),
        "inputs": {name: codec.encode(row) for name, row in decision.inputs.items()},
        "draws": decision.draws,
        "assumed": list(need.assumed),
    }
