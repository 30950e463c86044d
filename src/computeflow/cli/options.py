"""Options that many commands share."""

from __future__ import annotations

import click

from computeflow.cli.command import option
from computeflow.cli.types import COUNT, DAY, FILE, Count, FileName

MODEL = click.Argument(["model"], required=False)
NEEDED_MODEL = click.Argument(["model"])
CATALOG = click.Option(
    ["--catalog"],
    multiple=True,
    type=FileName(dir_okay=False),
    metavar="FILE",
    help="Rows of your own (TOML or CSV) over ours; may be repeated.",
)
CALIBRATION = option(
    "--calibration",
    type=FILE,
    metavar="FILE",
    help="Measured figures in place of generic ones, from `probe --write-calibration` or "
    "`calibrate --to`.",
)
STACK = option(
    "--stack", metavar="NAME", help="The software; left out: today's practice, with a wider range."
)
SEED = option(
    "--seed",
    type=Count(0, 9_223_372_036_854_775_807),
    default=0,
    help="Random seed: the same seed, the same answer.",
)
TODAY = option(
    "--today",
    type=DAY,
    metavar="DATE",
    help="The day from which prices count as old (2026-11-15); else this day.",
)
USUAL_STEP = [
    option("--global-batch", type=COUNT, help="Sequences in a step; else 8 M tokens."),
    option("--seq-len", type=COUNT, help="Tokens in a sequence; else 8192."),
]
