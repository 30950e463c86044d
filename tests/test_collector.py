"""The collector's routes, limits and loop; the application is called as a server calls it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batch_maker import Reply, batches_of, wait_for
from collector_processes import steps_in
from computeflow import cli
from computeflow.collection.collector.clients import Clients, RefusedError
from computeflow.collection.collector.collector_options import ClientLimits, CollectorOptions
from computeflow.collection.collector.following import FolderFollower
from computeflow.collection.collector.intake import Intake
from computeflow.collection.collector.listening import read_tokens
from computeflow.collection.collector.loop import LiveView, WatchLoop
from computeflow.collection.collector.running import recover
from computeflow.collection.collector.service import CollectorService, make_application
from computeflow.collection.online import watcher as online
from computeflow.collection.online.live_values import LiveFinding, LiveRun
from computeflow.collection.store.journal import journal_numbers
from computeflow.collection.store.keeper import Keeper, KeepOptions
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import StoreFolder, open_store
from computeflow.collection.wire.batches import MAGIC, Batch, pack_batch
from computeflow.errors import InputError
from run_folder_maker import MS, Training
from stand_in_watcher import Watcher, WatchOptions

pytest.importorskip("starlette")
TOKEN = "0123456789abcdef-token"


class Watched:
    """A watch whose view is given."""

    is_running, restarts = True, 0

    def __init__(self, view: LiveView) -> None:
        self._view = view

    def view(self) -> LiveView:
        return self._view


class Site:
    """A service on a new store, and a client of it."""

    def __init__(self, path: Path, token: str = "", limits: ClientLimits | None = None) -> None:
        self.store = open_store(path)
        self.state = StateDatabase(self.store.state)
        positions, number = recover(self.store, self.state)
        self.limits = limits or ClientLimits()
        self.intake = Intake(self.store, positions, number, queue_bytes=self.limits.queue_bytes)
        self.intake.start()
        watch: Any = Watched(LiveView(at=1.0))
        tokens = (token.encode(),) if token else ()
        self.service = CollectorService(self.intake, self.state, watch, tokens, self.limits)
        self._application = make_application(self.service)

    def close(self) -> None:
        self.intake.stop()
        self.state.close()

    def ask(
        self, method: str, path: str, body: bytes = b"", length: bytes | None = None, **headers: str
    ) -> Reply:
        return asyncio.run(self._ask(method, path, [body], length, headers))

    def post(self, batch: Batch | bytes, **headers: str) -> Reply:
        body = batch if isinstance(batch, bytes) else pack_batch(batch)
        return self.ask("POST", "/v1/batches", body, None, **headers)

    async def _ask(
        self,
        method: str,
        path: str,
        parts: Sequence[bytes],
        length: bytes | None,
        headers: MutableMapping[str, str],
    ) -> Reply:
        path, _, query = path.partition("?")
        size = str(sum(map(len, parts))).encode() if length is None else length
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "query_string": query.encode(),
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 8471),
            "headers": [(b"content-length", size)] * bool(size)
            + [(name.lower().encode(), text.encode()) for name, text in headers.items()],
        }
        waiting = [
            {"type": "http.request", "body": part, "more_body": place < len(parts) - 1}
            for place, part in enumerate(parts)
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            if waiting:
                return waiting.pop(0)
            await asyncio.sleep(3600)

        async def send(message: Any) -> None:
            sent.append(message)

        await self._application(scope, receive, send)
        body = b"".join(message.get("body", b"") for message in sent[1:])
        found = {name.decode(): text.decode() for name, text in sent[0]["headers"]}
        return Reply(sent[0]["status"], body, found)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return Training(ranks=2, steps=20).write(tmp_path / "run")


# Batches


def test_a_batch_is_answered_with_what_comes_next(site: Site, run: Path) -> None:
    first, second, third, *_ = batches_of(run)
    assert site.post(first).data == {"next": {"0.0": 10, "1.0": 10}}
    gap = site.post(third)
    assert (gap.status, gap.data) == (409, {"next": {"0.0": 10, "1.0": 10}})
    assert site.post(first).status == 200
    assert site.post(second).data == {"next": {"0.0": 20, "1.0": 20}}
    assert site.ask("GET", "/v1/positions?run=run-1").data == {"next": {"0.0": 20, "1.0": 20}}
    assert site.ask("GET", "/v1/positions?run=other").data == {"next": {}}
    assert set(steps_in(site.store.path).values()) == {1}


def test_a_collector_that_starts_again_knows_what_it_acknowledged(
    tmp_path: Path, run: Path
) -> None:
    batches = batches_of(run)
    for place in range(0, len(batches), 2):
        site = Site(tmp_path / "store")
        for batch in batches[: place + 2]:
            assert site.post(batch).status == 200
        site.close()
        Keeper(site.store, KeepOptions(store=str(site.store.path))).seal()
    counts = steps_in(tmp_path / "store")
    assert len(counts) == 40 and set(counts.values()) == {1}


def test_batches_of_many_clients_at_once_are_synced_together(site: Site, run: Path) -> None:
    batches = [batches_of(run, run=f"run-{n}")[0] for n in range(100)]

    async def all_at_once() -> list[Reply]:
        bodies = [pack_batch(batch) for batch in batches]
        asked = [site._ask("POST", "/v1/batches", [body], None, {}) for body in bodies]
        return await asyncio.gather(*asked)

    assert {reply.status for reply in asyncio.run(all_at_once())} == {200}
    assert site.intake.counts.batches == 100 and site.intake.counts.syncs < 10


def test_batches_that_follow_each_other_need_not_wait_for_the_disk(site: Site, run: Path) -> None:
    bodies = [pack_batch(batch) for batch in batches_of(run)]

    async def in_order() -> list[Reply]:
        asked = [
            asyncio.create_task(site._ask("POST", "/v1/batches", [body], None, {}))
            for body in [*bodies, bodies[-1]]
        ]
        return [await task for task in asked]

    assert {reply.status for reply in asyncio.run(in_order())} == {200}
    assert site.intake.counts.known == 1


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "not a batch"),
        (b"GARBAGE", 400, "not a batch"),
        (b"CFBAT\x09", 400, "version 09"),
        (MAGIC + b"zzzz", 400, "not compressed"),
    ],
)
def test_what_is_no_batch_is_refused_in_one_line(
    site: Site, body: bytes, status: int, says: str
) -> None:
    reply = site.post(body)
    assert reply.status == status and says in reply.body.decode()
    assert reply.body.count(b"\n") == 1


def test_bodies_without_a_length_or_too_long_are_not_read(site: Site) -> None:
    assert site.ask("POST", "/v1/batches", b"x", length=b"").status == 411
    assert site.ask("POST", "/v1/batches", b"x", length=b"-1").status == 411
    assert site.ask("POST", "/v1/batches", b"x", length=b"9" * 40).status == 411
    assert site.ask("POST", "/v1/batches", b"x", length=b"99999999").status == 413
    assert site.ask("POST", "/v1/batches", b"xy", length=b"1").status == 400
    assert site.ask("GET", "/v1/batches").status == 405


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_mutated_body_is_refused_or_taken_and_never_an_error(
    site: Site, run: Path, data: st.DataObject
) -> None:
    import zlib

    batch = data.draw(st.sampled_from(batches_of(run)))
    plain = bytearray(zlib.decompress(pack_batch(batch)[len(MAGIC) :]))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(plain) - 1))
        plain[place] = data.draw(st.integers(0, 255))
    reply = site.post(MAGIC + zlib.compress(bytes(plain)))
    assert reply.status in (200, 400, 409, 429), reply


# Limits


def test_tokens_are_needed_where_there_are_some(tmp_path: Path, run: Path) -> None:
    site = Site(tmp_path / "store", TOKEN)
    batch = batches_of(run)[0]
    assert site.post(batch).status == 401
    assert site.post(batch, Authorization="Bearer wrong").status == 403
    assert site.ask("GET", "/v1/runs").status == 401
    assert site.ask("GET", "/metrics", Authorization="Basic x").status == 401
    assert site.ask("GET", "/healthz").status == 200
    assert site.post(batch, Authorization=f"Bearer {TOKEN}").status == 200
    site.close()


def test_a_client_that_is_too_fast_is_told_when_to_come_again(tmp_path: Path, run: Path) -> None:
    site = Site(tmp_path / "store", limits=ClientLimits(batches_per_second=1.0))
    statuses = [site.post(batches_of(run)[0]) for _ in range(5)]
    assert [reply.status for reply in statuses[:2]] == [200, 200]
    assert statuses[-1].status == 429 and statuses[-1].headers["retry-after"] == "1"
    site.close()


def test_runs_and_ranks_of_a_client_are_limited(run: Path) -> None:
    clients = Clients((), ClientLimits(runs=2, ranks=10))
    client = clients.admit(-1, "10.0.0.1", 0.0)
    clients.count(client, "a", 4, 0.0)
    clients.count(client, "b", 6, 0.0)
    with pytest.raises(RefusedError, match="more than 10 ranks"):
        clients.count(client, "b", 1, 1.0)
    with pytest.raises(RefusedError, match="more than 2 runs"):
        clients.count(client, "c", 0, 1.0)
    clients.count(client, "b", 0, 3000.0)
    clients.count(client, "c", 4, 4000.0)  # `a` was silent for an hour


def test_batches_wait_with_their_sender_while_sealing_is_far_behind(
    site: Site, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("computeflow.collection.store.journal.JOURNAL_RECORDS", 10)
    monkeypatch.setattr("computeflow.collection.collector.intake._MAX_UNSEALED", 1)
    first, second, *_ = batches_of(run)
    assert site.post(first).status == 200  # 20 records: its file is full
    wait_for(lambda: len(journal_numbers(site.store.journal)) == 2)
    behind = site.post(second)
    assert (behind.status, b"sealing" in behind.body) == (503, True)
    site.intake.forget_sealed(1)
    assert site.post(second).status == 200


def test_a_queue_that_is_full_refuses_and_takes_nothing(tmp_path: Path, run: Path) -> None:
    batch = batches_of(run)[0]
    site = Site(tmp_path / "store", limits=ClientLimits(queue_bytes=10))
    reply = site.post(batch)
    assert reply.status == 503 and int(reply.headers["retry-after"]) >= 1
    assert site.ask("GET", "/v1/positions?run=run-1").data == {"next": {}}
    site.close()


def test_a_disk_that_fails_acknowledges_nothing_and_goes_on_later(
    site: Site, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    batches = batches_of(run)
    assert site.post(batches[0]).status == 200

    def broken(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", broken)
        reply = site.post(batches[1])
        assert reply.status == 503 and b"No space" in reply.body
    assert site.ask("GET", "/v1/positions?run=run-1").data == {"next": {"0.0": 10, "1.0": 10}}
    for batch in batches[1:]:
        assert site.post(batch).status == 200
    counts = steps_in(site.store.path)
    assert len(counts) == 40 and set(counts.values()) == {1}


# Where it listens


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"listen": "0.0.0.0:8471"}, "--token-file"),
        ({"listen": "0.0.0.0:8471", "token_file": Path("t")}, "--cert"),
        ({"listen": "127.0.0.1:8471", "cert": Path("c")}, "belong together"),
        ({"listen": "8471"}, "HOST:PORT"),
        ({"listen": "127.0.0.1:99999"}, "HOST:PORT"),
    ],
)
def test_an_address_that_others_reach_needs_a_token_and_tls(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        CollectorOptions(store=Path("s"), **options)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:8471", "[::1]:8471", "127.9.9.9:1"])
def test_this_machine_needs_neither(listen: str) -> None:
    assert CollectorOptions(store=Path("s"), listen=listen)


def test_token_files_are_private_and_their_tokens_long(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# of the agents\n{TOKEN}\n")
    path.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        read_tokens(path)
    path.chmod(0o600)
    assert read_tokens(path) == (TOKEN.encode(),)
    for text, says in (("short\n", "less than 16"), ("\n# x\n", "no token")):
        path.write_text(text)
        with pytest.raises(InputError, match=says):
            read_tokens(path)
    with pytest.raises(InputError, match="No such file"):
        read_tokens(tmp_path / "absent")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--listen", "0.0.0.0:1"], "--token-file"),
        (["--follow", "/no/such/folder"], "no such folder"),
        (["--keep", "3s"], "at least 60"),
        (["--seconds", "0"], "more than 0"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert cli.run(["collect", "--store", str(tmp_path / "store"), *words]) == 2
    out, err = capsys.readouterr()
    assert says in err and err.count("\n") == 1 and not out


# What is watched


def live(site: Site, view: LiveView) -> None:
    watch: Any = Watched(view)
    site.service.watch = watch


def test_runs_findings_and_nodes_are_json_of_their_values(site: Site, tmp_path: Path) -> None:
    watcher = Watcher(WatchOptions())
    slow = Training(ranks=2, steps=5, forward=2_000 * MS)
    (tmp_path / "slow").mkdir()
    for batch in batches_of(slow.write(tmp_path / "slow")):
        watcher.take(batch, 100.0)
    changes = watcher.tick(101.0)
    nodes = watcher.nodes(101.0)
    live(site, LiveView(at=1.0, runs=watcher.runs(), findings=changes.opened, nodes=nodes))
    (run,) = site.ask("GET", "/v1/runs").data["runs"]
    assert run["run"] == "run-1" and run["state"] == "running"
    findings = site.ask("GET", "/v1/findings").data["findings"]
    assert [finding["ranks"] for finding in findings] == [[0], [1]]
    assert site.ask("GET", "/v1/nodes").data["nodes"][0]["node"] == "n1"
    assert site.ask("GET", "/nothing").status == 404
    assert b"computeflow_" in site.ask("GET", "/metrics").body


def looped(store: StoreFolder, sinks: Sequence[Any] = ()) -> tuple[WatchLoop, Watcher]:
    watchers: list[Watcher] = []

    def make(findings: Sequence[LiveFinding]) -> Watcher:
        watchers.append(Watcher(WatchOptions(), findings))
        return watchers[-1]

    loop = WatchLoop(store, make, sinks)
    return loop, watchers[0]


class Quiet:
    """A sink that counts nothing and has nothing to close."""

    def counts(self) -> dict[str, float]:
        return {}

    def close(self, seconds: float = 5.0) -> None: ...


class Kept(Quiet):
    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []

    def publish(self, changes: Any, runs: Sequence[LiveRun]) -> None:
        self.seen.append((len(changes.opened), len(changes.updated), len(changes.closed)))


class Broken(Quiet):
    def publish(self, changes: Any, runs: Sequence[LiveRun]) -> None:
        raise RuntimeError("the webhook is down")


def slow_rank(tmp_path: Path, until: int) -> list[Batch]:
    """Rank 1's steps take two seconds up to one of them."""
    folder = tmp_path / "slow"
    folder.mkdir()
    training = Training(
        ranks=2, steps=10, extra=lambda rank, step: {"f": 2_000 * MS} if step <= until else {}
    )
    return batches_of(training.write(folder), records=2)


