"""`compare`: every offer for a training, or, coarsely, where to serve a model."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.comparison_data import advice_data, comparison_data, split_data
from computeflow.answers.inputs import (
    CatalogFiles,
    File,
    Quantity,
    given_options,
    open_catalog,
    read_quantity,
    this_day,
)
from computeflow.answers.serving import SERVING, ServingAnswer, ServingOptions, compare_serving
from computeflow.catalog import Catalog
from computeflow.catalog.lookup import find_typed_model
from computeflow.comparison.advice import TRAINING, Advice, advise
from computeflow.comparison.clusters import Progress, silent
from computeflow.comparison.comparisons import compare as compare_offers
from computeflow.comparison.comparisons import on_term
from computeflow.comparison.moves import Move, move_to_each
from computeflow.comparison.offers import ASSUMED_NIC, Offering, gather_offers, grids_in
from computeflow.comparison.own_sites import own_offerings
from computeflow.comparison.planner import usual_job
from computeflow.comparison.providers import ProviderTable, load_terms
from computeflow.comparison.request import ComparisonRequest, Market
from computeflow.comparison.results import Comparison, Result
from computeflow.comparison.splits import OwnedBase, Split, own_base, split
from computeflow.comparison.windows import (
    MISSING,
    GridCost,
    Hour,
    Start,
    find_starts,
    read_hours,
    regions_by_energy,
)
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.reading import read_text
from computeflow.simulation.budget import one_budget
from computeflow.units import DAY_SECONDS
from computeflow.views import comparison_extras
from computeflow.views import comparisons as views
from computeflow.views.tables import Table

if TYPE_CHECKING:
    from computeflow.views.html_report import Part


_REQUEST_FIELDS = {
    "conservative": "sure",
    "max_gpus": "most_gpus",
    "min_gpus": "least_gpus",
    "seed": "seed",
    "simulations": "replicas",
}
"""Options by name, and the fields of `ComparisonRequest` that they set."""


DEADLINE_SECONDS = 60 * DAY_SECONDS
"""Deadline where none is given: Llama 3 405B was pretrained in about two months (arXiv:2407.21783,
section 3.3.4 has 54 days of it)."""


class TrainingOptions(TypedDict, total=False):
    """Requirements of a training; the defaults are those of `ComparisonRequest` and `Market`."""

    tokens: Quantity | None
    deadline: Quantity | None
    conservative: bool
    budget: Quantity | None
    sites: File | None
    unproven: bool
    countries: Sequence[str]
    global_batch: int | None
    seq_len: int | None
    min_gpus: int
    max_gpus: int
    preemptions: float | None
    replacement_time: Quantity | None
    known_networks: bool
    terms: File | None
    data: Quantity | None
    data_at: str | None
    transfer_rate: Quantity | None
    runs: int | None
    demand: Sequence[int]
    owned_price: Quantity | None
    hourly: File | None
    top: int
    simulations: int
    seed: int


class CompareOptions(TrainingOptions, ServingOptions):
    """Options for training and for serving; a workload takes its own."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CompareAnswer(Answer):
    comparison: Comparison
    advice: Advice
    best: Result | None
    """The recommended result on its term, else the cheapest that meets the request, else the
    nearest."""
    moves: tuple[Move, ...] = ()
    """Moves of the data to the providers that run the job."""
    split: Split | None = None
    base: OwnedBase | None = None
    grids: tuple[GridCost, ...] | None = None
    """The energy of the best result on other grids; None: its energy is unknown."""
    starts: Mapping[str, Start] | None = None
    """None: no hours were given."""
    top: int = 10

    @property
    def headline(self) -> str:
        return views.comparison_headline(self.comparison, self.advice)

    def _data(self) -> dict[str, Any]:
        starts = codec.encode(self.starts) or {"missing": MISSING}
        beside = {
            "moves": codec.encode(self.moves) or None,
            "split": self.split and split_data(self.split),
            "hybrid": self.base and codec.encode(self.base.hybrid),
            "grids": codec.encode(self.grids),
            "starts": starts if self.best is not None else None,
        }
        return (
            comparison_data(self.comparison)
            | {"advice": advice_data(self.advice)}
            | {name: value for name, value in beside.items() if value is not None}
        )

    def tables(self) -> list[Table]:
        compared, best = self.comparison, self.best
        runs, *rest = views.comparison_tables(compared, self.top)
        tables = [runs, views.advice_table(self.advice)]
        if best is not None:
            tables.append(views.detail_table(best))
        tables += [views.summary_table(compared), *rest]
        if self.moves:
            tables.append(comparison_extras.moves_table(self.moves[: self.top]))
        if self.split is not None:
            tables.append(comparison_extras.split_table(self.split))
        if self.base is not None:
            tables.append(comparison_extras.hybrid_table(self.base))
        if best is not None and self.grids is not None:
            tables.append(comparison_extras.grids_table(self.grids, best))
        if best is not None:
            tables.append(comparison_extras.starts_table(self.starts))
        if compared.refused:
            tables.append(views.refused_table(compared))
        return tables

    def parts(self) -> Sequence[Part]:
        runs, *rest = self.tables()
        figures = [views.front_figure(self.comparison)] if self.comparison.results else []
        return [runs, *figures, *rest]

    @property
    def title(self) -> str:
        return f"Offers for {self.comparison.request.job.model.name}"

    @property
    def exit_code(self) -> int:
        """3 where nothing meets deadline and budget, or some of the runs cannot be placed."""
        left = self.split is not None and self.split.left
        return 0 if self.comparison.meeting and not left else 3


