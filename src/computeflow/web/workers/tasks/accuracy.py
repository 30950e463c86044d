"""How far predictions are from measured runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from computeflow.answers.validations import ValidateAnswer, validate
from computeflow.views.accuracy_figures import accuracy_figure
from computeflow.views.html_report import Part
from computeflow.web.page_answers import page_content
from computeflow.web.part_data import parts_data
from computeflow.web.workers.tasks.packaged_catalog import shared_catalog


def accuracy_content(*, progress: Callable[[str], None]) -> dict[str, Any]:
    progress("predicting the published runs")
    answer = validate(catalog=shared_catalog())
    assert isinstance(answer, ValidateAnswer)
    parts: list[Part] = [accuracy_figure(answer.validation), *answer.tables()]
    return page_content("Accuracy", answer, parts=parts_data(parts))
