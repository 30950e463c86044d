"""The page's API as its own OpenAPI describes it: no value that a stranger sends makes it fail.

`schemathesis` draws requests from the description, wrong ones too. What takes seconds to compute is not
computed here; the quick plans are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from computeflow.web.application import PageServer
from computeflow.web.sources.opening import AuditOptions, open_directory
from computeflow.web.workers.workbench import Workbench
from computeflow.web.workers.worker_process import RunHere
from page_client import ACTING, READER, RUNS, doorkeeper

schemathesis = pytest.importorskip(
    "schemathesis", reason="no schemathesis: pip install schemathesis"
)
_EXAMPLES = 12
_QUICK = ("plan", "front", "files")


class QuickOnly(RunHere):
    def run(
        self,
        task: str,
        parameters: Mapping[str, Any],
        progress: Callable[[str], None],
        wanted: Callable[[], bool],
    ) -> bytes:
        if task in _QUICK and parameters.get("search", "quick") == "quick":
            return super().run(task, parameters, progress, wanted)
        return b'{"exports":[]}'


def _server() -> PageServer:
    keeper = doorkeeper(requests_per_second=1e9)
    keeper.hosts |= {"testserver"}
    return PageServer(open_directory(RUNS, AuditOptions()), keeper, Workbench(QuickOnly))


SERVER = _server()
TOKEN = {"authorization": f"Bearer {READER}"}
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", SERVER.application, headers=TOKEN).exclude(
    path="/events"
)  # it never ends: tests/test_web.py listens to it
BOUNDED = settings(
    max_examples=_EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@SCHEMA.include(path_regex="^/(plan|catalog)").parametrize()  # type: ignore[untyped-decorator]
@BOUNDED
def test_no_plan_or_row_that_is_asked_for_makes_it_fail(case: Any) -> None:
    response = case.call(headers=TOKEN | ACTING)
    assert response.status_code < 500, response.text
    assert response.status_code != 200 or response.headers["content-type"]


@SCHEMA.parametrize()  # type: ignore[untyped-decorator]
@settings(parent=BOUNDED, max_examples=2)
def test_no_request_is_answered_without_a_token(case: Any) -> None:
    assert case.call(headers={"authorization": "Bearer x"} | ACTING).status_code in (401, 429)


def test_no_plan_that_can_be_asked_for_makes_it_fail() -> None:
    from fastapi.testclient import TestClient

    client = TestClient(SERVER.application, base_url="http://localhost", headers=TOKEN)
    choices = client.get("/choices").json()
    rng = random.Random(0)
    for _ in range(40):
        asked = {
            "model": rng.choice(choices["models"])["name"],
            "device": rng.choice(choices["devices"])["name"],
            "precision": rng.choice(choices["precisions"]),
            "gpus": rng.choice([1, 7, 8, 96, 1000, 16384]),
            "sequence": rng.choice([16, 1000, 8192, 1 << 20]),
            "batch": rng.choice([1, 60, 1024, 1 << 16]),
        }
        while (response := client.get("/plan", params=asked)).status_code == 202:
            pass
        assert response.status_code in (200, 400, 404), (asked, response.text)
        assert response.status_code == 200 or response.json()["error"]
