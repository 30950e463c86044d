"""Print the script that makes a shell complete commands, options and names of the catalog.

bash: `eval "$(computeflow completion bash)"` in ~/.bashrc; zsh likewise; fish: write the script to
~/.config/fish/completions/computeflow.fish.
"""

from __future__ import annotations

import click


@click.command(help=__doc__)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    from click.shell_completion import get_completion_class

    from computeflow.cli.app import app

    kind = get_completion_class(shell)
    assert kind is not None  # click ships all three
    print(kind(app, {}, "computeflow", "_COMPUTEFLOW_COMPLETE").source())
