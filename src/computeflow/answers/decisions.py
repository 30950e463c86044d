"""`decide`: rent or build, where, for how much, and what would change the answer."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from computeflow import codec
from computeflow.answers.answer import PROBLEMS, Answer
from computeflow.answers.checking import checked
from computeflow.answers.comparison_data import cost_data
from computeflow.answers.comparisons import provider_table, read_comparison
from computeflow.answers.inputs import CatalogFiles, File, Quantity, open_catalog, this_day
from computeflow.comparison.choices import Choice, choose, paid, usd_range
from computeflow.comparison.clusters import Progress, silent
from computeflow.comparison.offers import gather_offers
from computeflow.comparison.planner import shape_cluster
from computeflow.comparison.results import Result
from computeflow.comparison.spot import SpotOption
from computeflow.simulation.budget import one_budget
from computeflow.views import choices as views
from computeflow.views.tables import Table, columns
from computeflow.workload import Layout

if TYPE_CHECKING:
    from computeflow.catalog import Catalog
    from computeflow.views.html_report import Part

_SHOWN = 3
"""Products to rent on the screen."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DecideAnswer(Answer):
    choice: Choice
    command: str | None
    """The command that simulates the rented run; None where its cluster is no usual one."""

    @property
    def headline(self) -> str:
        return views.choice_headline(self.choice)

    def _data(self) -> dict[str, Any]:
        choice, build, years = self.choice, self.choice.build, self.choice.long_use
        request = choice.request
        return {
            "schema": "computeflow.decision/1",
            "model": request.job.model.name,
            "tokens": request.tokens,
            "deadline_seconds": request.deadline_seconds,
            "budget_usd": request.budget_usd,
            "way": choice.way,
            "usd": choice.usd,
            "usd_range": choice.usd_range,
            "options": [_option_data(option) for option in choice.options],
            "spot": None if choice.spot is None else _spot_data(choice.spot),
            "build": None
            if build is None
            else {
                "accelerator": choice.build_device,
                "gpus": build.gpus,
                "usd": build.usd,
                "cash_usd": build.cash_usd,
                "ready_seconds": build.ready_seconds,
                "p90_seconds": build.p90_seconds,
            },
            "months_until_owning_pays": None if years is None else years.break_even,
            "risks": [codec.encode(risk) for risk in choice.risks],
            "flips": [
                {
                    "what": flip.what,
                    "unit": flip.unit,
                    "now": flip.now,
                    "at": flip.at,
                    "then": None if flip.then is None else _option_data(flip.then),
                }
                for flip in choice.flips
            ],
            "unproven": [_option_data(option) for option in choice.unproven],
            "nearest": None if choice.nearest is None else choice.nearest.offering.name,
            "command": self.command,
        }

    def tables(self) -> list[Table]:
        tables = views.choice_tables(self.choice, _SHOWN)
        if self.command is not None:
            tables.append(
                Table(
                    title="The same run, simulated",
                    columns=columns("command", wrap="command"),
                    rows=((self.command,),),
                )
            )
        return tables

    def parts(self) -> Sequence[Part]:
        ways, *rest = self.tables()
        first = views.options_figure(self.choice, _SHOWN) if self.choice.way else ways
        return [first, *rest]  # the figure holds the table of the ways

    @property
    def title(self) -> str:
        return f"Where to train {self.choice.request.job.model.name}"

    @property
    def exit_code(self) -> int:
        """3 where nothing meets deadline and budget."""
        return 0 if self.choice.way else PROBLEMS


def _spot_data(spot: SpotOption) -> dict[str, Any]:
    return {
        **_option_data(spot.result),
        "preemptions_per_node_day": spot.preemptions_per_node_day,
        "pays_to_preemptions_per_node_day": spot.pays_to,
    }


