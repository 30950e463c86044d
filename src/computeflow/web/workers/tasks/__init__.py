"""What worker processes compute for pages: `answer_task` by name, from plain values to plain data.

A task takes its parameters and a function that is told of its progress, and returns the page's content:
the library's answer in the page's envelope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["MAX_GPUS", "answer_task", "prepare"]
MAX_GPUS = 16_384
"""A plan on the page has at most so many."""
_TASKS = {
    "plan": "slider_plans",
    "front": "slider_plans",
    "files": "slider_plans",
    "decide": "decisions",
    "compare": "decisions",
    "simulate": "simulations",
    "accuracy": "accuracy",
}


def answer_task(
    task: str, parameters: Mapping[str, Any], progress: Callable[[str], None]
) -> dict[str, Any]:
    function = getattr(
        import_module(f"computeflow.web.workers.tasks.{_TASKS[task]}"), f"{task}_content"
    )
    content: dict[str, Any] = function(progress=progress, **parameters)
    return content


def prepare() -> None:
    """Import what the first question would wait for."""
    import_module("computeflow.web.workers.tasks.slider_plans").warm_up()