@checked
@one_budget()
def compare(
    model: str,
    *,
    workload: str = "production",
    providers: Sequence[str] = (),
    regions: Sequence[str] = (),
    devices: Sequence[str] = (),
    precision: str | None = None,
    today: datetime.date | None = None,
    catalog: CatalogFiles = (),
    progress: Progress | None = None,
    **options: Unpack[CompareOptions],
) -> CompareAnswer | ServingAnswer:
    """Compare every offer of the catalog for a job: best plan, simulated days, dollars, energy."""
    if workload not in (*TRAINING, *SERVING):
        raise UnknownNameError("workload", workload, (*TRAINING, *SERVING))
    for name in (TrainingOptions if workload in SERVING else ServingOptions).__annotations__:
        if name in given_options(options):
            raise InputError(f"--{name.replace('_', '-')} is not for --workload {workload}")
    facts = open_catalog(catalog)
    if workload in SERVING:
        return compare_serving(
            find_typed_model(facts, model),
            facts,
            workload,
            providers,
            regions,
            devices,
            precision,
            options,
        )
    _check(options)
    book = provider_table(options.get("terms"), facts)
    hours = _hours(options.get("hourly"))
    offers = _offers(facts, book, providers, regions, devices, options)
    request = read_comparison(model, precision, this_day(today), facts, options)
    compared = compare_offers(
        replace(request, moves=_moves(offers, book, facts, options)),
        offers,
        facts,
        progress=progress or silent,
    )
    return _answer(compared, workload, facts, options, hours)


def provider_table(terms: File | None, facts: Catalog) -> ProviderTable:
    """The packaged rows of providers, with the user's over them."""
    return load_terms(
        None if terms is None else read_text(Path(terms)),
        str(terms),
        providers={*(row.name for row in facts.providers), *(row.provider for row in facts.offers)},
    )


def _best_result(compared: Comparison, advice: Advice, facts: Catalog) -> Result | None:
    if advice.result is not None and advice.cost is not None:
        return on_term(advice.result, advice.cost, facts)
    return compared.meeting[0] if compared.meeting else compared.nearest


