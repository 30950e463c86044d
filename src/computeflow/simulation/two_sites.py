"""The same job at two sites, account by account, in days and dollars, with ranges: `compare_sites`.

Both sites run the same layout for the same tokens, so every account's days can be set against each
other and the differences add up to the whole. All inputs of both are drawn over what they may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from computeflow.catalog import Catalog, find_model
from computeflow.cluster import Cluster
from computeflow.cluster.machine import LinkTier as LinkTier
from computeflow.cluster.machine import usual_cluster
from computeflow.economics import usd_of
from computeflow.errors import InputError
from computeflow.planning import plan
from computeflow.prediction import Prediction, find_stack, predict
from computeflow.scheduling import Eviction, Policy, Spares
from computeflow.simulation.bringup import bring_up, of_values
from computeflow.simulation.conditions import Input, change_conditions, inputs, usual_conditions
from computeflow.simulation.draws import check_seed
from computeflow.simulation.failures import find_failures
from computeflow.simulation.run_from_plan import node_gpus, waiting_watts
from computeflow.simulation.run_inputs import RunInputs, pool_nodes
from computeflow.simulation.run_validation import SourcedRange
from computeflow.simulation.simulate import play_many
from computeflow.simulation.site_scenarios import (
    Scenario,
    ScenarioJob,
    ScenarioPrice,
    ScenarioSite,
    outages,
    tier_conditions,
)
from computeflow.simulation.totals import ACCOUNTS, SimulationTotals
from computeflow.simulation.uncertainty import latin, percentiles, quantile
from computeflow.units import DAY_SECONDS
from computeflow.workload import Job

STACK = "megatron"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountDifference:
    """One account: days of the whole job at both sites, and their difference."""

    account: str
    days: tuple[float, float]
    difference: float
    """Means over all draws; they add up."""
    low: float
    """P10 to P90 of the difference."""
    high: float
    usd: float
    usd_low: float
    usd_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteResult:
    name: str
    doc: str
    bringup_days: tuple[float, float, float]
    """days_to_target_throughput: P10, P50, P90."""
    run_days: tuple[float, float, float]
    total_days: tuple[float, float, float]
    usd: tuple[float, float, float]
    ettr: tuple[float, float, float]
    goodput: tuple[float, float, float]
    spares: tuple[float, float, float]
    finished: float
    """Share of its work that the least finished draw has done; 1 where all are."""
    step_seconds: float
    mfu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteComparison:
    sites: Scenario
    prediction: Prediction
    """Prediction of the step at the first site."""
    results: tuple[SiteResult, SiteResult]
    lines: tuple[AccountDifference, ...]
    total: AccountDifference
    premium: tuple[float, float, float]
    """By how much a GPU-hour at the first site may cost more for equal dollars: P10, P50, P90."""
    assumed_share: float | None
    """Share of the difference in days, with all inputs in their middle, that goes away when inputs that
    are not published for both sites are equal; None where the sites do not differ."""
    draws: int
    inputs: dict[str, dict[str, SourcedRange]] = field(default_factory=dict)


def compare_sites(
    sites: Scenario, catalog: Catalog, *, draws: int = 100, replicas: int = 20, seed: int = 0
) -> SiteComparison:
    check_seed(seed)
    predictions = _predictions(sites, catalog)
    quantiles = {name: latin(1, draws, seed + n)[0] for n, name in enumerate(_names(sites))}
    sites_run = [
        _lived(sites, site, step, catalog, quantiles, draws, replicas, seed)
        for site, step in zip(sites.site, predictions, strict=True)
    ]
    gpu_day = np.array(
        [usd_of(DAY_SECONDS, _price(sites.price, float(q))) for q in quantiles["price"]]
    )
    lines = _lines(sites_run[0], sites_run[1], gpu_day)
    total = _line("total", sites_run[0].total, sites_run[1].total, gpu_day, sites_run[0].gpus)
    results = [
        _result(site, one, step, gpu_day)
        for site, one, step in zip(sites.site, sites_run, predictions, strict=True)
    ]
    return SiteComparison(
        sites=sites,
        prediction=predictions[0],
        results=(results[0], results[1]),
        lines=tuple(lines),
        total=total,
        premium=percentiles(list(sites_run[1].total / sites_run[0].total - 1)),
        assumed_share=_assumed_share(sites, predictions, catalog, seed),
        draws=draws,
        inputs={
            site.name: {"failures_per_node_day": site.failures, **site.conditions, **site.bringup}
            for site in sites.site
        },
    )


def _predictions(sites: Scenario, catalog: Catalog) -> list[Prediction]:
    """One layout, the best at the first site, at both."""
    story = sites.story
    job = Job(
        model=find_model(catalog, story.model),
        global_batch=story.global_batch,
        seq_len=story.seq_len,
    )
    clusters = [_cluster(story, site.oversubscription, catalog) for site in sites.site]
    stack = find_stack(STACK)
    plans = plan(job, clusters[0], stack, top=1).plans
    if not plans:
        raise InputError(
            f"{story.model} has no plan on {story.gpus:,} {story.accelerator}: run "
            "`computeflow plan` to see why"
        )
    return [predict(job, cluster, plans[0].layout, stack) for cluster in clusters]


def _cluster(story: ScenarioJob, oversubscription: float, catalog: Catalog) -> Cluster:
    """The catalog's node type; between its domains the network carries the stated share."""
    cluster = usual_cluster(story.accelerator, story.gpus, catalog)
    outer = cluster.tiers[-1]
    narrow = LinkTier(
        devices=outer.devices, bytes_per_second=outer.bytes_per_second / oversubscription
    )
    return replace(cluster, tiers=(*cluster.tiers[:-1], narrow))


