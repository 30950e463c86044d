"""Run the agent of this node: its readings and its recordings, for a collector.

It reads GPUs, CPU, memory, disks, network and the kernel log, finds what `record` writes, and ships
both. Without --collector it serves metrics to be scraped. It runs until it is stopped.
"""

from __future__ import annotations

from typing import Any

import click

from computeflow.cli.command import AnswerCommand, choice, flag, option
from computeflow.cli.output import show
from computeflow.cli.streams import say
from computeflow.cli.types import FILE, Number
from computeflow.units import HOUR_SECONDS


class _Agent(AnswerCommand):
    """Says on stderr what goes wrong while it runs; a manifest goes to stdout as it is."""

    def invoke(self, ctx: click.Context) -> int:
        options: dict[str, Any] = self.options(ctx)
        output, quiet = options.pop("output", "table"), options.pop("quiet", False)
        options["say"] = lambda text: say(f"computeflow agent: {text}")
        answer = self.library_function()(**options)
        if "print_manifest" in options and output == "table":
            click.echo(answer.to_dict()["text"], nl=False)
        elif output == "json" or ("once" in options and not quiet):
            show(answer, output)
        return answer.exit_code


agent = _Agent(
    "agent",
    "agents:agent",
    [
        option("--collector", metavar="URL", help="Ship to this collector (https://HOST:8471)."),
        option(
            "--runs",
            type=FILE,
            multiple=True,
            metavar="DIR",
            help="Folder of recorded runs; by default where `record` keeps them. Repeatable.",
        ),
        option(
            "--token-file",
            type=FILE,
            metavar="FILE",
            help="File with the token for the collector, and for --listen on other addresses.",
        ),
        option(
            "--ca",
            type=FILE,
            metavar="FILE",
            help="Certificates that the collector's is checked by.",
        ),
        option(
            "--listen",
            metavar="HOST:PORT",
            help="Serve OpenMetrics here; 127.0.0.1:9471 without --collector.",
        ),
        option("--otlp", metavar="URL", help="Push readings to OpenTelemetry (http://HOST:4318)."),
        option(
            "--every",
            type=Number(1, HOUR_SECONDS),
            default=5.0,
            metavar="SECONDS",
            help="Time between readings of the node; records are shipped each second.",
        ),
        option("--node", metavar="NAME", help="Name of this node; by default the host's."),
        option(
            "--state",
            type=FILE,
            metavar="DIR",
            help="Folder for the agent's own name; by default in the user's state.",
        ),
        option("--nvml", type=FILE, metavar="FILE", help="Replay a recording of NVML."),
        option(
            "--kernel-log",
            type=FILE,
            metavar="FILE",
            help="Follow this file instead of /dev/kmsg.",
        ),
        flag(
            "--all-hosts",
            help="Ship the files of every host: for a disk that is this node's alone.",
        ),
        flag("--once", help="Look once, ship all that is there, and end."),
        choice(
            "--print-manifest",
            ("systemd", "slurm", "kubernetes"),
            None,
            "Print a file that starts the agent on every node.",
        ),
    ],
    help=__doc__ or "",
    html=False,
)
