"""Commands that the page offers to copy: the command line takes each, and answers as the page does."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from fastapi.testclient import TestClient

import computeflow as cf
from computeflow.catalog.lookup import GROUPS
from computeflow.cli import run
from computeflow.cli.app import app
from computeflow.errors import UnknownNameError
from live_value_maker import write_store
from page_client import RUNS, made_store
from test_web_pages import SMALL, answer, client_of, without_times

STATIC = Path(cf.__file__).parent / "web" / "static"
RULES = Path(cf.__file__).parent / "diagnosis"
DECIDE = "/decide?model=llama-3.1-8b&tokens=20B&deadline=30&providers=lambda&devices=h100-sxm"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    yield client_of(RUNS)


def parse(text: str) -> None:
    """As click does before it calls a command: names of commands, options, types of values."""
    program, *words = shlex.split(text)
    assert program == "computeflow", text
    command: click.Command = app
    context = app.make_context(program, words)
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert name is not None and found is not None, text
        command, context = found, found.make_context(name, words, parent=context)


def printed(text: str, capsys: Any) -> dict[str, Any]:
    capsys.readouterr()
    assert run([*shlex.split(text)[1:], "-o", "json"]) == 0, text
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_what_the_command_line_refuses_is_found() -> None:
    parse("computeflow plan llama-3.1-8b --on h100-sxm:8 --global-batch 64 --seq-len 8192")
    for wrong in ("computeflow plane x", "computeflow plan llama-3.1-8b --gpu 8"):
        with pytest.raises((click.UsageError, UnknownNameError)):
            parse(wrong)


@pytest.mark.parametrize("search", ["quick", "full"])
@pytest.mark.parametrize("more", ["", "&tokens=10B&deadline=30&price=2.5&precision=fp8"])
def test_a_plan_is_that_of_its_command(
    client: TestClient, capsys: Any, search: str, more: str
) -> None:
    content = answer(client, f"/plan?{SMALL}{more}&search={search}")
    assert without_times(printed(content["command"], capsys)) == without_times(content["result"])


@pytest.mark.parametrize("more", ["&interval=10&spares=1&price=2", ""])
def test_a_simulation_is_that_of_its_command(client: TestClient, capsys: Any, more: str) -> None:
    content = answer(client, f"/simulate?{SMALL}&tokens=10B&simulations=20{more}")
    assert printed(content["command"], capsys) == content["result"]


def test_a_decision_is_that_of_its_command_and_so_is_its_run(
    client: TestClient, capsys: Any
) -> None:
    content = answer(client, DECIDE)
    assert printed(content["command"], capsys) == content["result"]
    (simulation,) = [
        row[0]
        for part in content["parts"]
        if [each["header"] for each in part.get("columns", [])] == ["command"]
        for row in part["rows"]
    ]
    assert printed(simulation, capsys)["schema"].startswith("computeflow.simulation/")


def test_offers_are_those_of_their_command(client: TestClient, capsys: Any) -> None:
    content = answer(client, f"{DECIDE}&show=offers")
    assert printed(content["command"], capsys)["schema"] == content["result"]["schema"]


@pytest.mark.parametrize("page", ["/flow", "/findings", "/runs", "/fleet"])
@pytest.mark.parametrize("folder", ["no runs", "a store"])
def test_commands_of_an_empty_page_can_be_run(tmp_path: Path, page: str, folder: str) -> None:
    path = write_store(tmp_path) if folder == "a store" else tmp_path
    commands = client_of(path).get(page).json()["empty"]["commands"]
    assert commands
    for command in commands:
        parse(command)


def test_a_path_with_a_space_is_one_word_of_a_command(tmp_path: Path) -> None:
    folder = tmp_path / "my runs"
    folder.mkdir()
    store, finding = made_store(folder)
    client = client_of(store)
    for address in (f"/timeline/{finding.run}", f"/flow?run={finding.run}"):
        for command in client.get(address).json().get("empty", {"commands": []})["commands"]:
            parse(command)
            assert str(store) in shlex.split(command)


def test_commands_that_scripts_and_rules_write_can_be_run() -> None:
    scripts = "".join(path.read_text() for path in STATIC.rglob("*.js"))
    rules = "".join(path.read_text() for path in RULES.rglob("*.py"))
    written = re.findall(r"`(computeflow \w+ [^`]*\$\{[^`]*)`", scripts)
    written += re.findall(r'[`"](computeflow [a-z]+(?: [^`"{]*)?)[`"]', rules)
    assert len(written) >= 3
    for text in written:
        filled = re.sub(r"\$\{verbs\[0\]\}", "approve", text)
        parse(re.sub(r"\$\{[^}]*\}", "1", filled))


def test_kinds_of_the_catalog_are_those_of_its_command() -> None:
    for kind in GROUPS:
        parse(f"computeflow catalog {kind}")
