"""Show runs, where their time goes, findings and plans as one page in a browser.

DIR is a collector's store, a run folder, a folder of them, or anything that audit reads; by default the
runs that record keeps. Prints the address to open, which holds a token to look; --operator-token-file
says who may also approve actions. Only this machine can reach it unless --listen says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from computeflow.cli.command import flag, option
from computeflow.cli.listening import ListeningCommand
from computeflow.cli.types import COUNT, FILE, Number

if TYPE_CHECKING:
    from computeflow.answers import Answer


class _Serving(ListeningCommand):
    def library_function(self) -> Callable[..., Answer]:
        from computeflow.web.page_server import serve as serve_page

        return serve_page


serve = _Serving(
    "serve",
    "page_server:serve",
    [
        click.Argument(["directory"], type=FILE, required=False, metavar="[DIR]"),
        option(
            "--listen",
            default="127.0.0.1:8470",
            metavar="HOST:PORT",
            help="Address for browsers; other than this machine's it needs TLS.",
        ),
        option(
            "--operator-token-file",
            type=FILE,
            metavar="FILE",
            help="Who may act: lines of NAME TOKEN.",
        ),
        option(
            "--host",
            multiple=True,
            metavar="NAME",
            help="Name under which browsers reach it; repeatable.",
        ),
        option("--cert", type=FILE, metavar="FILE", help="TLS certificate chain (PEM)."),
        option("--key", type=FILE, metavar="FILE", help="TLS private key (PEM)."),
        flag("--behind-proxy", help="A proxy does TLS: trust its X-Forwarded headers."),
        option(
            "--price",
            type=Number(),
            metavar="USD",
            help="Price of a GPU-hour; runs of a collector that has one keep it.",
        ),
        option("--on", metavar="DEVICE", help="Accelerator of the recordings (h200-sxm:8)."),
        option(
            "--model",
            metavar="MODEL",
            help="Model to count FLOPs from, where recordings do not state them.",
        ),
        option(
            "--global-batch", type=COUNT, help="With --model: sequences per step over all ranks."
        ),
        option("--seq-len", type=COUNT, help="With --model: tokens per sequence."),
        option(
            "--expect",
            type=FILE,
            metavar="FILE",
            help="Prediction to compare with: predict or plan -o json.",
        ),
        option(
            "--topology",
            type=FILE,
            metavar="FILE",
            help="Topology file, to group the fleet by switch.",
        ),
        option("--seconds", type=Number(), metavar="N", help="Stop after so long."),
    ],
    help=__doc__ or "",
    html=False,
    says="open",
)