def test_findings_open_are_kept_over_a_restart_and_close(site: Site, tmp_path: Path) -> None:
    batches = slow_rank(tmp_path, until=6)
    sink = Kept()
    loop, watcher = looped(site.store, [Broken(), sink])
    for batch in batches[:5]:
        site.post(batch)
    assert loop.read() == 5
    view = loop.tick(10.0)
    assert len(view.findings) == 2 and sink.seen[-1] == (2, 0, 0) and view.failures == 1
    key = view.findings[0].key
    loop.close()
    Keeper(site.store, KeepOptions(store=str(site.store.path))).seal()

    loop, watcher = looped(site.store)
    assert [finding.key for finding in watcher.given] == [f.key for f in view.findings]
    loop.read()
    assert watcher.starts == {("run-1", 0), ("run-1", 1)}
    silenced = site.ask("POST", f"/v1/findings/{key}/silence", b'{"seconds": 600}')
    assert silenced.status == 200
    assert {f.silenced_until for f in loop.tick(11.0).findings} == {
        None,
        silenced.data["silenced_until"],
    }
    for batch in batches[5:]:
        site.post(batch)
    while loop.read():
        pass
    assert loop.tick(12.0).findings == ()
    assert site.state.open_findings() == []
    assert site.ask("POST", f"/v1/findings/{key}/silence", b'{"seconds": 600}').status == 404
    loop.close()