def _names(sites: Scenario) -> list[str]:
    """Names of everything that is drawn; an input that both sites state has one quantile for both."""
    own = [n for site in sites.site for n in (*site.conditions, *site.bringup)]
    return list(dict.fromkeys(["price", "failures", "outages_per_year", *inputs(), *own]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _DrawMeans:
    """Mean of the replicas of every draw, in GPU-days of the job, by account."""

    accounts: dict[str, np.ndarray]
    total: np.ndarray
    total_days: np.ndarray
    bringup_days: np.ndarray
    run_days: np.ndarray
    ettr: np.ndarray
    goodput: np.ndarray
    spares: np.ndarray
    gpus: int
    finished: float
    """Share of its work that the least finished draw has done; 1 where all are."""


def _lived(
    sites: Scenario,
    site: ScenarioSite,
    step: Prediction,
    catalog: Catalog,
    quantiles: Mapping[str, np.ndarray],
    draws: int,
    replicas: int,
    seed: int,
) -> _DrawMeans:
    at = [{name: float(q[n]) for name, q in quantiles.items()} for n in range(draws)]
    runs = [_run(sites, site, step, catalog, quantiles) for quantiles in at]
    books = play_many(runs, replicas=replicas, seed=seed)
    brought = [
        _brought(sites, site, run, one, replicas, seed) for run, one in zip(runs, at, strict=True)
    ]
    return _account(runs, books, np.array(brought), step)


def _brought(
    sites: Scenario,
    site: ScenarioSite,
    run: RunInputs,
    at: Mapping[str, float],
    replicas: int,
    seed: int,
) -> float:
    values = {name: _at(known, at.get(name, 0.5)) for name, known in site.bringup.items()}
    cluster_up = bring_up(
        of_values(values),
        nodes=run.nodes,
        spares=run.policy.spares.nodes,
        target=sites.story.target,
        replicas=replicas,
        seed=seed,
    )
    return float(cluster_up.days_to_target_throughput.mean())


def _run(
    sites: Scenario, site: ScenarioSite, step: Prediction, catalog: Catalog, at: Mapping[str, float]
) -> RunInputs:
    """With every input at its quantile, or in the middle where none is given."""
    tier = catalog.tiers[site.tier]
    known = outages()[tier.name]
    events = _at(
        SourcedRange(
            value=known.per_year,
            low=known.low,
            high=known.high,
            basis="assumed",
            source=known.source,
        ),
        at.get("outages_per_year", 0.5),
    )
    rate = _at(site.failures, at.get("failures", 0.5))
    model = replace(find_failures("llama-3"), per_node_day=rate, source=site.failures.source)
    values = {
        name: quantile(row, at[name])
        for name, row in inputs().items()
        if name in at and name not in _OWN
    }
    values |= tier_conditions(tier)
    values |= {
        "outages_per_year": events,
        "outage_seconds": tier.downtime_seconds_per_year / events,
    }
    values |= {name: _at(own, at.get(name, 0.5)) for name, own in site.conditions.items()}
    conditions = change_conditions(usual_conditions(model), values)
    story, gpus = sites.story, step.layout.gpus
    cluster = usual_cluster(story.accelerator, story.gpus, catalog)
    run = RunInputs(
        label=site.name,
        gpus=gpus,
        node_gpus=node_gpus(cluster, gpus),
        work_seconds=story.tokens / step.job.step_tokens * step.step_seconds,
        conditions=conditions,
        step=step.ledger,
        waiting_watts=waiting_watts(cluster),
    )
    return replace(run, policy=_policy(site, run))


_OWN = ("outages_per_year", "outage_seconds", "lemon_share", "lemon_failures", "infant_factor")
"""Inputs that the sites state or that published rates contain."""


def _policy(site: ScenarioSite, run: RunInputs) -> Policy:
    """Spares for 99 % of the failures that the site has, and Daly's interval."""
    return Policy(
        spares=Spares(nodes=pool_nodes(run)),
        eviction=Eviction(stragglers=site.evict, lemon_failures=site.lemon_failures),
    )


def _at(known: SourcedRange, at: float) -> float:
    row = Input(
        name="input",
        source=known.source,
        as_of="2026",
        quantity="ratio",
        doc="",
        value=known.value,
        low=known.low,
        high=known.high,
        basis=known.basis,
    )
    return quantile(row, at)


def _account(
    runs: list[RunInputs], books: list[SimulationTotals], brought: np.ndarray, step: Prediction
) -> _DrawMeans:
    """GPU-days by account; the step's own accounts share the useful time."""

    def mean(name: str) -> np.ndarray:
        return np.array([float(book.accounts[name].mean()) for book in books]) / DAY_SECONDS

    gpus = runs[0].gpus
    days = np.array([float(book.seconds.mean()) for book in books]) / DAY_SECONDS
    allocated = np.array([run.allocated_gpus for run in runs])
    useful = mean("useful")
    whole = sum(step.ledger.accounts.values())
    accounts = {"bring-up": brought * allocated}
    for name, seconds in step.ledger.accounts.items():
        accounts[name] = useful * gpus * seconds / whole
    for name in ACCOUNTS[1:]:
        accounts[name] = accounts.get(name, 0.0) + mean(name) * gpus
    accounts["idle (spares)"] = days * (allocated - gpus)
    worked = useful + mean("compute.clock") + mean("straggler")
    return _DrawMeans(
        accounts=accounts,
        total=np.asarray(sum(accounts.values())),
        total_days=days + brought,
        bringup_days=brought,
        run_days=days,
        ettr=worked / days,
        goodput=useful * gpus / (days * allocated),
        spares=np.array([run.policy.spares.nodes for run in runs]),
        gpus=gpus,
        finished=float(useful.min() * DAY_SECONDS / (runs[0].work_seconds or 1.0)),
    )


def _lines(
    first: _DrawMeans, second: _DrawMeans, usd_per_gpu_day: np.ndarray
) -> list[AccountDifference]:
    names = list(dict.fromkeys([*first.accounts, *second.accounts]))
    zero = np.zeros_like(first.total)
    lines = [
        _line(
            name,
            first.accounts.get(name, zero),
            second.accounts.get(name, zero),
            usd_per_gpu_day,
            first.gpus,
        )
        for name in names
    ]
    return sorted(lines, key=lambda line: -abs(line.difference))


def _line(
    name: str, first: np.ndarray, second: np.ndarray, usd_per_gpu_day: np.ndarray, gpus: int
) -> AccountDifference:
    more = second - first
    low, _, high = percentiles(list(more / gpus))
    usd = more * usd_per_gpu_day
    usd_low, _, usd_high = percentiles(list(usd))
    return AccountDifference(
        account=name,
        days=(float(first.mean()) / gpus, float(second.mean()) / gpus),
        difference=float(more.mean()) / gpus,
        low=low,
        high=high,
        usd=float(usd.mean()),
        usd_low=usd_low,
        usd_high=usd_high,
    )


def _price(price: ScenarioPrice, at: float) -> float:
    known = SourcedRange(
        value=price.value, low=price.low, high=price.high, basis="published", source="-"
    )
    return _at(known, at)


def _result(
    site: ScenarioSite, means: _DrawMeans, step: Prediction, usd_per_gpu_day: np.ndarray
) -> SiteResult:
    return SiteResult(
        name=site.name,
        doc=site.doc,
        bringup_days=percentiles(list(means.bringup_days)),
        run_days=percentiles(list(means.run_days)),
        total_days=percentiles(list(means.total_days)),
        usd=percentiles(list(means.total * usd_per_gpu_day)),
        ettr=percentiles(list(means.ettr)),
        goodput=percentiles(list(means.goodput)),
        spares=percentiles(list(means.spares)),
        finished=means.finished,
        step_seconds=step.step_seconds,
        mfu=step.ledger.mfu,
    )


def _assumed_share(
    sites: Scenario, predictions: list[Prediction], catalog: Catalog, seed: int
) -> float | None:
    first, second = sites.site
    alike = equal_where_assumed(sites)[1]
    steps = (predictions[0], predictions[1], predictions[1])
    one, other, left = (
        _days(sites, site, step, catalog, seed)
        for site, step in zip((first, second, alike), steps, strict=True)
    )
    if abs(other - one) < 0.01:
        return None
    return float(np.clip(1 - (left - one) / (other - one), 0, 1))


def equal_where_assumed(sites: Scenario) -> tuple[ScenarioSite, ScenarioSite]:
    """Both sites; the second with the first one's figure unless those of both are published.

    A site that does not state a condition has the packaged one.
    """
    first, second = sites.site
    packaged = inputs()

    def alike(
        mine: Mapping[str, SourcedRange], other: Mapping[str, SourcedRange]
    ) -> dict[str, SourcedRange]:
        equal = {}
        for name in dict.fromkeys([*mine, *other]):
            rows = [side.get(name, packaged.get(name)) for side in (mine, other)]
            published = all(row is not None and row.basis == "published" for row in rows)
            taken = (mine if published else other).get(name)
            if taken is not None:
                equal[name] = taken
        return equal

    return first, replace(
        second,
        conditions=alike(second.conditions, first.conditions),
        bringup=alike(second.bringup, first.bringup),
    )


def _days(
    sites: Scenario, site: ScenarioSite, step: Prediction, catalog: Catalog, seed: int
) -> float:
    """Days of the site with every input in the middle."""
    run = _run(sites, site, step, catalog, {})
    (books,) = play_many([run], replicas=200, seed=seed)
    return float(books.seconds.mean()) / DAY_SECONDS + _brought(sites, site, run, {}, 200, seed)
