"""Write the generated pages: docs/cli.md from the commands themselves. Run by `make docs`."""

from __future__ import annotations

from pathlib import Path

import click

from computeflow.cli.app import CONTEXT, app

PAGE = Path(__file__).with_name("cli.md")
OPENING = """# The command line

Generated from the program by `make docs`. Every command takes `-o json` for one JSON object on
stdout; exit codes are 0 fine, 1 failed, 2 wrong input, 3 ran and found problems.
"""


def reference() -> str:
    return OPENING + "".join(_section(app, "computeflow", None))


def _section(command: click.Command, path: str, parent: click.Context | None) -> list[str]:
    context = click.Context(
        command, info_name=path.split()[-1], parent=parent, terminal_width=80, **CONTEXT
    )
    parts = [f"\n## `{path}`\n\n```text\n{command.get_help(context).rstrip()}\n```\n"]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                parts += _section(child, f"{path} {name}", context)
    return parts


if __name__ == "__main__":
    PAGE.write_text(reference())
    print(f"wrote {PAGE.name}")
