"""Help texts: what `computeflow --help` lists first, and that every option's text reads alone."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from computeflow.cli import run
from computeflow.cli.app import COMMANDS, GROUPS, app


def commands(
    command: click.Command, path: str = "computeflow"
) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted({*command.list_commands(context), *command.commands}):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands(child, f"{path} {name}")


def wrong_helps(command: click.Command) -> list[str]:
    """Options without a help text, or with one that is no sentence of its own."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    return [
        f"{option.opts[0]}: {option.help}"
        for option in options
        if not option.help
        or not option.help.endswith(".")
        or option.help.startswith(("Of ", "What "))
        or not option.help[0].isupper()
    ]


@pytest.mark.parametrize(("path", "command"), list(commands(app)), ids=str)
def test_every_option_has_a_help_text_that_reads_alone(path: str, command: click.Command) -> None:
    assert wrong_helps(command) == [], path


@pytest.mark.parametrize("text", [None, "", "Of the numbers.", "What is probed.", "No full stop"])
def test_a_help_text_that_does_not_read_alone_is_found(text: str | None) -> None:
    assert len(wrong_helps(click.Command("x", params=[click.Option(["--seed"], help=text)]))) == 1


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_the_commands_in_groups_with_audit_and_plan_first(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line.removesuffix(":") for line in lines if line.endswith(":")]
    assert titles == [*GROUPS, "Options"]
    assert sorted(GROUPS) == ["Buy", "Measure", "Plan", "Simulate", "Tools"]
    assert lines[lines.index("Measure:") + 1].split()[0] == "audit"
    assert lines[lines.index("Plan:") + 1].split()[0] == "plan"
    listed = [
        line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in COMMANDS
    ]
    assert listed == list(COMMANDS)
