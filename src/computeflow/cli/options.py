"""Options that many commands share."""

from __future__ import annotations

import click

from computeflow.cli.command import option
from computeflow.cli.types import COUNT, DAY, FILE, CountType, FileName

MODEL = click.Argument(["model"], required=False)
NEEDED_MODEL = click.Argument(["model"])
CATALOG = click.Option(
    ["--catalog"],
    multiple=True,
    type=FileName(dir_okay=False),
    metavar="FILE",
    help="Your own catalog rows (TOML or CSV), which override the packaged ones; may be repeated.",
)
CALIBRATION = option(
    "--calibration",
    type=FILE,
    metavar="FILE",
    help="Measured figures to predict with, from `probe --write-calibration` or `calibrate --to`.",
)
STACK = option(
    "--stack",
    metavar="NAME",
    help="Software stack; by default current practice, with a wider range.",
)
SEED = option(
    "--seed",
    type=CountType(0, 9_223_372_036_854_775_807),
    default=0,
    help="Random seed.",
)
TODAY = option(
    "--today",
    type=DAY,
    metavar="DATE",
    help="Date that the age of prices is counted from (2026-11-15); by default today.",
)
USUAL_STEP = [
    option("--global-batch", type=COUNT, help="Sequences per step; by default 8 M tokens' worth."),
    option("--seq-len", type=COUNT, help="Tokens per sequence; by default 8192."),
]
