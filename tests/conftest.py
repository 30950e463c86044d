"""Fixtures that all tests share."""

from __future__ import annotations

import functools
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from computeflow.answers import Answer
from computeflow.cli.command import AnswerCommand

# The same examples in every run, however slow the machine, so few will do: what they show once they
# show always. `--hypothesis-profile search` draws others, and more.
settings.register_profile("steady", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("search", deadline=None, max_examples=300)
settings.load_profile("steady")

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _no_user_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the developer's own files, so that tests see packaged ones only."""
    monkeypatch.setenv("COMPUTEFLOW_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def data_folder() -> Path:
    """The public data folder, or a skip that says how to name it."""
    folder = Path(os.environ.get("COMPUTEFLOW_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "throughput.csv").is_file():
        pytest.skip("set COMPUTEFLOW_DATA to the public data folder")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, or a skip that says what is missing."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no Playwright: pip install playwright"
    )
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium: apt-get install -y chromium")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def kept_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner's answers are kept for the tests that follow: most ask `comparison` for the same."""
    from computeflow.comparison import planner
    from computeflow.comparison.build_or_rent import build_cases

    for module in (planner, build_cases):
        monkeypatch.setattr(module, "plan", _kept_plan)


_PLANS: dict[bytes, Any] = {}


def _kept_plan(*arguments: Any, **options: Any) -> Any:
    from computeflow.planning import plan

    key = pickle.dumps((arguments, options))
    if key not in _PLANS:
        _PLANS[key] = plan(*arguments, **options)
    return _PLANS[key]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """Answers that library functions return to commands from now on."""
    returned: list[Answer] = []
    library_function = AnswerCommand.library_function

    def remembering(self: AnswerCommand) -> Callable[..., Answer]:
        function = library_function(self)

        @functools.wraps(function)
        def call(**options: Any) -> Answer:
            returned.append(function(**options))
            return returned[-1]

        return call

    monkeypatch.setattr(AnswerCommand, "library_function", remembering)
    return returned
