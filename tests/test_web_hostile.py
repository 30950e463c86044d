"""The page's server beside hostile or broken neighbours: odd names, cookies, files, readers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from computeflow.collection.collector.clients import RefusedError
from computeflow.collection.collector.http_server import bind
from computeflow.collection.collector.listening import Listening, read_named_tokens
from computeflow.errors import InputError
from computeflow.web import serve
from computeflow.web.access import security
from computeflow.web.access.security import Viewer
from computeflow.web.application import PageServer
from computeflow.web.events import (
    MAX_CLIENT_ADDRESSES,
    MAX_SESSION_STREAMS,
    MAX_TOPICS,
    MAX_VIEWERS,
    Broadcaster,
)
from computeflow.web.page_list import live_address
from computeflow.web.sources.opening import AuditOptions, open_directory
from computeflow.web.sources.recordings import recording_state
from computeflow.web.workers.workbench import Workbench
from computeflow.web.workers.worker_process import WorkerProcess
from page_client import (
    ACTING,
    OPERATOR,
    READER,
    RUNS,
    Unasked,
    doorkeeper,
    page_client,
    revision_of,
)

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
    assert gone.status_code == 503 and "no such file" in gone.json()["error"]


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


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a link of another user")
def test_a_hidden_link_makes_no_run(tmp_path: Path) -> None:
    secret = _runs(tmp_path / "private", "x") / "x"
    runs = _runs(tmp_path / "runs", "a")
    (runs / "evil").mkdir()
    for file in secret.glob("*.cfr"):
        link = runs / "evil" / f".{file.name}"
        link.symlink_to(file)
        os.chown(link, 12_345, 12_345, follow_symlinks=False)
    client = page_client(runs)
    assert _ids(client) == ["a"] and client.get("/runs/evil").status_code == 404


def test_a_run_of_more_files_than_are_looked_at_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = _runs(tmp_path, "a", "b")
    for number in range(30):
        (runs / "b" / f"file-{number}").touch()
    monkeypatch.setattr(recording_state, "FILES", 20)
    client = page_client(runs)
    assert _ids(client) == ["a"]
    assert "b: more than 20 files: not read" in client.get("/runs").json()["result"]["left_out"]


def test_a_worker_runs_nothing_of_the_folder_it_starts_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "planted"
    (tmp_path / "numpy.py").write_text(f"open({str(planted)!r}, 'w')\nraise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    worker = WorkerProcess(300.0)
    worker.start()
    worker.close()
    assert not planted.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a link of another user")
def test_a_link_of_another_user_to_what_is_not_theirs_is_not_followed(tmp_path: Path) -> None:
    """Who may write to the folder would else show its readers what only the server may read."""
    _runs(tmp_path / "private", "x")
    runs = _runs(tmp_path / "runs", "a", "b")
    (runs / "mine").symlink_to(tmp_path / "private" / "x")
    (runs / "theirs").symlink_to(tmp_path / "private" / "x")
    (runs / "b" / "rank-00009.attempt-0.cfr").symlink_to(next((runs / "a").glob("*.cfr")))
    for link in (runs / "theirs", runs / "b" / "rank-00009.attempt-0.cfr"):
        os.chown(link, 12_345, 12_345, follow_symlinks=False)
    client = page_client(runs)
    assert sorted(_ids(client)) == ["a", "mine"]
    said = client.get("/runs").json()["result"]["left_out"]
    assert [note.split(":")[0] for note in said] == ["b", "theirs"]
    assert client.get("/runs/theirs").status_code == 404
    os.chown(tmp_path / "private" / "x", 12_345, 12_345)
    (runs / "theirs").unlink()
    (runs / "theirs").symlink_to(tmp_path / "private" / "x")
    os.chown(runs / "theirs", 12_345, 12_345, follow_symlinks=False)
    assert "theirs" in _ids(client)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a link of another user")
@pytest.mark.parametrize("place", ["rank-00009.attempt-0.cfr", "kineto/more/x.json", "control"])
def test_a_link_that_is_put_into_a_run_later_ends_what_is_shown_of_it(
    tmp_path: Path, place: str
) -> None:
    runs = _runs(tmp_path / "runs", "a", "b")
    (tmp_path / "secret").mkdir(mode=0o700)
    client = page_client(runs)
    assert client.get("/runs/b").status_code == 200
    link = runs / "b" / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path / "secret")
    os.chown(link, 12_345, 12_345, follow_symlinks=False)
    assert _ids(client) == ["a"]
    for address in ("/runs/b", "/timeline/b", "/trace/b", "/readings/b", "/flow?run=b"):
        assert client.get(address).status_code in (400, 404), address


def test_a_first_run_that_is_damaged_is_left_out_and_said(tmp_path: Path) -> None:
    _runs(tmp_path, "a", "b", "c")
    for file in (tmp_path / "a").glob("*.cfr"):
        file.write_bytes(b"garbage" * 1_000)
    client = page_client(tmp_path, price=2.5)
    content = client.get("/runs").json()
    assert sorted(_ids(client)) == ["b", "c"] and content["result"]["left_out"]
    assert content["result"]["price"]["usd"] == 2.5
    for page in ("/findings", "/runs", "/fleet"):
        assert client.get(page).json()["left_out"] == content["result"]["left_out"], page
    for page in ("/flow?run=b", "/findings?run=b", "/runs/b", "/timeline/b", "/readings/b"):
        assert client.get(page).json()["left_out"] == [], page  # the other one is not asked for


def test_what_of_a_run_cannot_be_read_is_said_on_each_of_its_pages(tmp_path: Path) -> None:
    rank = sorted(_runs(tmp_path, "a").glob("a/*.cfr"))[-1]
    rank.write_bytes(rank.read_bytes()[:-7])
    client = page_client(tmp_path)
    for page in ("/flow?run=a", "/findings?run=a", "/runs/a", "/timeline/a", "/readings/a"):
        (said,) = client.get(page).json()["left_out"]
        assert rank.name in said, page


def test_a_folder_of_which_nothing_can_be_read_says_so(tmp_path: Path) -> None:
    for file in _runs(tmp_path, "a").glob("a/*.cfr"):
        file.write_bytes(b"garbage" * 1_000)
    text = page_client(tmp_path).get("/flow").json()["empty"]["text"]
    assert text.startswith(f"Nothing in {tmp_path} can be read: ") and "Record a run:" in text


def test_traces_beside_runs_are_said(tmp_path: Path) -> None:
    client = page_client(_runs(tmp_path, "a", "b"))
    assert not client.get("/runs").json()["result"]["left_out"]
    shutil.copy(next((RUNS.parent / "h200_traces").glob("*.json.gz")), tmp_path)
    (said,) = client.get("/runs").json()["result"]["left_out"]
    assert said == f"{tmp_path}: traces beside the runs are not shown; serve their folder alone"


def test_runs_of_a_team_are_named_by_their_place(tmp_path: Path) -> None:
    _runs(tmp_path / "team" / "day", "a")
    client = page_client(_runs(tmp_path, "a"))
    assert sorted(_ids(client)) == ["a", "team/day/a"]
    assert client.get("/runs/team%2Fday%2Fa").status_code == 200


# Requests


ODD_COOKIES = [
    *("a=1", 'x={"a": 1}', 'k="unclosed', "p=a,b", "novalue", "[x]=1", "=", "n=\x01", "s=a b"),
    *("computeflow-1=evil", "computeflow-1="),
]


@pytest.mark.parametrize("other", ODD_COOKIES)
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


# Tokens and sessions


def test_who_guesses_tokens_keeps_nobody_out() -> None:
    keeper = doorkeeper()
    codes = set()
    for _ in range(100):
        try:
            keeper.open_session("guess", "10.0.0.1", 0.0)
        except RefusedError as error:
            codes.add(error.status)
    assert codes == {403, 429}
    assert keeper.open_session(READER, "10.0.0.1", 0.0)


def test_a_stream_ends_with_its_session() -> None:
    async def story() -> int:
        keeper, revision = doorkeeper(), 0
        cookie = keeper.open_session(READER, "", 0.0).session.encode()
        viewer = keeper.viewer({b"cookie": b"computeflow-1=" + cookie}, "", 0.0)

        async def fetch(_: str) -> bytes:
            return str(revision).encode()

        events = Broadcaster(fetch, revision_of(lambda: revision), look_seconds=0.001)
        goes_on = partial(keeper.knows, viewer, 1.0)
        stream = events.stream(["/runs"], [], viewer.session, goes_on=goes_on)
        assert (await anext(stream)).startswith(b"retry") and b"/runs" in await anext(stream)
        keeper.close_session(viewer)
        revision = 1
        rest = [part async for part in stream]
        assert keeper.knows(Viewer(role="reader", name="reader"), 1e9)
        events.close()
        return len(rest) + events.viewers

    assert asyncio.run(story()) == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"ada 0123456789abcdef\nbob 0123456789abcdef\n", "one token of two names"),
        (b"0123456789abcdef\n", "NAME TOKEN"),
        (b"ada 0123456789abcdef\n" + b"# note\n" * 10_000, "more than 65,536 bytes"),
        (b"\x1b[31mada 0123456789abcdef\n", "can be printed"),
        (b"ada t\xc3\xb6ken-t\xc3\xb6ken-t\xc3\xb6ken\n", "ASCII"),
        (b"ada short\n", "less than 16"),
    ],
)
def test_a_file_of_operators_that_leaves_doubt_is_refused(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "operators"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InputError, match=says):
        read_named_tokens(path, "--operator-token-file")


def test_operators_are_read_from_a_private_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "operators"
    path.write_text("# who\nada  lovelace\t0123456789abcdef\n")
    for mode in (0o644, 0o640, 0o620, 0o604):
        path.chmod(mode)
        with pytest.raises(InputError, match="chmod 600"):
            read_named_tokens(path, "--operator-token-file")
    path.chmod(0o600)
    assert read_named_tokens(path, "-") == {b"0123456789abcdef": "ada  lovelace"}
    os.mkfifo(tmp_path / "pipe", 0o600)
    for other in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(InputError, match=r"not a file|directory"):
            read_named_tokens(other, "--operator-token-file")
    if os.geteuid() == 0:
        os.chown(path, 12_345, 12_345)
        with pytest.raises(InputError, match="another user"):
            read_named_tokens(path, "--operator-token-file")


@pytest.mark.parametrize("host", ["." + "a" * 64, "ä" * 100, "\udcff"])
def test_a_host_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(InputError, match=r"no name of a host|not known"):
        bind(Listening(listen=f"{host}:0", behind_proxy=True))


def test_an_encrypted_key_is_refused_and_nothing_is_asked_on_the_terminal(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert", tmp_path / "key"
    words = "openssl req -x509 -newkey rsa:2048 -passout pass:secret -subj /CN=a".split()
    files = ["-keyout", str(key), "-out", str(cert)]
    made = subprocess.run([*words, *files], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("no openssl")
    with pytest.raises(InputError, match="encrypted"):
        serve(RUNS, listen="127.0.0.1:0", cert=cert, key=key, seconds=0.1)


# Many streams, and workers


def test_one_reader_cannot_take_all_streams() -> None:
    async def fetch(_: str) -> bytes:
        return b"{}"

    async def story(each: int, most: int, session: str) -> int:
        events = Broadcaster(fetch, revision_of(lambda: 0))
        taken = 0
        with pytest.raises(RefusedError):
            for taken in range(1_000):
                addresses = [f"/runs/{taken}-{number}" for number in range(each)]
                await anext(events.stream(addresses, [], session))
        await anext(events.stream(["/runs/0-0"], [], "another"))
        events.close()
        assert taken == most
        return taken

    asyncio.run(story(1, MAX_SESSION_STREAMS, "mine"))
    asyncio.run(story(8, MAX_CLIENT_ADDRESSES // 8, "mine"))
    asyncio.run(story(8, MAX_TOPICS // 8, ""))


def test_programs_at_one_address_cannot_take_all_streams() -> None:
    client = page_client(RUNS, token=None)
    events = client.app._application.state.events  # type: ignore[attr-defined]
    seen = []

    def stream(addresses: list[str], known: list[str], client: str, most: int, goes_on: Any) -> Any:
        seen.append((client, most))
        raise RefusedError(503, "enough", 1.0)

    events.stream = stream
    client.get("/events?of=/runs", headers={"authorization": f"Bearer {READER}"})
    assert seen == [("testclient", MAX_VIEWERS)]


def test_a_flood_of_readers_ends_no_session_of_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "MAX_SESSIONS", 3)
    keeper = doorkeeper()
    operator = keeper.open_session(OPERATOR, "", 0.0)
    readers = [keeper.open_session(READER, "", float(number)) for number in range(5)]
    assert keeper.knows(operator, 9.0)
    assert [keeper.knows(each, 9.0) for each in readers] == [False] * 3 + [True] * 2


@pytest.mark.parametrize("address", ["/catalog", "/plan", "/accuracy", "/", "/session", "/runs\n"])
def test_what_never_changes_cannot_be_subscribed_to(address: str) -> None:
    assert page_client(RUNS).get("/events", params={"of": address}).status_code in (400, 404)


def test_addresses_of_one_page_are_one_topic() -> None:
    assert live_address("/runs?x=1") == live_address("/runs?opening=2&y") == "/runs"
    assert live_address("/runs/a%20b?x=1&of=own") == live_address("/runs/a b?of=own&of=own")
    assert live_address("/flow?window=last&run=r") == "/flow?run=r&window=last"
    assert live_address("/fleet?topology=x&run=ä") == "/fleet?run=%C3%A4"


def test_a_worker_is_in_a_group_of_its_own() -> None:
    """Ctrl-C at a terminal is sent to the group of the server: no worker prints a traceback."""
    worker = WorkerProcess(1.0)
    worker.start()
    assert worker._process is not None and os.getpgid(worker._process.pid) == worker._process.pid
    worker.close()


def test_who_waits_for_a_plan_holds_no_thread_for_long() -> None:
    """A worker that starts takes seconds; the page asks again."""
    began, end = threading.Event(), threading.Event()

    class Slow(Unasked):
        def run(self, *_: Any) -> bytes:
            began.set()
            end.wait(300)
            return b"{}"

    server = PageServer(open_directory(RUNS, AuditOptions()), doorkeeper(), Workbench(Slow))
    client = TestClient(server.application, base_url="http://localhost")
    headers = {"authorization": f"Bearer {READER}", "accept": "application/json"}
    first = client.get("/plan?gpus=64", headers=headers)
    assert first.status_code == 202 and {*first.json()["working"]} == {"progress", "seconds"}
    assert began.wait(300)
    end.set()
    while (last := client.get("/plan?gpus=64", headers=headers)).status_code == 202:
        pass
    assert last.status_code == 200
    server.close()
