"""A wheel from a clean checkout, in an empty environment without Node, serves the page."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.long]
ROOT = Path(__file__).parents[1]


def run(words: list[str], folder: Path) -> None:
    path = f"{folder / 'venv' / 'bin'}:/usr/bin:/bin"
    subprocess.run(words, cwd=folder, env={"PATH": path, "HOME": str(folder)}, check=True)


def ask(address: str, token: str, accept: str) -> bytes:
    request = urllib.request.Request(
        address, headers={"Authorization": f"Bearer {token}", "Accept": accept}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return bytes(answer.read())


def test_a_wheel_in_an_empty_environment_serves_the_page(tmp_path: Path) -> None:
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    ).stdout
    (tmp_path / "checkout").mkdir()
    subprocess.run(["tar", "-x", "-C", str(tmp_path / "checkout")], input=archive, check=True)
    run([sys.executable, "-m", "venv", "venv"], tmp_path)
    pip = str(tmp_path / "venv" / "bin" / "pip")
    run([pip, "wheel", "--quiet", "--no-deps", "-w", "dist", "./checkout"], tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    run([pip, "install", "--quiet", f"{wheel}[serve]"], tmp_path)
    recordings = tmp_path / "checkout" / "tests" / "data" / "run_folders"
    command = [str(tmp_path / "venv" / "bin" / "computeflow"), "serve", str(recordings)]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            opened = server.stdout.readline().split()[-1]
            address, _, token = opened.partition("/open?token=")
            session = json.loads(ask(f"{address}/session", token, "application/json"))
            for page in session["pages"]:
                script = ask(f"{address}/static/pages/{page['script']}.js", token, "*/*")
                assert b"export" in script
                if page["menu"]:
                    assert b"<!DOCTYPE html>" in ask(address + page["address"], token, "text/html")
                    content = ask(address + page["address"], token, "application/json")
                    assert json.loads(content)
            assert len(ask(f"{address}/static/plotly.min.js", token, "*/*")) > 1_000_000
        finally:
            server.terminate()
