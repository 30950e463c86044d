"""Collect what agents send of running jobs, watch it, and keep it as Parquet.

Prints its address once it listens, and runs until it is told to stop (SIGTERM, Ctrl-C). What was
acknowledged is on the disk, however it ends. Only this machine can reach it unless --listen says
otherwise, which needs a token and TLS.
"""

from __future__ import annotations

from computeflow.cli.command import flag, option
from computeflow.cli.listening import ListeningCommand
from computeflow.cli.types import BYTES, DURATION, FILE, Number

collect = ListeningCommand(
    "collect",
    "collectors:collect",
    [
        option(
            "--store",
            type=FILE,
            required=True,
            metavar="DIR",
            help="Folder of this collector alone: journal, Parquet, state.",
        ),
        option(
            "--listen",
            default="127.0.0.1:8471",
            metavar="HOST:PORT",
            help="Address for agents, top and Prometheus.",
        ),
        option(
            "--follow",
            type=FILE,
            multiple=True,
            metavar="DIR",
            help="Follow run folders in it, on a shared disk; repeatable.",
        ),
        option("--price", type=Number(), metavar="USD", help="Price of a GPU-hour, for findings."),
        option(
            "--token-file",
            type=FILE,
            metavar="FILE",
            help="Tokens that clients must send, one in a line.",
        ),
        option("--cert", type=FILE, metavar="FILE", help="TLS certificate chain (PEM)."),
        option("--key", type=FILE, metavar="FILE", help="TLS private key (PEM)."),
        flag("--behind-proxy", help="A proxy does TLS: trust its X-Forwarded headers."),
        option("--alertmanager", metavar="URL", help="Send findings to this Alertmanager."),
        option(
            "--webhook-file",
            type=FILE,
            metavar="FILE",
            help="File with the address of a Slack webhook for findings.",
        ),
        option(
            "--push-metrics",
            metavar="URL",
            help="Push metrics to this VictoriaMetrics, beside /metrics.",
        ),
        option(
            "--keep", type=DURATION, metavar="TIME", help="Delete what is older; 30d by default."
        ),
        option(
            "--keep-bytes",
            type=BYTES,
            metavar="BYTES",
            help="Delete the oldest Parquet beyond this size (100GB).",
        ),
        option(
            "--shared",
            type=FILE,
            metavar="DIR",
            help="Put Parquet here, beside that of other collectors.",
        ),
        option("--seconds", type=Number(), metavar="N", help="Stop after so long."),
    ],
    help=__doc__ or "",
    html=False,
    says="collecting on",
)
