"""What the page's OpenAPI allows, and what it does not: no answer is a server's error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from computeflow.web.sources.opening import AuditOptions, open_directory
from computeflow.web.workers.workbench import Workbench
from page_client import ACTING, OPERATOR, RUNS, Unasked, doorkeeper, made_store

EXAMPLES = 8
"""For each route; what fails is shrunk by Hypothesis."""
HEADERS = ACTING | {"authorization": f"Bearer {OPERATOR}", "host": "localhost"}


@pytest.mark.parametrize("source", ["recording", "store"])
def test_no_request_gets_a_server_error(source: str, tmp_path: Path) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")
    from computeflow.web.application import PageServer

    path = RUNS / "slow" if source == "recording" else made_store(tmp_path)[0]
    keeper = doorkeeper(requests_per_second=1e9)
    opening = open_directory(path, AuditOptions(price=2.5))
    server = PageServer(opening, keeper, Workbench(Unasked))
    schema = schemathesis.openapi.from_asgi("/openapi.json", server.application, headers=HEADERS)
    asked = 0
    for result in schema.exclude(path="/events").get_all_operations():  # events never end

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        @given(result.ok().as_strategy())
        def ask(case: Any) -> None:
            nonlocal asked
            asked += 1
            answer = case.call(headers=HEADERS)
            assert answer.status_code < 500, (case.method, case.path, answer.text)

        ask()
    assert asked >= 5 * EXAMPLES
