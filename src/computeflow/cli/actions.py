"""`computeflow actions`: the journal of a controller: decisions, approvals, what they gained."""

from __future__ import annotations

import click

from computeflow.cli.command import AnswerCommand, option
from computeflow.cli.types import FILE, CountType

_STORE = option(
    "--store", type=FILE, required=True, metavar="DIR", help="Folder of `computeflow collect`."
)


def _command(name: str, function: str, help: str, *arguments: click.Argument) -> AnswerCommand:
    return AnswerCommand(
        name, f"action_lists:{function}", [*arguments, _STORE], help=help, html=False
    )


def _number() -> click.Argument:
    return click.Argument(["number"], type=CountType(1), metavar="ID")


actions = click.Group(
    "actions",
    help="Decisions of `computeflow control`: what, why, at what price, and what they gained.",
)
actions.add_command(_command("list", "list_actions", "All actions, the newest first."))
actions.add_command(
    _command(
        "show", "show_action", "One action: evidence, prices, steps, commands, outcome.", _number()
    )
)
actions.add_command(
    _command(
        "approve",
        "approve_action",
        "Let the controller carry out a proposed action; your name is kept.",
        _number(),
    )
)
actions.add_command(
    _command("dismiss", "dismiss_action", "Say no to a proposed action.", _number())
)
actions.add_command(
    _command(
        "undo", "undo_action", "Have the controller undo an action, as far as possible.", _number()
    )
)
actions.add_command(
    _command(
        "return",
        "return_node",
        "Have the controller probe a drained node, and take it back if it is accepted.",
        click.Argument(["node"], metavar="NODE"),
    )
)
actions.add_command(
    _command(
        "report", "report_actions", "Predicted gain beside measured gain, one by one and in all."
    )
)