def _option_data(option: Result) -> dict[str, Any]:
    offering, prediction = option.offering, option.plan.prediction
    assert option.best is not None
    return {
        "offer": offering.name,
        "provider": offering.provider,
        "product": offering.instance,
        "region": offering.region,
        "accelerator": offering.accelerator,
        "gpus": option.gpus,
        "allocated_gpus": option.simulation.run.allocated_gpus,
        "layout": codec.encode(prediction.layout),
        "mfu": prediction.ledger.mfu,
        "mfu_palm": prediction.ledger.mfu_palm,
        "usd": paid(option),
        "usd_range": usd_range(option),
        "p50_seconds": option.seconds[0],
        "p90_seconds": option.seconds[1],
        "seconds_range": option.seconds_range,
        "goodput": codec.encode(option.simulation.goodput),
        "cost": cost_data(option.best),
        "evidence": prediction.evidence.to_dict(),
    }


@checked
@one_budget()
def decide(
    model: str,
    *,
    tokens: Quantity,
    deadline: Quantity | None = None,
    budget: Quantity | None = None,
    countries: Sequence[str] = (),
    providers: Sequence[str] = (),
    devices: Sequence[str] = (),
    unproven: bool = False,
    conservative: bool = False,
    global_batch: int | None = None,
    seq_len: int | None = None,
    precision: str = "bf16",
    max_gpus: int = 16384,
    terms: File | None = None,
    simulations: int = 50,
    seed: int = 0,
    today: datetime.date | None = None,
    catalog: CatalogFiles = (),
    progress: Progress | None = None,
) -> DecideAnswer:
    """Decide where to train: rent or build, the product, GPUs, days, dollars, risks."""
    facts = open_catalog(catalog)
    request = read_comparison(
        model,
        precision,
        this_day(today),
        facts,
        {
            "tokens": tokens,
            "deadline": deadline,
            "budget": budget,
            "conservative": conservative,
            "global_batch": global_batch,
            "seq_len": seq_len,
            "max_gpus": max_gpus,
            "simulations": simulations,
            "seed": seed,
        },
    )
    offers = gather_offers(
        facts,
        provider_table(terms, facts),
        [],
        providers=providers,
        accelerators=devices,
        countries=countries,
        assumed_nic=None,
    )
    choice = choose(request, offers, facts, unproven=unproven, progress=progress or silent)
    rented = choice.rented
    return DecideAnswer(
        choice=choice, command=None if rented is None else simulate_command(rented, facts)
    )


def simulate_command(option: Result, catalog: Catalog) -> str | None:
    """The command that simulates the run of an option; None where its cluster is no usual one."""
    from computeflow.cluster.machine import usual_cluster

    prediction, run = option.plan.prediction, option.simulation.run
    offering, job = option.offering, prediction.job
    if shape_cluster(offering.shape, option.gpus, catalog) != usual_cluster(
        offering.accelerator, option.gpus, catalog
    ):
        return None
    usual = Layout(gpus=option.gpus)
    layout = {
        field.name: value
        for field in fields(Layout)
        if (value := getattr(prediction.layout, field.name)) != getattr(usual, field.name)
    }
    quality = offering.quality
    words = {
        "on": f"{offering.accelerator}:{option.gpus}",
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        **({"precision": job.precision} if job.precision != "bf16" else {}),
        **layout,
        "tokens": f"{option.tokens:g}",
        **{
            name: value
            for name in ("failures", "tier", "cooling", "storage")
            if (value := getattr(quality, name)) is not None
        },
        "spares": run.policy.spares.nodes,
        "simulations": option.simulation.replicas,
        "seed": option.simulation.seed,
    }
    conditions = {
        "repair_seconds": f"{run.conditions.repair_seconds:g}s",
        "repair_spread": f"{run.conditions.repair_spread:g}",
    }
    assert option.best is not None
    parts = [f"--{name.replace('_', '-')} {value}" for name, value in words.items()]
    parts += [f"--set {name}={value}" for name, value in conditions.items()]
    return " ".join(
        [
            f"computeflow simulate {job.model.name}",
            *parts,
            f"--price {option.best.usd_per_device_hour:g}",
        ]
    )
