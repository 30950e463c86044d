"""Where to train: the decision on one screen, or every offer."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, TypedDict, Unpack

from computeflow.answers.comparisons import CompareAnswer, compare
from computeflow.answers.decisions import decide
from computeflow.web.page_answers import page_content
from computeflow.web.part_data import parts_data
from computeflow.web.workers.tasks.packaged_catalog import model_name, shared_catalog


class Requirements(TypedDict):
    model: str
    tokens: str
    deadline: float | None
    """Days."""
    budget: str | None
    devices: list[str]
    providers: list[str]
    countries: list[str]
    precision: str
    unproven: bool
    today: str
    """Prices have a date, and are old some day."""


def decide_content(
    *, progress: Callable[[str], None], **requirements: Unpack[Requirements]
) -> dict[str, Any]:
    answer = decide(**_keywords(requirements), progress=progress)
    return page_content(
        "Decide", answer, parts=parts_data(answer.parts()), command=_command("decide", requirements)
    )


def compare_content(
    *, progress: Callable[[str], None], **requirements: Unpack[Requirements]
) -> dict[str, Any]:
    answer = compare(**_keywords(requirements), progress=progress)
    assert isinstance(answer, CompareAnswer)
    return page_content(
        "Compare",
        answer,
        parts=parts_data(answer.parts()),
        command=_command("compare", requirements),
    )


def _keywords(requirements: Requirements) -> dict[str, Any]:
    deadline = requirements["deadline"]
    return {
        "model": model_name(requirements["model"]),
        "tokens": requirements["tokens"],
        "deadline": None if deadline is None else f"{deadline:g}d",
        "budget": requirements["budget"],
        "devices": requirements["devices"],
        "providers": requirements["providers"],
        "countries": requirements["countries"],
        "precision": requirements["precision"],
        "unproven": requirements["unproven"],
        "today": datetime.date.fromisoformat(requirements["today"]),
        "catalog": shared_catalog(),
    }


def _command(name: str, requirements: Requirements) -> str:
    deadline, budget = requirements["deadline"], requirements["budget"]
    lists = {option: requirements[option] for option in ("devices", "providers", "countries")}
    words = [
        f"computeflow {name} {requirements['model']} --tokens {requirements['tokens']}",
        f"--deadline {deadline:g}d" if deadline is not None else "",
        f"--budget {budget}" if budget else "",
        f"--precision {requirements['precision']}" if requirements["precision"] != "bf16" else "",
        *(f"--{option} {','.join(values)}" for option, values in lists.items() if values),
        "--unproven" if requirements["unproven"] else "",
    ]
    return " ".join(filter(None, words))
