"""`/accuracy`: how far predictions are from measured runs."""

from __future__ import annotations

from fastapi.responses import Response

from computeflow.web.pages.asking import WorkbenchDep, ask


def accuracy_page(bench: WorkbenchDep) -> Response:
    """Predicted against measured steps of published runs, those outside of the range included."""
    return ask(bench, "long", "accuracy", {})
