"""A server that is told to stop while it answers."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

from computeflow.collection.collector import http_server
from computeflow.collection.collector.listening import Listening


@pytest.mark.live
def test_a_request_that_is_cut_off_at_the_end_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http_server, "_SHUTDOWN_SECONDS", 0.2)
    options = Listening(listen="127.0.0.1:0", command="serve", seconds=0.5)
    bound = http_server.bind(options)
    asked = threading.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await asyncio.sleep(300)

    def ask() -> None:
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(http_server.address_of(options, bound), timeout=300)

    asking = threading.Thread(target=ask)
    http_server.serve(application, bound, options, asking.start, lambda: None)
    bound.close()
    asking.join(300)
    assert asked.is_set() and "Traceback" not in capfd.readouterr().err
