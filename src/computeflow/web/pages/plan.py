"""`/plan`: the best layouts for a position of the sliders; time against cost; files to launch it."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from fastapi.responses import Response

from computeflow.errors import UnknownNameError
from computeflow.web.pages.asking import (
    Batch,
    Days,
    Device,
    Gpus,
    Model,
    OptionalTokens,
    Precision,
    Price,
    Sequence,
    WorkbenchDep,
    ask,
)
from computeflow.web.workers.workbench import LaneName

Search = Annotated[
    Literal["quick", "full"],
    Query(description="quick: layouts that published runs tested; full: all layouts."),
]
_LANES: dict[str, LaneName] = {"quick": "quick", "full": "long"}


def _positions(
    model: Model = "llama-3.1-70b",
    device: Device = "h100-sxm",
    gpus: Gpus = 512,
    sequence: Sequence = 8192,
    batch: Batch = 1024,
    precision: Precision = "bf16",
    tokens: OptionalTokens = None,
    deadline: Days = None,
    price: Price = None,
) -> dict[str, Any]:
    return {
        "model": model,
        "device": device,
        "gpus": gpus,
        "sequence": sequence,
        "batch": batch,
        "precision": precision,
        "tokens": tokens,
        "deadline": deadline,
        "price": price,
    }


Sliders = Annotated[dict[str, Any], Depends(_positions)]
"""A parameter of a page: the positions of all sliders, as the tasks take them."""


def plan_page(bench: WorkbenchDep, sliders: Sliders, search: Search = "quick") -> Response:
    """The best layouts of a job on a cluster, with ledger, memory and evidence."""
    return ask(bench, _LANES[search], "plan", {**sliders, "search": search})


def plan_front(bench: WorkbenchDep, sliders: Sliders) -> Response:
    """Time against cost on an eighth to eight times the GPUs, whatever the deadline."""
    return ask(bench, "quick", "front", sliders)


def plan_files(bench: WorkbenchDep, sliders: Sliders, search: Search = "quick") -> Response:
    """The best plan as files for every framework and launcher that can take it."""
    return ask(bench, _LANES[search], "files", {**sliders, "search": search})


def plan_file(
    bench: WorkbenchDep,
    sliders: Sliders,
    framework: Annotated[str, Query(max_length=80)],
    file: Annotated[str, Query(max_length=200)],
    search: Search = "quick",
) -> Response:
    """One file of the best plan, to download."""
    answer = plan_files(bench, sliders, search)
    if answer.status_code != 200:
        return answer
    exports = {each["name"]: each["files"] for each in json.loads(bytes(answer.body))["exports"]}
    if framework not in exports:
        raise UnknownNameError("format", framework, exports)
    if file not in exports[framework]:
        raise UnknownNameError("file", file, exports[framework])
    name = file.rpartition("/")[2]  # a key of our own exports: no quotes, no line breaks
    return Response(
        exports[framework][file],
        media_type="text/plain; charset=utf-8",
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )
