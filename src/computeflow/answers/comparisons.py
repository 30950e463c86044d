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
from computeflow.catalog import Catalog, find_model
from computeflow.comparison.advice import TRAINING, Advice, advise
from computeflow.comparison.comparisons import compare as compare_offers
from computeflow.comparison.moves import Move, move_to_each
from computeflow.comparison.offers import ASSUMED_NIC, Offering, gather_offers, grids_in
from computeflow.comparison.own_sites import own_offerings
from computeflow.comparison.planner import usual_job
from computeflow.comparison.providers import Book, load_terms
from computeflow.comparison.request import Market, Request
from computeflow.comparison.results import Comparison, Result
from computeflow.comparison.splits import OwnedBase, Split, own_base, split
from computeflow.comparison.windows import (
    MISSING,
    GridCost,
    Start,
    find_starts,
    read_hours,
    regions_by_energy,
)
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.reading import read_text
from computeflow.views import comparisons as views
from computeflow.views import elsewhere
from computeflow.views.tables import Table

if TYPE_CHECKING:
    from computeflow.views.report import Part


class TrainingOptions(TypedDict, total=False):
    """What is asked of a training; what is left out has the default of `Request` and `Market`."""

    tokens: Quantity | None
    deadline: Quantity | None
    sure: bool
    budget: Quantity | None
    sites: File | None
    countries: Sequence[str]
    global_batch: int | None
    seq_len: int | None
    least_gpus: int
    most_gpus: int
    preemptions: float | None
    replace: Quantity | None
    known_networks: bool
    terms: File | None
    data: Quantity | None
    data_at: str | None
    line: Quantity | None
    runs: int | None
    demand: Sequence[int]
    owned_price: Quantity | None
    hourly: File | None
    top: int
    simulations: int
    seed: int


class CompareOptions(TrainingOptions, ServingOptions):
    """Those of training and those of serving; a workload takes its own."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CompareAnswer(Answer):
    comparison: Comparison
    advice: Advice
    moves: tuple[Move, ...] = ()
    """Of the data, to the providers that run the job."""
    split: Split | None = None
    base: OwnedBase | None = None
    grids: tuple[GridCost, ...] | None = None
    """The best one's energy at other grids; None: its energy is not known."""
    starts: Mapping[str, Start] | None = None
    """None: no hours were given."""
    top: int = 10

    @property
    def best(self) -> Result | None:
        """What is advised, else the cheapest that meets the request, else the nearest."""
        return self.advice.result or _best_result(self.comparison)

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
        tables = [*views.comparison_tables(compared, self.top), views.advice_table(self.advice)]
        if best is not None:
            tables.append(views.detail_table(best))
        if self.moves:
            tables.append(elsewhere.moves_table(self.moves[: self.top]))
        if self.split is not None:
            tables.append(elsewhere.split_table(self.split))
        if self.base is not None:
            tables.append(elsewhere.hybrid_table(self.base))
        if best is not None and self.grids is not None:
            tables.append(elsewhere.grids_table(self.grids, best))
        if best is not None:
            tables.append(elsewhere.starts_table(self.starts))
        if compared.refused:
            tables.append(views.refused_table(compared))
        return tables

    def parts(self) -> Sequence[Part]:
        summary, *rest = self.tables()
        figures = [views.front_figure(self.comparison)] if self.comparison.results else []
        return [summary, *figures, *rest]

    @property
    def title(self) -> str:
        return f"Offers for {self.comparison.request.job.model.name}"

    @property
    def exit_code(self) -> int:
        """3 where nothing meets deadline and budget, or some of the runs find no place."""
        left = self.split is not None and self.split.left
        return 0 if self.comparison.meeting and not left else 3


@checked
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
            find_model(facts, model),
            facts,
            workload,
            providers,
            regions,
            devices,
            precision,
            options,
        )
    _check(options)
    book = load_terms(
        read_text(Path(terms)) if (terms := options.get("terms")) else None,
        str(terms),
        providers={*(row.name for row in facts.providers), *(row.provider for row in facts.offers)},
    )
    offers = _offers(facts, book, providers, regions, devices, options)
    request = _request(model, precision, this_day(today), facts, options)
    compared = compare_offers(
        replace(request, moves=_moves(offers, book, facts, options)), offers, facts
    )
    return _answer(compared, workload, facts, options)


def _best_result(compared: Comparison) -> Result | None:
    return compared.meeting[0] if compared.meeting else compared.nearest


def _check(options: TrainingOptions) -> None:
    """Say before the work what would fail after it."""
    given = given_options(options)
    if missing := [f"--{name}" for name in ("tokens", "deadline") if name not in given]:
        raise InputError(f"missing {' and '.join(missing)}")
    for one, other in (("data", "data_at"), ("demand", "owned_price")):
        if (one in given) != (other in given):
            raise InputError(f"--{one} and --{other.replace('_', '-')} go together")
    if "line" in given and "data" not in given:
        raise InputError("--line goes with --data")


def _offers(
    facts: Catalog,
    book: Book,
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
    offers: Sequence[Offering], book: Book, facts: Catalog, options: TrainingOptions
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
        line=read_quantity(options.get("line"), "bytes_per_second"),
    )


def _request(
    model: str,
    precision: str | None,
    today: datetime.date,
    facts: Catalog,
    options: TrainingOptions,
) -> Request:
    tokens = read_quantity(options.get("tokens"), "tokens")
    deadline = read_quantity(options.get("deadline"), "seconds")
    assert tokens is not None and deadline is not None
    market = {
        "preemptions_per_node_day": options.get("preemptions"),
        "replace_seconds": read_quantity(options.get("replace"), "seconds"),
    }
    given = given_options(options)
    return Request(
        job=usual_job(
            find_model(facts, model),
            global_batch=options.get("global_batch"),
            seq_len=options.get("seq_len"),
            precision=precision or "bf16",
        ),
        tokens=tokens,
        deadline_seconds=deadline,
        budget_usd=read_quantity(options.get("budget"), "usd"),
        today=today,
        market=Market(**{name: value for name, value in market.items() if value is not None}),
        **{
            name: given[name]
            for name in ("most_gpus", "least_gpus", "sure", "seed")
            if name in given
        },
        **({"replicas": given["simulations"]} if "simulations" in given else {}),
    )


def _answer(
    compared: Comparison, workload: str, facts: Catalog, options: TrainingOptions
) -> CompareAnswer:
    """With what was asked for beside the comparison."""
    advice = advise(compared, workload)
    best = advice.result or _best_result(compared)
    runs, demand = options.get("runs"), options.get("demand", ())
    joules = None if best is None else best.meter.energy.joules
    allowed = grids_in(facts, options.get("countries", ()))
    owned = read_quantity(options.get("owned_price"), "usd")
    return CompareAnswer(
        comparison=compared,
        advice=advice,
        moves=compared.moves,
        split=split(compared, runs, workload) if runs else None,
        base=own_base(compared, demand, owned) if demand and owned is not None else None,
        grids=None if joules is None else tuple(regions_by_energy(joules, facts, allowed)),
        starts=None if best is None else _starts(best.seconds[0], options.get("hourly")),
        top=options.get("top", 10),
    )


def _starts(seconds: float, hourly: File | None) -> dict[str, Start] | None:
    if hourly is None:
        return None
    hours = read_hours(read_text(Path(hourly)), str(hourly))
    return find_starts(hours, seconds, str(hourly))
