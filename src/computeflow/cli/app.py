"""The program and its commands: `compare-sites` is `compare_sites` in `cli/compare_sites.py`."""

from __future__ import annotations

import importlib
from typing import Any

import click

from computeflow import __version__
from computeflow.answers.renames import FUNCTIONS
from computeflow.cli.streams import note_new_name
from computeflow.errors import UnknownNameError

GROUPS = {
    "Measure": {
        "audit": "Where a run's time and dollars went, and what to fix.",
        "record": "A training command, every step of every rank recorded.",
        "agent": "What this node and its ranks say, shipped to a collector.",
        "collect": "A collector: takes what agents send, watches it, keeps it.",
        "runs": "Recorded runs: step time, MFU, goodput, restarts, dollars.",
        "top": "Runs that go on: flow, slowest ranks, findings by cost.",
        "serve": "One page: flow, runs, findings, plans, live in a browser.",
        "control": "Decisions on jobs in trouble, priced, carried out by Slurm.",
        "actions": "Those decisions: why, at what price, what they gained.",
        "probe": "How fast this machine is, against what it should be.",
        "calibrate": "A correction factor for predictions, from measured steps.",
        "ledger": "One ledger file as a table, or two line by line.",
    },
    "Plan": {
        "plan": "The best layouts of a job on a cluster, with reasons.",
        "predict": "Step time, memory and power of one layout, with a range.",
        "improve": "An ordered path of changes, each with gain and diff.",
        "check": "Mistakes and losses in a framework's configuration file.",
        "place": "Which rank should run on which node, as launcher files.",
        "cluster": "A cluster file, made from topology files.",
    },
    "Simulate": {
        "simulate": "A whole run with failures: its days, cost and goodput.",
        "compare-sites": "One job at two sites: days and dollars, account by account.",
    },
    "Buy": {
        "decide": "Rent or build, where, for how much; what would change that.",
        "size": "GPUs, days, memory and dollars that a training takes.",
        "compare": "Every offer for a job: best plan, simulated days, dollars.",
        "build": "What owning GPUs costs beside renting them.",
        "site-limits": "How many GPUs a site takes, and what limits it.",
    },
    "Tools": {
        "catalog": "Hardware, models, prices and sites, each with its source.",
        "validate": "How far predictions are from measured runs.",
        "claims": "Popular claims about training and its hardware, checked.",
        "export": "Grafana dashboard, alert rules, Prometheus configuration.",
        "doctor": "What works on this machine, and how to install the rest.",
        "completion": "A completion script for bash, zsh or fish.",
    },
}
"""Commands as `computeflow --help` lists them, each with what it answers."""
COMMANDS = tuple(name for group in GROUPS.values() for name in group)
RENAMED = {old: new.replace("_", "-") for old, new in FUNCTIONS.items()}
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 80}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        attribute = name.replace("-", "_")
        module = importlib.import_module(f"computeflow.cli.{attribute}")
        command: click.Command = getattr(module, attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in RENAMED:
            note_new_name(args[0], RENAMED[args[0]])
            args = [RENAMED[args[0]], *args[1:]]
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise UnknownNameError("command", args[0], COMMANDS, hint="see computeflow --help")
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), doc) for name, doc in commands.items()])


def _help(ctx: click.Context, **_: Any) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


app = LazyGroup(
    "computeflow",
    callback=click.pass_context(_help),
    invoke_without_command=True,
    context_settings=CONTEXT,
    help="Where every GPU-second, joule and dollar of a training run goes, what to change, and "
    "what the change is worth.",
)
app = click.version_option(__version__, message="computeflow %(version)s")(app)
