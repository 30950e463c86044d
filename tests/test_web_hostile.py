"""The page's server beside hostile or broken neighbours: odd names, cookies, files, readers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from computeflow.web.application import PageServer
from computeflow.web.opening import AuditOptions, open_directory
from computeflow.web.workbench import Workbench
from page_client import ACTING, RUNS, Unasked, doorkeeper, page_client

ODD = os.fsdecode(b"bad\xff\xfename")


def _runs(folder: Path, *names: str) -> Path:
    for name in names:
        shutil.copytree(RUNS / "clean", folder / name)
    return folder


def _ids(client: Any) -> list[str]:
    return [line["id"] for line in client.get("/runs").json()["runs"]]


# Folders


def test_a_file_that_is_not_there_takes_no_page_down(tmp_path: Path) -> None:
    _runs(tmp_path, "a", "b")
    (tmp_path / "b" / "x").symlink_to("/nonexistent")
    (tmp_path / "b" / "y").symlink_to("y")
    client = page_client(tmp_path)
    for address in ("/runs", "/runs/a", "/runs/b", "/flow", "/findings", "/catalog"):
        assert client.get(address).status_code == 200, address


def test_pages_that_ask_nothing_of_the_source_are_there_without_it(tmp_path: Path) -> None:
    client = page_client(_runs(tmp_path / "runs", "a"))
    shutil.rmtree(tmp_path / "runs")
    assert client.get("/catalog").status_code == 200
    assert client.get("/catalog/accelerators").status_code == 200
    gone = client.get("/runs")
    assert gone.status_code == 400 and gone.json()["error"]


def test_a_name_that_is_no_text_is_shown_and_opens(tmp_path: Path) -> None:
    client = page_client(_runs(tmp_path / ODD, ODD, "good"))
    ids = _ids(client)
    assert sorted(ids) == [r"bad\udcff\udcfename", "good"]
    for run in ids:
        opened = client.get(f"/runs/{quote(run, safe='')}").json()
        assert opened["run"]["id"] == run
    assert client.get("/session").json()["source"].endswith(r"bad\udcff\udcfename")
    unknown = client.get("/runs/bad")
    assert unknown.status_code == 404 and r"\udcff" in unknown.json()["error"]


def test_two_runs_of_one_name_by_a_link_are_two(tmp_path: Path) -> None:
    shutil.copytree(RUNS / "clean", tmp_path / "runs" / "x")
    shutil.copytree(RUNS / "slow", tmp_path / "outside" / "x")
    (tmp_path / "runs" / "y").symlink_to(tmp_path / "outside" / "x")
    client = page_client(tmp_path / "runs")
    assert sorted(_ids(client)) == ["x", "y"]
    titles = {run: client.get(f"/runs/{run}").json()["title"] for run in "xy"}
    assert len({*titles.values()}) == 2


def test_a_first_run_that_is_damaged_is_left_out_and_said(tmp_path: Path) -> None:
    _runs(tmp_path, "a", "b")
    for file in (tmp_path / "a").glob("*.cfr"):
        file.write_bytes(b"garbage" * 1_000)
    client = page_client(tmp_path, price=2.5)
    content = client.get("/runs").json()
    assert _ids(client) == ["b"] and content["result"]["left_out"]
    assert content["result"]["price"]["usd"] == 2.5


# Requests


@pytest.mark.parametrize(
    "other",
    ["a=1", 'x={"a": 1}', 'k="unclosed', "p=a,b", "novalue", "[x]=1", "=", "n=\x01", "s=a b",
     "computeflow-1=evil", "computeflow-1="],
)  # fmt: skip
def test_a_cookie_of_another_server_locks_nobody_out(other: str) -> None:
    client = page_client(RUNS)
    own = f"computeflow-1={client.cookies['computeflow-1']}"
    client.cookies.clear()
    for line in (f"{other}; {own}", f"{own}; {other}", f"{other};{own};{other}"):
        assert client.get("/session", headers={"cookie": line}).status_code == 200, line


@pytest.mark.parametrize(
    "body", [b'{"token": NaN}', b'{"token": 1e999}', rb'{"token": ["\ud800"]}', b'{"no": 1}', b"["]
)
def test_a_token_that_is_no_text_is_refused_in_one_line(body: bytes) -> None:
    given = page_client(RUNS).post("/session", headers=ACTING, content=body)
    assert given.status_code == 422
    assert {*given.json()["detail"][0]} == {"loc", "msg", "type"}


def test_no_reader_writes_to_the_terminal_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = page_client(RUNS)
    for odd in ("\x1b]0;pwned\x07", "\nFORGED", "\u202e", "\x9b31m"):
        assert client.get("/events", params={"of": f"/runs?x={odd}"}).status_code == 400
    opening = open_directory(RUNS, AuditOptions())
    server = PageServer(opening, doorkeeper(), Workbench(Unasked))

    async def story() -> None:
        async def fail(_: str) -> bytes:
            raise OSError("no")

        server.events._fetch = fail
        stream = server.events.stream(["/runs?x=\x1b[31m"], [])
        await anext(stream)
        await asyncio.sleep(0.05)
        server.close()

    asyncio.run(story())
    assert caplog.messages and all(text.isprintable() for text in caplog.messages)


def test_a_query_with_letters_of_all_languages_is_live() -> None:
    server = PageServer(open_directory(RUNS, AuditOptions()), doorkeeper(), Workbench(Unasked))
    for address in ("/runs?x=é", "/runs?x=%C3%A9", "/runs/slow?of=own&x=🤖"):
        body = asyncio.run(server._fetch(address))
        assert body is not None and json.loads(body)
    server.close()
