"""The program and its commands. A command's module is imported when the command is run."""

from __future__ import annotations

import importlib
from typing import Any

import click

from computeflow import __version__
from computeflow.errors import UnknownNameError

COMMANDS = {
    "catalog": ("computeflow.cli.catalog:catalog", "Hardware, models, offers, sites: the facts."),
    "predict": ("computeflow.cli.predict:predict", "Step time, memory and power before a run."),
    "plan": ("computeflow.cli.plan:plan", "The best layouts of a job on a cluster, with reasons."),
    "size": ("computeflow.cli.size:size", "What a training takes: GPUs x days, memory, dollars."),
    "compare": (
        "computeflow.cli.compare:compare",
        "Every offer for a job: its plan, its simulated days, its dollars.",
    ),
    "cluster": ("computeflow.cli.cluster:cluster", "Which node is plugged in where."),
    "place": ("computeflow.cli.place:place", "Which rank runs on which node."),
    "simulate": (
        "computeflow.cli.simulate:simulate",
        "A whole run with failures: when it ends and where its time goes.",
    ),
    "sites": (
        "computeflow.cli.sites:sites",
        "The same job at two sites, account by account, in days and dollars.",
    ),
    "site": ("computeflow.cli.site:site", "What limits one site: power, racks, floor, network."),
    "build": ("computeflow.cli.build:build", "Build or rent: what owning costs beside renting."),
    "claims": ("computeflow.cli.claims:claims", "What popular documents claim, checked."),
    "check": (
        "computeflow.cli.check:check",
        "What a framework's configuration costs, and what would be better.",
    ),
    "validate": (
        "computeflow.cli.validate:validate",
        "How far predictions are from measured runs.",
    ),
    "calibrate": (
        "computeflow.cli.calibrate:calibrate",
        "A site's own factor, from a few of its measured steps.",
    ),
    "audit": ("computeflow.cli.audit:audit", "Where the time of a recorded run went."),
    "probe": ("computeflow.cli.probe:probe", "What this machine really gives, graded."),
    "ledger": ("computeflow.cli.ledger:ledger", "Show a ledger file, or two side by side."),
    "doctor": ("computeflow.cli.doctor:doctor", "What works on this machine and what is missing."),
    "completion": ("computeflow.cli.completion:completion", "Print a shell completion script."),
}
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 80}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise UnknownNameError("command", args[0], COMMANDS, hint="see computeflow --help")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, doc) for name, (_, doc) in COMMANDS.items()])


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
