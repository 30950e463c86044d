"""`compare` for serving and chains of calls: a coarse estimate, without plans and simulations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.inputs import Quantity, read_quantity
from computeflow.catalog import Catalog, Model
from computeflow.comparison.offers import choose_offers
from computeflow.comparison.serving import (
    SOURCE,
    USUAL_PRECISION,
    CallChain,
    ServingEstimate,
    chains,
    estimate_serving,
)
from computeflow.comparison.sizes import DEVICES
from computeflow.errors import InputError
from computeflow.views.comparison_extras import chains_table, served_headline, served_table
from computeflow.views.tables import Table

SERVING = ("serving", "agentic")


class ServingOptions(TypedDict, total=False):
    users: str | None
    calls: int
    hops: int
    access_latency: Quantity | None
    prompt: int
    answer: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServingAnswer(Answer):
    model: str
    prompt: int
    """Tokens."""
    answer: int
    """Tokens."""
    calls: int
    hops: int
    users: str | None
    """Where the users are, as it was asked."""
    estimates: tuple[ServingEstimate, ...]
    chains: tuple[CallChain, ...]
    """Empty where the users' region is not stated."""

    @property
    def headline(self) -> str:
        return served_headline(self.estimates, self.model)

    def _data(self) -> dict[str, Any]:
        data = {
            "schema": "computeflow.serving/1",
            "model": self.model,
            "coarse": True,
            "served": [codec.encode(estimate) for estimate in self.estimates],
        }
        if self.chains:
            data["users"] = self.users
            data["chains"] = [codec.encode(chain) for chain in self.chains]
        return data

    def tables(self) -> list[Table]:
        tables = [served_table(self.estimates, self.model, self.prompt, self.answer)]
        if self.chains:
            users = self.users or ""
            tables.append(chains_table(self.chains, users, self.calls, self.hops, SOURCE))
        return tables


def compare_serving(
    model: Model,
    catalog: Catalog,
    workload: str,
    providers: Sequence[str],
    regions: Sequence[str],
    devices: Sequence[str],
    precision: str | None,
    options: ServingOptions,
) -> ServingAnswer:
    users = options.get("users")
    if workload == "agentic" and not users:
        raise InputError("--workload agentic needs --users REGION")
    calls, hops = options.get("calls", 1), options.get("hops", 1)
    prompt, answer = options.get("prompt", 1024), options.get("answer", 256)
    estimates = estimate_serving(
        model,
        catalog,
        devices or DEVICES,
        prompt=prompt,
        output=answer,
        precision=precision or USUAL_PRECISION,
        offers=choose_offers(catalog, providers, regions, ()),
    )
    access_seconds = read_quantity(options.get("access_latency"), "seconds") or 0.0
    return ServingAnswer(
        model=model.name,
        prompt=prompt,
        answer=answer,
        calls=calls,
        hops=hops,
        users=users,
        estimates=tuple(estimates),
        chains=tuple(chains(users, calls=calls, hops=hops, onramp_seconds=access_seconds))
        if users
        else (),
    )
