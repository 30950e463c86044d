"""Plans for one position of the sliders: the plan itself, time against cost, files to launch it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypedDict, Unpack

from computeflow.answers.plans import FrontAnswer, PlanAnswer, plan
from computeflow.cluster import find_cluster
from computeflow.errors import InputError
from computeflow.planning.exports.config_formats import Setup
from computeflow.planning.exports.config_writer import export
from computeflow.views.figures import comparison_figure, ledger_figure, memory_figure
from computeflow.views.plans import layout_text
from computeflow.web.page_answers import page_content
from computeflow.web.part_data import parts_data
from computeflow.web.workers.tasks import MAX_GPUS
from computeflow.web.workers.tasks.packaged_catalog import model_name, shared_catalog
from computeflow.web.wrong_fields import form_text

_FRONT = 8
"""The front goes from an eighth of the GPUs to eight times as many."""
_COMMAND = ("python", "train.py")


class Sliders(TypedDict):
    """The fields of the page, by name."""

    model: str
    device: str
    gpus: int
    sequence: int
    batch: int
    precision: str
    tokens: str | None
    deadline: float | None
    """Days."""
    price: float | None
    """$ per GPU-hour."""


_USUAL: Sliders = {
    "model": "llama-3.1-8b",
    "device": "h100-sxm",
    "gpus": 8,
    "sequence": 8192,
    "batch": 64,
    "precision": "bf16",
    "tokens": None,
    "deadline": None,
    "price": None,
}


def plan_content(
    *, progress: Callable[[str], None], search: str, **sliders: Unpack[Sliders]
) -> dict[str, Any]:
    answer = _plan(sliders, quick=search == "quick", progress=progress)
    best = answer.best.prediction
    figures = [
        ledger_figure(best.ledger),
        memory_figure(best),
        comparison_figure(answer.plans.plans),
    ]
    return page_content(
        "Plan",
        answer,
        search=search,
        layouts=[layout_text(each.layout) for each in answer.plans.plans],
        command=_command(sliders, search),
        parts=parts_data(figures),
    )


def front_content(*, progress: Callable[[str], None], **sliders: Unpack[Sliders]) -> dict[str, Any]:
    """Best plans on fewer and on more GPUs; `left_out` are numbers that cannot be planned, and why."""
    from computeflow.views.gpu_fronts import front_figure

    title, gpus = "Plan by number of GPUs", sliders["gpus"]
    first = gpus
    while first % 2 == 0 and first * _FRONT > gpus:
        first //= 2
    joined, beyond, why = _joined(sliders["device"], gpus)
    asked = _keywords({**sliders, "deadline": None, "gpus": joined})
    try:
        answer = plan(**asked, gpus=(first, joined), quick=True)
    except InputError as error:  # no number of GPUs will do: the plan itself says more
        note = form_text(f"{error}.")
        note = f"{note[:1].upper()}{note[1:]}"
        return page_content(title, None, parts=[], left_out=beyond, note=note)
    assert isinstance(answer, FrontAnswer)
    note = f"Left out: {', '.join(f'{size:,}' for size in beyond)} devices ({why})." if why else ""
    if answer.infeasible:
        listed = " or ".join(f"{size:,}" for size in answer.infeasible)
        devices = "device" if listed == "1" else "devices"
        note = f"{note} No layout that published runs tested fits on {listed} {devices}.".strip()
    figure = front_figure(answer.rows, answer.infeasible)
    figure = replace(
        figure,
        summary=f"{figure.summary} {note}".strip(),
        numbers=replace(figure.numbers, notes=(note,) if note else ()),
    )
    left_out = [*answer.infeasible, *beyond]
    return page_content(title, answer, parts=parts_data([figure]), left_out=left_out, note=note)


def _joined(device: str, gpus: int) -> tuple[int, list[int], str]:
    """The most GPUs up to eight times as many that the catalog can join, the numbers beyond, and why.

    The front is of a cluster of that size: nodes that are one alone have no network to resize.
    """
    sizes = [gpus]
    while sizes[-1] * 2 <= min(gpus * _FRONT, MAX_GPUS):
        sizes.append(sizes[-1] * 2)
    beyond: list[int] = []
    why = ""
    while len(sizes) > 1:
        try:
            find_cluster(f"{device}:{sizes[-1]}", shared_catalog())
            break
        except InputError as error:
            beyond.insert(0, sizes.pop())
            why = form_text(str(error).partition(":")[0])
    return sizes[-1], beyond, why


def files_content(
    *, progress: Callable[[str], None], search: str, **sliders: Unpack[Sliders]
) -> dict[str, Any]:
    """The best plan as files for every framework and launcher that can take it."""
    answer = _plan(sliders, quick=search == "quick", progress=progress)
    best = answer.best.prediction
    setup = Setup(
        job=answer.request.job,
        cluster=answer.request.cluster,
        layout=best.layout,
        stack=best.stack,
        tokens=answer.goals.tokens,
    )
    return page_content(
        "Files of the plan",
        answer,
        exports=[
            {
                "name": each.name,
                "version": each.version,
                "refused": each.refused,
                "files": each.written.files if each.written else {},
                "left_out": list(each.written.left_out) if each.written else [],
            }
            for each in export(setup, list(_COMMAND))
        ],
    )


def warm_up() -> None:
    """Read catalog, parameters and published runs of the usual device."""
    plan_content(progress=lambda _: None, search="quick", **_USUAL)


_last: dict[str, PlanAnswer] = {}
"""The last plan of this process: its files are asked for next, and a search may take half a minute."""


def _plan(sliders: Sliders, *, quick: bool, progress: Callable[[str], None]) -> PlanAnswer:
    key = json.dumps([quick, sliders])
    answer = _last.get(key)
    if answer is None:
        found = plan(**_keywords(sliders), quick=quick, progress=progress)
        assert isinstance(found, PlanAnswer)
        answer = found
        _last.clear()
        _last[key] = answer
    return answer


def _keywords(sliders: Sliders) -> dict[str, Any]:
    """The keywords of the library's `plan`."""
    deadline = sliders["deadline"]
    return {
        "model": model_name(sliders["model"]),
        "on": f"{sliders['device']}:{sliders['gpus']}",
        "seq_len": sliders["sequence"],
        "global_batch": sliders["batch"],
        "precision": sliders["precision"],
        "tokens": sliders["tokens"],
        "deadline": None if deadline is None else f"{deadline:g}d",
        "price": sliders["price"],
        "catalog": shared_catalog(),
    }


def _command(sliders: Sliders, search: str) -> str:
    """The same question on a command line."""
    deadline, price = sliders["deadline"], sliders["price"]
    words = [
        f"computeflow plan {sliders['model']} --on {sliders['device']}:{sliders['gpus']}",
        f"--global-batch {sliders['batch']} --seq-len {sliders['sequence']}",
        f"--precision {sliders['precision']}",
        f"--tokens {sliders['tokens']}" if sliders["tokens"] else "",
        f"--deadline {deadline:g}d" if deadline is not None else "",
        f"--price {price:g}" if price is not None else "",
        "--quick" if search == "quick" else "",
    ]
    return " ".join(filter(None, words))
