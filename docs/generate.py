"""Write what is generated in the docs. Run by `make docs`.

docs/cli.md comes from the commands themselves, the map in docs/design.md from the imports; the console
blocks of README and docs show what their commands print now. Read the difference before committing it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click

from computeflow.cli.app import CONTEXT, app

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("cli.md")
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n", re.MULTILINE)
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


def refill(text: str) -> str:
    """The page with every shown output replaced by what is printed now, cut (`...`) where it was."""
    return CONSOLE.sub(lambda block: f"```console\n{_refill_block(block[1])}```", text)


def _refill_block(block: str) -> str:
    _, *parts = COMMAND.split(block)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return "".join(f"$ {command}\n{_output(command, shown)}" for command, shown in pairs)


def _output(command: str, shown: str) -> str:
    program, *arguments = shlex.split(command)
    if program != "computeflow":
        return shown
    done = subprocess.run(
        [sys.executable, "-m", "computeflow.cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    lines = [line.rstrip() for line in (done.stdout + done.stderr).strip().splitlines()]
    blank = "\n" if shown.endswith("\n\n") else ""
    return "\n".join(_cut_as(shown.strip().splitlines(), lines)) + f"\n{blank}"


def _cut_as(shown: list[str], lines: list[str]) -> list[str]:
    """As many lines before and after `...` as were shown; all of them where nothing was cut."""
    if "..." not in shown:
        return lines
    head = shown.index("...")
    tail = len(shown) - head - 1
    return [*lines[:head], "...", *lines[len(lines) - tail :]]


if __name__ == "__main__":
    import import_map

    design = import_map.PAGE.read_text()
    import_map.PAGE.write_text(import_map.with_map(design))
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        before = page.read_text()
        if (after := refill(before)) != before:
            page.write_text(after)
            print(f"refilled {page.relative_to(ROOT)}")
    PAGE.write_text(reference())
    print(f"wrote {PAGE.name}")
