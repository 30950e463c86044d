"""`figure_data`: a figure of `views` as the page draws it, the same as in the HTML report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from computeflow import codec
from computeflow.views.figures import Figure


def figure_data(figure: Figure) -> dict[str, Any]:
    """Title, Plotly's data and layout, and the figure in words; its numbers are on the page itself."""
    return {
        "title": figure.title,
        "data": codec.with_lists(list(figure.data)),
        "layout": codec.with_lists(figure.layout),
        "summary": figure.summary,
    }


def figures_of(parts: Iterable[object]) -> list[dict[str, Any]]:
    return [figure_data(part) for part in parts if isinstance(part, Figure)]
