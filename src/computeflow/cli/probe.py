"""Measure this machine and grade it against what it should reach.

Under torchrun or srun every rank is probed and the nodes are compared.
"""

from __future__ import annotations

from computeflow.cli.command import FORCE, AnswerCommand, choice, flag, option
from computeflow.cli.options import CATALOG
from computeflow.cli.types import DURATION, FILE, TOKENS, CountType, Number

probe = AnswerCommand(
    "probe",
    "probes:probe",
    [
        flag("--quick", help="Measure fewer shapes, in under a minute."),
        option(
            "--soak",
            type=DURATION,
            metavar="TIME",
            help="Keep the device busy this long (60s) and watch clocks, power and temperature.",
        ),
        option(
            "--passes",
            type=CountType(1, 20),
            default=1,
            help="Number of measuring passes; from 2 on, every figure has a spread.",
        ),
        option(
            "--data",
            type=FILE,
            metavar="PATH",
            help="Training files to measure reading and decoding with.",
        ),
        option(
            "--tokens-per-second",
            type=TOKENS,
            metavar="N",
            help="With --data: token rate that the plan needs.",
        ),
        option(
            "--storage",
            type=FILE,
            metavar="FOLDER",
            help="Checkpoint folder to measure; by default the current one.",
        ),
        choice("--device", ["auto", "cpu", "cuda"], "auto", "Device to probe."),
        option(
            "--accelerator",
            metavar="NAME",
            help="Accelerator, if the driver's name for it is not in the catalog.",
        ),
        option(
            "--against",
            type=FILE,
            metavar="FILE",
            help="JSON of an earlier probe, to expect the same figures.",
        ),
        option(
            "--slack",
            type=Number(0.01, 0.9),
            default=0.25,
            help="With --against: relative difference that is still normal.",
        ),
        option(
            "--write-calibration",
            type=FILE,
            metavar="FILE",
            help="Write the measured figures, for predict --calibration.",
        ),
        FORCE,
        flag(
            "--accept",
            help="Acceptance test: exit with 3 and name the nodes that are not as expected.",
        ),
        option(
            "--ray",
            metavar="ADDRESS",
            help="Address of a Ray cluster whose nodes are all probed; auto finds this machine's.",
        ),
        CATALOG,
    ],
    help=__doc__ or "",
    html=False,
)