def _check(options: TrainingOptions) -> None:
    """Refuse before the work what would fail after it."""
    given = given_options(options)
    if "tokens" not in given:
        raise InputError("missing --tokens")
    for one, other in (("data", "data_at"), ("demand", "owned_price")):
        if (one in given) != (other in given):
            raise InputError(f"--{one} and --{other.replace('_', '-')} must be given together")
    if "transfer_rate" in given and "data" not in given:
        raise InputError("--transfer-rate needs --data")


def _offers(
    facts: Catalog,
    book: ProviderTable,
    providers: Sequence[str],
    regions: Sequence[str],
    devices: Sequence[str],
    options: TrainingOptions,
) -> list[Offering]:
    """The user's own sites and the catalog's offers."""
    sites = options.get("sites")
    return gather_offers(
        facts,
        book,
        own_offerings(read_text(Path(sites)), str(sites), facts) if sites else [],
        providers=providers,
        regions=regions,
        accelerators=devices,
        countries=options.get("countries", ()),
        assumed_nic=None if options.get("known_networks") else ASSUMED_NIC,
    )


def _moves(
    offers: Sequence[Offering], book: ProviderTable, facts: Catalog, options: TrainingOptions
) -> dict[str, Move]:
    size, home = read_quantity(options.get("data"), "bytes"), options.get("data_at")
    if size is None or home is None:
        return {}
    return move_to_each(
        size,
        home,
        [offer.provider for offer in offers],
        book,
        facts,
        line=read_quantity(options.get("transfer_rate"), "bytes_per_second"),
    )


def read_comparison(
    model: str,
    precision: str | None,
    today: datetime.date,
    facts: Catalog,
    options: TrainingOptions,
) -> ComparisonRequest:
    tokens = read_quantity(options.get("tokens"), "tokens")
    deadline = read_quantity(options.get("deadline"), "seconds")
    assert tokens is not None
    market = {
        "preemptions_per_node_day": options.get("preemptions"),
        "replace_seconds": read_quantity(options.get("replacement_time"), "seconds"),
    }
    given = given_options(options)
    return ComparisonRequest(
        job=usual_job(
            find_typed_model(facts, model),
            global_batch=options.get("global_batch"),
            seq_len=options.get("seq_len"),
            precision=precision or "bf16",
        ),
        tokens=tokens,
        deadline_seconds=DEADLINE_SECONDS if deadline is None else deadline,
        budget_usd=read_quantity(options.get("budget"), "usd"),
        today=today,
        market=Market(**{name: value for name, value in market.items() if value is not None}),
        **{field: given[name] for name, field in _REQUEST_FIELDS.items() if name in given},
    )


def _answer(
    compared: Comparison,
    workload: str,
    facts: Catalog,
    options: TrainingOptions,
    hours: Sequence[Hour] | None,
) -> CompareAnswer:
    """The comparison, with the recommendation and the requested extras."""
    advice = advise(compared, workload, unproven=options.get("unproven", False))
    best = _best_result(compared, advice, facts)
    runs, demand = options.get("runs"), options.get("demand", ())
    joules = None if best is None else best.meter.energy.joules
    allowed = grids_in(facts, options.get("countries", ()))
    owned = read_quantity(options.get("owned_price"), "usd")
    return CompareAnswer(
        comparison=compared,
        advice=advice,
        best=best,
        moves=compared.moves,
        split=split(compared, runs, workload) if runs else None,
        base=own_base(compared, demand, owned) if demand and owned is not None else None,
        grids=None if joules is None else tuple(regions_by_energy(joules, facts, allowed)),
        starts=None
        if best is None or hours is None
        else find_starts(hours, best.seconds[0], str(options.get("hourly"))),
        top=options.get("top", 10),
    )


def _hours(hourly: File | None) -> list[Hour] | None:
    """Read the hours before the search, which takes long, and check what can be checked then."""
    if hourly is None:
        return None
    hours = read_hours(read_text(Path(hourly)), str(hourly))
    find_starts(hours, 0.0, str(hourly))
    return hours
