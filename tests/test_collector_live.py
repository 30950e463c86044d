"""`computeflow collect` as a process, with real clients."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batch_maker import Sender, batches_of, wait_for
from collector_processes import ROOT, Collector, collector, steps_in
from run_folder_maker import Training

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.live
TOKEN = "0123456789abcdef-token"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return Training(ranks=4, steps=60).write(tmp_path / "run")


def children(pid: int) -> list[int]:
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(word) for text in texts for word in text.split()]


def test_it_says_its_address_and_stops_cleanly(tmp_path: Path, run: Path) -> None:
    with collector(tmp_path / "store") as running:
        assert running.line.startswith("collecting on http://127.0.0.1:")
        sender = Sender(running.address)
        for batch in batches_of(run):
            assert sender.post(batch).status == 200
        helpers = children(running.process.pid)
        code, errors = running.stop()
    assert code == 0 and "Traceback" not in errors and "13 batches" in errors
    assert not any(Path(f"/proc/{pid}").exists() for pid in helpers)
    assert set(steps_in(tmp_path / "store").values()) == {1}


def test_json_is_one_object_at_the_end(tmp_path: Path) -> None:
    words = ["collect", "--store", str(tmp_path / "store"), "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [os.sys.executable, "-m", "computeflow", *words, "--seconds", "1", "-o", "json"],  # type: ignore[attr-defined]
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        timeout=300,
    )
    data = json.loads(done.stdout)
    assert data["schema"] == "computeflow.collect/1" and data["batches"] == 0


def test_helpers_end_with_a_collector_that_was_killed(tmp_path: Path) -> None:
    with collector(tmp_path / "store") as running:
        helpers = wait_for(lambda: children(running.process.pid))
        running.stop(signal.SIGKILL)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in helpers))


def test_a_second_collector_on_the_same_store_is_refused(tmp_path: Path) -> None:
    with collector(tmp_path / "store"), collector(tmp_path / "store") as second:
        code, errors = second.stop()
        assert code == 2 and "another process holds" in errors and "Traceback" not in errors


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with collector(tmp_path / "store", listen=f"127.0.0.1:{port}") as running:
            code, errors = running.stop()
    assert code == 2 and "Address already in use" in errors


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost".split()
    words += ["-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run([*words, "-out", cert, "-keyout", key], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl: apt-get install openssl")
    return cert, key


def test_others_reach_it_with_a_token_over_tls_alone(
    tmp_path: Path, run: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN + "\n")
    tokens.chmod(0o600)
    options = ["--token-file", str(tokens), "--cert", str(cert), "--key", str(key)]
    with collector(tmp_path / "store", *options, listen="0.0.0.0:0") as running:
        address = running.address.replace("0.0.0.0", "127.0.0.1")
        context = ssl.create_default_context(cafile=str(cert))
        batch = batches_of(run)[0]
        assert Sender(address, TOKEN, context).post(batch).status == 200
        assert Sender(address, "another-token-of-length", context).post(batch).status == 403
        with pytest.raises(OSError):
            Sender(address.replace("https", "http"), TOKEN).post(batch)


def test_clients_that_send_a_head_slowly_lose_their_connection(tmp_path: Path) -> None:
    from computeflow.collection.collector.collector_options import ClientLimits

    assert ClientLimits().request_seconds <= 60
    with collector(tmp_path / "store") as running:
        host, _, port = running.address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=300) as slow:
            slow.sendall(b"POST /v1/batches HTTP/1.1\r\nHost: x\r\n")
            assert slow.recv(1) == b""


def test_run_folders_are_followed_within_seconds(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    with collector(tmp_path / "store", "--follow", str(root)) as running:
        (root / "new").mkdir()
        Training(ranks=2, steps=30).write(root / "new")
        sender = Sender(running.address)
        wait_for(lambda: sender.ask("GET", "/healthz").data["batches"] >= 2)
        running.stop()
    counts = steps_in(tmp_path / "store")
    assert len(counts) == 60 and set(counts.values()) == {1}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_refuses_and_goes_on_when_there_is_room(small_disk: Path, run: Path) -> None:
    batches = batches_of(run, records=1)
    ballast = small_disk / "ballast"
    with collector(small_disk / "store") as running:
        sender = Sender(running.address)
        assert sender.post(batches[0]).status == 200
        _fill(ballast)
        refused = wait_for(lambda: _not_taken(sender, batches))
        assert refused.status == 503 and "retry-after" in refused.headers
        ballast.unlink()
        for batch in batches:
            wait_for(lambda batch=batch: sender.post(batch).status == 200)
        assert running.process.poll() is None
        running.stop()
    counts = steps_in(small_disk / "store")
    assert len(counts) == 240 and set(counts.values()) == {1}


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


def _not_taken(sender: Sender, batches: list[Any]) -> Any:
    for batch in batches:
        reply = sender.post(batch)
        if reply.status != 200:
            return reply
    time.sleep(0.1)
    return None


def test_a_collector_killed_again_and_again_has_every_step_once(tmp_path: Path, run: Path) -> None:
    batches = batches_of(run, records=3)
    done = 0
    for _ in range(5):
        running = Collector(tmp_path / "store")
        try:
            sender = Sender(running.address)
            for batch in batches[: done + 9]:
                assert sender.post(batch).status == 200
            done += 8
        finally:
            running.stop(signal.SIGKILL)
    counts = steps_in(tmp_path / "store")
    assert len(counts) >= 4 * (3 * done - 2) // 2 - 8 and set(counts.values()) == {1}


def test_faults_at_random_points_lose_and_double_nothing() -> None:
    from benchmarks.prove_collector_faults import prove

    proof = prove(10, seed=3)
    assert proof.holds, proof
    assert proof.acknowledged > 0 and proof.stored >= proof.acknowledged
