"""Names and options that users rely on. A change here is a change for them: note it in CHANGELOG."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import click
import pytest

from computeflow.cli.app import app

FROZEN = json.loads((Path(__file__).parent / "data" / "frozen.json").read_text())


def options(command: click.Command, path: str = "computeflow") -> dict[str, list[str]]:
    """Every command with its arguments and options, as they are typed."""
    found = {
        path: sorted(
            name
            for parameter in command.params
            for name in (
                parameter.opts if isinstance(parameter, click.Option) else [parameter.name or ""]
            )
        )
    }
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            found |= options(child, f"{path} {name}")
    return found


def exports(package: str) -> list[str]:
    return sorted(importlib.import_module(package).__all__)


@pytest.mark.parametrize("package", FROZEN["exports"])
def test_exported_names_are_the_frozen_ones_and_exist(package: str) -> None:
    assert exports(package) == FROZEN["exports"][package]
    module = importlib.import_module(package)
    assert all(hasattr(module, name) for name in module.__all__)


def test_commands_and_options_are_the_frozen_ones() -> None:
    assert options(app) == FROZEN["options"]


if __name__ == "__main__":  # `make docs`: accept the present names as the frozen ones
    present = {
        "exports": {package: exports(package) for package in FROZEN["exports"]},
        "options": options(app),
    }
    (Path(__file__).parent / "data" / "frozen.json").write_text(
        json.dumps(present, indent=1) + "\n"
    )