def test_starts_of_sealed_ranks_are_told_to_a_new_watch(site: Site, run: Path) -> None:
    batches = batches_of(run)
    for batch in batches[:2]:
        site.post(batch)
    site.intake._writer.roll()
    Keeper(site.store, KeepOptions(store=str(site.store.path))).seal()
    assert len(journal_numbers(site.store.journal)) == 1
    site.post(batches[2])
    loop, watcher = looped(site.store)
    loop.read()
    assert watcher.starts == {("run-1", 0), ("run-1", 1)}
    assert next(batch.about for batch, _ in watcher.taken) == {"name": "made"}
    loop.close()


def test_a_run_that_was_forgotten_goes_on_with_its_books(site: Site, tmp_path: Path) -> None:
    """A job that waits in the queue for more than half an hour has the same run."""
    loop = WatchLoop(site.store, lambda found: online.Watcher(online.WatchOptions(), found))
    first = Training(ranks=2, steps=100).write(tmp_path / "first")
    again = Training(ranks=2, steps=100, attempt=1, first_count=51, begins=90_000 * MS)
    batches = [batches_of(first), batches_of(again.write(tmp_path / "again"), agent="agent-2")]
    now, runs = time.time(), list[LiveRun]()
    for each in batches:
        for batch in each:
            site.post(batch)
        while loop.read():
            pass
        runs += loop.tick(now).runs
        assert not loop.tick(now + 1900).runs
    loop.close()
    before, after = runs
    assert after.booked["startup"] == before.booked["startup"]
    assert after.booked["restart"] > 2 * 75 and after.booked["lost"] > 2 * 4
    assert after.kept_steps == before.kept_steps + 50


