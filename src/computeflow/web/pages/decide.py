"""`/decide`: where to train: the decision, or every offer compared."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from fastapi.responses import Response

from computeflow.web.pages.asking import (
    Days,
    Model,
    Names,
    Precision,
    Tokens,
    WorkbenchDep,
    ask,
    names,
    this_date,
)


def decide_page(
    bench: WorkbenchDep,
    model: Model = "llama-3.1-70b",
    tokens: Tokens = "1T",
    deadline: Days = 60.0,
    budget: Annotated[str | None, Query(min_length=1, max_length=32, description="$: 2M.")] = None,
    devices: Names = "",
    providers: Names = "",
    countries: Names = "",
    precision: Precision = "bf16",
    unproven: bool = False,
    show: Annotated[
        Literal["decision", "offers"], Query(description="The decision, or every offer compared.")
    ] = "decision",
) -> Response:
    """Rent or build, where, for how much, and what would change the answer."""
    parameters = {
        "model": model,
        "tokens": tokens,
        "deadline": deadline,
        "budget": budget,
        "devices": names(devices, "devices"),
        "providers": names(providers, "providers"),
        "countries": names(countries, "countries"),
        "precision": precision,
        "unproven": unproven,
        "today": this_date(),
    }
    return ask(bench, "long", "decide" if show == "decision" else "compare", parameters)