@pytest.mark.parametrize("body", [b"", b"[]", b'{"seconds": -1}', b'{"seconds": "x"}', b"{"])
def test_a_silence_without_its_seconds_is_refused(site: Site, body: bytes) -> None:
    assert site.ask("POST", "/v1/findings/abc/silence", body).status == 400


# Folders on a shared disk


def test_run_folders_are_followed_and_taken_once(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    (root / "a").mkdir(parents=True)
    about = {"name": "a", "started": 1.0}
    (root / "a" / "run.json").write_text(json.dumps(about))
    Training(ranks=2, steps=30).write(root / "a")
    follower = FolderFollower([root], site.intake, "collector-x")
    follower.start()
    wait_for(lambda: site.intake.counts.records == 2 * 62)
    (root / "deep" / "b").mkdir(parents=True)
    Training(ranks=1, steps=5).write(root / "deep" / "b")
    (root / "a" / "run.json").write_text(json.dumps(about | {"environment": {"X": "secret"}}))
    wait_for(lambda: site.intake.counts.records == 2 * 62 + 12)
    follower.stop()
    again = FolderFollower([root], site.intake, "collector-x")
    again.start()
    (root / "c").mkdir()
    Training(ranks=1, steps=1).write(root / "c")
    wait_for(lambda: site.intake.counts.records == 2 * 62 + 12 + 4)
    again.stop()
    counts = steps_in(site.store.path)
    assert len(counts) == 66 and set(counts.values()) == {1}


def test_a_file_that_is_no_recording_does_not_stop_the_others(site: Site, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    Training(ranks=1, steps=5).write(tmp_path / "runs")
    (tmp_path / "runs" / "rank-9.attempt-0.cfr").write_bytes(b"nothing of ours, and long enough")
    follower = FolderFollower([tmp_path / "runs"], site.intake, "c")
    follower.start()
    wait_for(lambda: site.intake.counts.records == 12)
    follower.stop()
